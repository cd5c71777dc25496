"""A prepared transaction of a `SharedStore`: undecided, until somebody decides it."""

from __future__ import annotations

from amqpstore.prepared import Prepared
from amqpstore.shared import commit_effects
from amqpstore.shared.locked_store import LockedStore
from amqpstore.shared.queues import Queues


class SharedPrepared:
    """A prepared transaction: until it is decided, the messages it sent are in no queue, and the
    messages it received are locked.

    Created by `SharedTransaction.prepare`, and found again, after a restart too, by
    `SharedStore.prepared`. `label` is its owner's name for it.
    """

    def __init__(self, locked_store: LockedStore, queues: Queues, prepared: Prepared) -> None:
        self._locked_store = locked_store
        self._queues = queues
        self._prepared = prepared
        self.label = str(prepared.label["name"])

    def __repr__(self) -> str:
        return f"<SharedPrepared {self.label!r}>"

    def commit(self) -> None:
        """Commit: durable on return. Messages to queues that were deleted are dropped.

        Raises: TransactionEndedError, if it is decided already; DiskFullError, UndecidableError,
        ReadLaterError (it is undecided then); StoreClosedError, DurabilityError, ForkedError.
        """
        locked_store = self._locked_store
        with locked_store.locked() as store:
            with locked_store.guarded():
                self._prepared.check()
                now_ms = store.clock.wall_ms()
                publishes = self._prepared.publishes()
                received = self._prepared.locked
                copies = commit_effects.copies(store, self._queues, received, now_ms)
                self._prepared.commit([*publishes, *copies])
                commit_effects.when_durable(store, self._queues, publishes, received, now_ms)
            # The wait is outside `guarded`, as an interrupted wait has not damaged anything.
            locked_store.wait_durable()

    def rollback(self) -> None:
        """Roll back: durable on return. Received messages are ready again, as redelivered.

        Raises: as `commit`, except those that leave it undecided.
        """
        with self._locked_store.working() as store:
            for queue, run in self._prepared.rollback():
                store.withdrawals.put_back(queue, run)
                if named := self._queues.of_id(queue.id):
                    named.arrivals.arrived(run.count)
