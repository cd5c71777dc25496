"""The backlog of a queue: its ready messages, and how they leave: taken, dropped or expired.

Deliveries and gets take messages from here. The messages themselves are in the queues of the store
that `priorities` has; messages that leave without being consumed go where the queue sends them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import amqpstore
from amqpstore import Message, MessageDamagedError, PartlyReadError, ReadLaterError, Run
from amqpstore.log.segments import Unread
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.monitoring.faults import Contained
from amqpstore_server.broker.queues.pending_moves import affordable
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.weak_references import weakly
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue, WayOut

_log = logging.getLogger(__name__)

_EXPIRED_AT_ONCE = 64
"""How many runs expire at once before others have their turn."""

_RETRY_MS = 1000
"""The time after which messages that could not be moved or read are tried again."""


class Taken(NamedTuple):
    """A run that was taken off a queue, and the store's queue that it came from."""

    store_queue: amqpstore.Queue
    run: Run


class Backlog:
    """The ready messages of one queue, within its limits and until they expire.

    `ready_bytes` counts their bodies while the queue has a limit on bytes; `is_reading` tells that
    in this round a part of a large one was read, and others come first. It `has_expired` messages
    while some that are due wait for a round that may move them. If work on them fails, the queue is
    set aside, and nothing is taken any more.
    """

    def __init__(
        self, services: BrokerServices, queue: Queue, priorities: Priorities, way_out: WayOut
    ) -> None:
        self.priorities = priorities
        self.ready_bytes = 0
        self.is_reading = False
        self.has_expired = False
        self._queue = weakly(queue)
        self._way_out = way_out
        self._services = services
        self._agenda = services.agenda
        self._moves = services.moves
        self._store = services.store
        self.expiry = services.dates.timer(self._expire_due)
        # Set after a message could not be moved or read.
        self._retry = services.timers.timer(self._try_again)

    # Arrival.

    def count_bytes(self) -> None:
        """Count the bytes of ready bodies again, from the store."""
        self.ready_bytes = sum(self._store.stored.sizes.ready_bytes(one) for one in self.priorities)

    def arrived(self, messages: Sequence[Message], expires_ms: int) -> None:
        """Count new messages, and set the timer to when they expire, or earlier."""
        if self._queue().settings.max_length_bytes is not None:
            self.ready_bytes += sum([len(message.body) for message in messages])
        self.expiry.set_sooner(expires_ms)

    def requeue(self, taken: Taken) -> None:
        """Return a run that was delivered to its place."""
        store_queue, run = taken
        if self._queue().settings.max_length_bytes is not None:
            self.ready_bytes += self._store.stored.sizes.run_bytes(run)
        self._store.requeue(store_queue, run)
        # A requeued message keeps its time: its TTL does not start again, as in RabbitMQ.
        if run.expires_ms:
            self.watch_expiry()

    def put_back(self, taken: Taken) -> None:
        """Return a run that could not leave to its place, as if it had not been taken."""
        if self._queue().settings.max_length_bytes is not None:
            self.ready_bytes += self._store.stored.sizes.run_bytes(taken.run)
        self._store.withdrawals.put_back(taken.store_queue, taken.run)
        # A queue that is set aside has ended its timers: one that fires would work on it again.
        if taken.run.expires_ms and not self._queue().is_set_aside:
            self.watch_expiry()

    # Removal.

    def take(
        self, limit: int, *, acked: bool, not_from: object = None, in_chunks: bool = False
    ) -> Taken | None:
        """Take up to `limit` messages off the head; None if there is none for this caller.

        Args: acked, whether they need no ack of a client: they go to the queue's history, or are
        gone; not_from, the consumer whose requeued messages are skipped; in_chunks, whether others
        have their turn while a large message is read: None until then, and the queue is touched.
        """
        queue = self._queue()
        history = queue.history if acked else None
        # Where a history is kept, the ack comes with the copy, in one transaction: a crash leaves
        # the message in one of the two.
        ack_now = acked and history is None
        while not queue.is_set_aside and (
            withdrawn := self.priorities.take(
                limit, acked=ack_now, not_from=not_from, in_chunks=in_chunks
            )
        ):
            store_queue, run = withdrawn
            if isinstance(run, ReadLaterError):
                if isinstance(run, PartlyReadError):
                    self.is_reading = True
                    queue.touch()
                else:
                    self.read_later(run)
                return None
            if isinstance(run, MessageDamagedError):
                self.ready_bytes -= run.body_bytes
                # The damaged message is in quarantine: what is behind it is served.
                continue
            self._left(run)
            taken = Taken(store_queue, run)
            if self._is_over_limit(run) and not acked:
                if not self.send_away([taken], Reason.DELIVERY_LIMIT):
                    return None
                continue
            if history is not None:
                history.consumed(queue, taken)
            return taken
        return None

    def _left(self, run: Run) -> None:
        if self._queue().settings.max_length_bytes is not None:
            self.ready_bytes -= run.body_bytes

    def _is_over_limit(self, run: Run) -> bool:
        """Tell whether a run has exceeded the delivery limit: here only after a crash interrupted
        its removal.
        """
        limit = self._queue().settings.delivery_limit
        return limit is not None and run.delivery_count > limit

    def send_away(self, taken: Sequence[Taken], reason: Reason) -> bool:
        """Remove runs that were taken off for good, all in one transaction. Returns False if they
        are still in the queue.
        """
        if self._queue().is_set_aside:
            for one in taken:
                self.put_back(one)
            return False
        with Contained(self._queue()):
            return self._way_out(self._queue(), taken, reason)
        return False

    def withdraw(
        self, store_queue: amqpstore.Queue, first_sequence: int, count: int
    ) -> list[Taken]:
        """Take what is ready of some neighbours off the queue, without a delivery. They have their
        messages only if these are in memory. Raises: ReadLaterError.
        """
        runs = self._store.withdrawals.withdraw_range(store_queue, first_sequence, count)
        if self._queue().settings.max_length_bytes is not None:
            self.ready_bytes -= sum(map(self._store.stored.sizes.run_bytes, runs))
        return [Taken(store_queue, run) for run in runs]

    def purge(self) -> int:
        """Remove all ready messages, and the dead letters that wait. Returns how many there
        were.
        """
        queue = self._queue()
        if queue in self._agenda.late_drops:
            # What is over the limit was doomed before the purge came, and is counted and
            # dead-lettered as such.
            queue.drop_late()
        self.ready_bytes = 0
        letters = () if queue.letters is None else queue.letters.priorities
        return queue.purges.purge([*self.priorities, *letters])

    # Limits.

    @property
    def excess(self) -> int:
        """The number of messages that exceed the limits, at least; 0 if none do."""
        settings = self._queue().settings
        # A queue that rejects refuses publishers instead.
        if not settings.is_limited or settings.rejects:
            return 0
        excess = 0
        # Only ready messages count: unacked ones count towards no limit, as in RabbitMQ.
        if settings.max_length is not None:
            excess = max(0, self.priorities.ready_count - settings.max_length)
        if settings.max_length_bytes is not None and self.ready_bytes > settings.max_length_bytes:
            excess = max(excess, 1)
        return excess

    def drop_excess(self, arrived: int = 0) -> None:
        """Drop messages beyond the limits: lowest priority first, and the oldest of it first.

        Args: arrived, as many may be dropped whatever it costs: a publisher is read from no faster.
        """
        dropped = most = 0
        # Lowest priority first, as the AMQP model has it; RabbitMQ's classic queues may drop
        # higher ones for lower ones.
        while (excess := self.excess) and (store_queue := self.priorities.least()):
            most = most or self._most_dropped(arrived)
            if dropped >= most or (dropped >= arrived and self._must_wait):
                self._queue().go_on_later()
                return
            if not self._has_room():
                return
            run = self._withdraw_excess(store_queue, excess, most - dropped)
            if isinstance(run, PartlyReadError):
                self._queue().touch()
                return
            if isinstance(run, ReadLaterError):
                self.read_later(run)
                return
            if isinstance(run, MessageDamagedError):
                self.ready_bytes -= run.body_bytes
            if isinstance(run, Run):
                run = self._affordable(store_queue, run, arrived - dropped)
                dropped += run.count
                if not self.send_away([Taken(store_queue, run)], Reason.MAXLEN):
                    return
        if dropped and self._queue().consumers:
            self._queue().touch()  # the next message may be small enough for one of them

    def _most_dropped(self, arrived: int) -> int:
        """Return how many messages a limit may drop at once."""
        limits = self._services.limits
        return max(limits.max_dropped_read, arrived) if self._needs_bodies else limits.max_dropped

    def _withdraw_excess(
        self, store_queue: amqpstore.Queue, excess: int, most: int
    ) -> Run | Unread | None:
        """Withdraw messages of a queue beyond its limits: at most `most`, and no other."""
        if not self._needs_bodies:
            return self._store.withdrawals.withdraw_first(store_queue, min(excess, most))
        max_bytes = self._queue().settings.max_length_bytes
        over = 0 if max_bytes is None else self.ready_bytes - max_bytes
        wanted = excess
        if over > 0:
            # About as many as are to be dropped: to withdraw them one by one takes much longer.
            wanted = max(excess, over * self.priorities.ready_count // max(self.ready_bytes, 1))
        run = self._store.withdrawals.withdraw(store_queue, min(wanted, most), in_chunks=True)
        if isinstance(run, Run) and run.count > excess:
            count = _count_of(run.messages or (), over)
            if max(count, excess) < run.count:
                part = run.split(max(count, excess))
                self._store.withdrawals.put_back(store_queue, run)
                return part
        return run

    # Expiry.

    def expire(self) -> None:
        """Remove expired messages, if there are any."""
        now = self._services.clock.wall_ms()
        if self.has_expired or 0 < self.expiry.due_ms <= now:
            self.has_expired = False
            self.expire_until(now)

    def expire_until(self, now_ms: int) -> None:
        """Remove what has expired by a time, whatever the timer says."""
        for store_queue in self.priorities:
            if not self._expire_queue(store_queue, now_ms):
                return
        self.watch_expiry()

    def _expire_queue(self, store_queue: amqpstore.Queue, now_ms: int) -> bool:
        """Expire the due messages of one store queue. Returns False if one could not leave: the
        timer tries again.
        """
        expired: list[Taken] = []
        goes_on = self._withdraw_expired(store_queue, now_ms, expired)
        if expired and not self.send_away(expired, Reason.EXPIRED):
            # The retry's timer takes over: with its own time in the past this one would fire in
            # each round.
            self.expiry.set(0)
            if not self._queue().is_set_aside:
                self._retry.set(self._services.clock.monotonic_ms() + _RETRY_MS)
            return False
        return goes_on

    def _withdraw_expired(
        self, store_queue: amqpstore.Queue, now_ms: int, expired: list[Taken]
    ) -> bool:
        """Take the due messages of one store queue off it, as far as they may leave in this round.
        Returns False if others have to wait.
        """
        for _ in range(_EXPIRED_AT_ONCE):
            next_ms = self._store.withdrawals.next_expiry(store_queue)
            if not 0 < next_ms <= now_ms:
                break
            if not self._has_room():
                self.expiry.set(0)
                return False
            if self._must_wait:
                # Without the timer, which would be due again at once.
                self.expiry.set(0)
                self.has_expired = True
                self._queue().go_on_later()
                return False
            run = self._store.withdrawals.withdraw_expired(
                store_queue, now_ms, bodies=self._needs_bodies, in_chunks=True
            )
            if isinstance(run, PartlyReadError):
                self._queue().touch()
                break
            if isinstance(run, ReadLaterError):
                self.expiry.set(0)
                self.read_later(run)
                return False
            if isinstance(run, MessageDamagedError):
                self.ready_bytes -= run.body_bytes
            if isinstance(run, Run):
                expired.append(Taken(store_queue, self._affordable(store_queue, run)))
        return True

    @property
    def _needs_bodies(self) -> bool:
        """Whether messages that leave without being consumed have to be read."""
        return self._queue().sends_on or self._queue().settings.max_length_bytes is not None

    def watch_expiry(self) -> None:
        """Set the timer to when the next message expires, or earlier."""
        dues = [due for one in self.priorities if (due := self._store.withdrawals.next_expiry(one))]
        self.expiry.set_sooner(min(dues, default=0))

    def _expire_due(self) -> None:
        """Expire what is due, and serve the consumers that can be served. Called by the timer."""
        queue = self._queue()
        self.has_expired = True
        if not queue.sends_on:  # to move messages is for a round
            with Contained(queue):
                self.expire()
        queue.touch()

    # What moving to other queues may cost.

    @property
    def _must_wait(self) -> bool:
        """Whether messages that move to another queue have to wait for another round."""
        return self._queue().sends_on and self._moves.must_wait

    @property
    def is_late(self) -> bool:
        """Whether messages that have expired wait for their turn to move to another queue."""
        return self.has_expired or 0 < self.expiry.due_ms <= self._services.clock.wall_ms()

    def _affordable(self, store_queue: amqpstore.Queue, run: Run, least: int = 0) -> Run:
        """Return the part of a withdrawn run that may move in this round. The rest is put back.

        Args: least, the number of messages that may move whatever it costs.
        """
        self._left(run)
        agenda, moves = self._agenda, self._moves
        if run.messages is None or not self._queue().sends_on:
            agenda.spent += self._services.limits.drop_cost
            return run
        most = (self._services.limits.round_budget - agenda.spent) / moves.ratio
        count, cost = affordable(run.messages, most)
        moves.expected_cost = cost
        agenda.spent += cost * moves.ratio
        if max(count, least) >= run.count:
            return run
        part = run.split(max(count, least))
        # The message is not requeued: nothing was delivered, so it must not be flagged as
        # redelivered.
        self.put_back(Taken(store_queue, run))
        return part

    # Retries of what could not leave, or be read.

    def read_later(self, error: ReadLaterError) -> None:
        """Leave messages that cannot be read, for lack of descriptors or memory, where they are for
        a while.
        """
        if not self._retry.due_ms:
            extra = {**self._queue().log_fields, "reason": str(error)}
            _log.warning("messages cannot be read at the moment: they are kept", extra=extra)
            self._retry.set(self._services.clock.monotonic_ms() + _RETRY_MS)

    def _try_again(self) -> None:
        if self._queue().is_deleted or self._queue().is_set_aside:
            return
        with Contained(self._queue()):
            # Messages that could not move may have been too many, or have expired.
            self.drop_excess()
        self._expire_due()

    def _has_room(self) -> bool:
        """Tell whether messages may move out of it now; if not, it tries again when they may."""
        if not self._queue().sends_on or self._moves.has_room:
            return True
        self._moves.wait_for_room(self._try_again)
        return False

    def stop_timers(self) -> None:
        """Stop the timers: the queue is deleted or set aside."""
        self.expiry.end()
        self._retry.end()


def _count_of(messages: Sequence[Message], size: int) -> int:
    """Return how many of the first messages have bodies of that size together."""
    for index, message in enumerate(messages):
        if size <= 0:
            return index
        size -= len(message.body)
    return len(messages)
