"""Distributed transactions: branches of them, in the model of X/Open (class dtx).

A branch is started on a channel, which works in it until the branch is ended there; other channels
may join. Then it is prepared, and committed or rolled back by anyone with the permission, on any
connection. Until it is prepared it depends on the channels that worked in it: it is rolled back
when one of them closes, when it exceeds its timeout, and when its client says that it failed.

A branch may have very many messages, so a decision is made in steps: others may have their turn
after each, and no other decision about the branch meanwhile. What is durable changes in one of the
steps. If the client goes before that one, nothing was decided; if it goes after it, what is left to
do is done in later rounds.

Errors of the client are reported as error codes of the X/Open specification (xa.h).
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from amqpstore import Prepared
from amqpstore.format.departures import Departure
from amqpstore_server.broker.channels.firehose import Firehose, Origin
from amqpstore_server.broker.channels.local_transaction import LocalTransaction, TransactedChannel
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
)
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.dead_letter import DeadLetters
from amqpstore_server.broker.transactions.prepared_work import PreparedWork
from amqpstore_server.broker.transactions.transaction import Transaction
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.broker.work.timers import Timer

if TYPE_CHECKING:
    from amqpstore_server.broker.rights.permissions import Access

_log = logging.getLogger(__name__)

RESOURCE = "amq.dtx"
"""Users who may configure this resource may decide the branches of all users."""

MAX_ID_BYTES = 64
"""The most bytes of a global id, and of a branch id."""


class Xid(NamedTuple):
    """The name of a branch: a global id of 1 to 64 bytes, a branch id of up to 64."""

    format_id: int
    global_id: bytes
    branch_id: bytes

    def __str__(self) -> str:
        return f"{self.format_id}:{self.global_id.hex()}:{self.branch_id.hex()}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """Return what `str` wrote. Raises: ValueError."""
        format_id, global_id, branch_id = text.split(":")
        return cls(int(format_id), bytes.fromhex(global_id), bytes.fromhex(branch_id))


class InDoubt(NamedTuple):
    """A prepared branch: whose it is, how long ago it began or the broker started, and what it
    holds.
    """

    xid: Xid
    user: str
    age_s: int
    publishes: int
    acks: int


class XaStatus(enum.IntEnum):
    """The outcome of a branch. The broker never decides a prepared branch by itself (HEUR_*)."""

    OK = 0
    RB_ROLLBACK = 1
    RB_TIMEOUT = 2
    HEUR_HAZ = 3
    HEUR_COM = 4
    HEUR_RB = 5
    HEUR_MIX = 6
    RD_ONLY = 7


Steps = Generator[None, None, None]

Told = Callable[[XaStatus], None]
"""Called with the outcome of a branch once it is durable."""


class BranchChannel(TransactedChannel, Protocol):
    """A channel as a branch needs it that it works in."""

    transaction: LocalTransaction | None

    def requeue_all(self, deliveries: list[Delivery]) -> None:
        """Requeue deliveries, if there are many most of them in later rounds."""


class _Branch:
    """An undecided branch. If `failure` is set, it can only be rolled back."""

    def __init__(self, xid: Xid, user: str, began_ms: int) -> None:
        self.xid = xid
        self.user = user
        self.began_ms = began_ms
        self.timeout_s = 0
        self.timer: Timer | None = None
        self.failure = XaStatus.OK
        self.works: dict[BranchChannel, LocalTransaction] = {}
        self.active: set[BranchChannel] = set()
        self.suspended: set[BranchChannel] = set()
        self.prepared: PreparedWork | None = None
        self.underway = ""
        """The operation that is under way in steps; empty if there is none."""

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Refuse other decisions while this one takes its steps."""
        self.underway = what
        try:
            yield
        finally:
            self.underway = ""

    def check_idle(self) -> None:
        """Raises: PreconditionFailedError, while a decision takes its steps."""
        if self.underway:
            raise PreconditionFailedError(
                f"XAER_PROTO: branch {self.xid} is being {self.underway} already"
            )

    def stop_timer(self) -> None:
        """Cancel the timeout of the branch."""
        if self.timer is not None:
            self.timer.set(0)

    def check_ended(self) -> None:
        """Raises: PreconditionFailedError, while a channel works in the branch, or as
        `check_idle`.
        """
        self.check_idle()
        if self.active or self.suspended:
            raise PreconditionFailedError(
                f"XAER_PROTO: branch {self.xid} was not ended on every channel"
            )

    def check_unprepared(self) -> None:
        """Raises: PreconditionFailedError, if it is prepared, or as `check_idle`."""
        self.check_idle()
        if self.prepared is not None:
            raise PreconditionFailedError(f"XAER_PROTO: branch {self.xid} is prepared")


class Branches:
    """The branches of a virtual host.

    Args: without_queue, called with the name of a queue that was deleted, the reason, and how many
    messages would have entered it.
    """

    def __init__(
        self,
        vhost: str,
        services: BrokerServices,
        dead_letters: DeadLetters,
        firehose: Firehose,
        without_queue: Callable[[str, Departure, int], None],
    ) -> None:
        self._firehose = firehose
        self._without_queue = without_queue
        self._vhost = vhost
        self._services = services
        self._dead_letters = dead_letters
        self._branches: dict[Xid, _Branch] = {}
        self._failed: dict[Xid, None] = {}

    # Work. The channel has been set to work in branches.

    def start(
        self, channel: BranchChannel, access: Access, xid: Xid, *, join: bool, resume: bool
    ) -> XaStatus:
        """Start to work in a branch on a channel, unless the branch has failed.

        Args: join, the branch exists already; resume, the channel has suspended it.
        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError.
        """
        # X/Open, xa_start: TMJOIN and TMRESUME exclude each other.
        if join and resume:
            raise PreconditionFailedError("XAER_INVAL: join and resume exclude each other")
        if channel.transaction is not None:
            raise PreconditionFailedError("XAER_PROTO: the channel works in a branch already")
        if not join and not resume:
            if xid in self._branches:
                raise PreconditionFailedError(f"XAER_DUPID: branch {xid} is there already")
            _check_xid(xid)
            branch = _Branch(xid, access.user, self._services.clock.monotonic_ms())
            self._branches[xid] = branch
        else:
            branch = self._branch(xid, access)
            branch.check_unprepared()
            if resume and channel not in branch.suspended:
                raise PreconditionFailedError(
                    f"XAER_PROTO: branch {xid} is not suspended on this channel"
                )
            if branch.failure:
                # xa_start reports XA_RB* for a branch that can only be rolled back; the manager
                # rolls it back then.
                return branch.failure
        branch.suspended.discard(channel)
        branch.active.add(channel)
        work = LocalTransaction(channel, self._services, self._dead_letters)
        channel.transaction = branch.works.setdefault(channel, work)
        return XaStatus.OK

    def end(
        self, channel: BranchChannel, access: Access, xid: Xid, *, fail: bool, suspend: bool
    ) -> XaStatus:
        """End the work of a channel in a branch.

        Args: fail, the branch can only be rolled back; suspend, the channel will resume it.
        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError.
        """
        if fail and suspend:
            raise PreconditionFailedError("XAER_INVAL: fail and suspend exclude each other")
        branch = self._branch(xid, access)
        if channel not in branch.active and (suspend or channel not in branch.suspended):
            raise PreconditionFailedError(f"XAER_PROTO: the channel does not work in branch {xid}")
        if channel in branch.active:
            channel.transaction = None
        branch.active.discard(channel)
        branch.suspended.discard(channel)
        if suspend and not branch.failure:
            branch.suspended.add(channel)
        if fail or branch.failure:
            self._fail(branch, XaStatus.RB_ROLLBACK)
        return branch.failure

    def channel_closed(self, channel: BranchChannel) -> None:
        """Roll back the unprepared branches in which a channel worked: it closes."""
        for branch in [one for one in self._branches.values() if channel in one.works]:
            branch.active.discard(channel)
            branch.suspended.discard(channel)
            # An unprepared branch dies with its client, like an open tx: no other channel could
            # end its work.
            self._fail(branch, XaStatus.RB_ROLLBACK)
            del branch.works[channel]
        channel.transaction = None

    # Decisions, in steps. None of them needs a channel that worked in the branch.

    def preparing(
        self, access: Access, xid: Xid, report: Told, or_else: Callable[[], None] | None = None
    ) -> Steps:
        """Make sure that a branch can be committed, whatever happens.

        `report` gets OK; RD_ONLY if there is nothing to commit; or why it was rolled back. If
        `report` raises, `or_else` is called.
        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError, ResourceExhaustedError.
        """
        branch = self._branch(xid, access)
        branch.check_unprepared()
        branch.check_ended()
        with branch.doing("prepared"):
            transaction = yield from self._gathering(branch, prepares=True)
        if transaction is None:
            self._forget(branch)
            report(branch.failure)
            return
        if transaction.is_empty:
            self._forget(branch)
            yield from self._finishing(branch)
            report(XaStatus.RD_ONLY)
            return
        label = {"vhost": self._vhost, "user": branch.user, "xid": list(xid)}
        # Up to here the client's going undoes everything; from here on the branch is in the store,
        # through any crash.
        prepared = transaction.prepare(label)
        branch.prepared = PreparedWork(self._services, prepared, transaction.queues)
        # From now on only a transaction manager decides about it, however long that takes.
        branch.stop_timer()
        # Not before: the manager commits the other branches once all have said so, and no crash may
        # take this one back then.
        self._services.when_durable(partial(report, XaStatus.OK), or_else)
        yield from self._finishing(branch)

    def committing(
        self,
        access: Access,
        xid: Xid,
        report: Told,
        or_else: Callable[[], None] | None = None,
        *,
        one_phase: bool,
    ) -> Steps:
        """Commit a prepared branch, or with `one_phase` an unprepared one.

        `report` gets OK, or why it was rolled back. If `report` raises, `or_else` is called.
        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError; ResourceExhaustedError
        (the branch is unchanged).
        """
        branch = self._branch(xid, access)
        branch.check_ended()
        done = partial(report, XaStatus.OK)
        if branch.prepared is not None:
            if one_phase:
                branch.check_unprepared()
            with branch.doing("committed"):
                columns = yield from branch.prepared.committing(done, or_else)
            self._forget(branch)
            for name, count in branch.prepared.without_queue.items():
                self._without_queue(name, Departure.QUEUE_DELETED, count)
            # Who published it may have left long ago.
            publishes = [(column.queues, column.messages) for column in columns]
            self._firehose.committed(Origin(user=branch.user), publishes)
            return
        if not (one_phase or branch.failure):
            # Two phases mean that all branches have promised before the first one commits.
            raise PreconditionFailedError(f"XAER_PROTO: branch {xid} is not prepared")
        with branch.doing("committed"):
            transaction = yield from self._gathering(branch, prepares=False)
        if transaction is None:
            self._forget(branch)
            report(branch.failure)
            return
        # One phase: there is nothing to promise, so there is one batch instead of two.
        transaction.commit(done, or_else)
        self._forget(branch)
        for work in branch.works.values():
            work.trace()
        yield from self._finishing(branch)

    def rolling_back(self, access: Access, xid: Xid, report: Told) -> Steps:
        """Roll a branch back; the messages that it would have acked are ready again, as
        redelivered.

        `report` gets OK, or why it was rolled back before, once that is durable.
        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError.
        """
        branch = self._branch(xid, access)
        branch.check_ended()
        yield from self._rolling_back(branch)
        report(branch.failure)

    def rolling_back_all(self) -> Steps:
        """Roll back every branch, prepared or not: the virtual host is being deleted."""
        while self._branches:
            yield from self._rolling_back(next(iter(self._branches.values())))

    def _rolling_back(self, branch: _Branch) -> Steps:
        steps: Iterator[None] = iter(())
        if branch.prepared is not None:
            steps = branch.prepared.rolling_back()
        else:
            self._undo(branch)
        # The branch is forgotten first: it is decided, and a second rollback has to be told so
        # (XAER_NOTA) while the messages go back.
        self._forget(branch)
        yield from steps

    def forget(self, access: Access, xid: Xid) -> None:
        """Forget a branch that the broker decided by itself; it never does, so this always fails.

        Raises: PreconditionFailedError, NotFoundError, AccessRefusedError.
        """
        self._branch(xid, access)
        raise PreconditionFailedError(f"XAER_PROTO: branch {xid} was not decided heuristically")

    def in_doubt(self) -> list[InDoubt]:
        """Return the prepared branches, whoever may decide them."""
        now_ms = self._services.clock.monotonic_ms()
        return [
            InDoubt(
                branch.xid,
                branch.user,
                (now_ms - branch.began_ms) // 1000,
                branch.prepared.publish_count,
                branch.prepared.ack_count,
            )
            for branch in self._branches.values()
            if branch.prepared is not None
        ]

    def recover(self, access: Access) -> list[Xid]:
        """Return the prepared branches that the user may decide."""
        return [
            branch.xid
            for branch in self._branches.values()
            if branch.prepared is not None and _may_decide(access, branch)
        ]

    def timeout_s(self, access: Access, xid: Xid) -> int:
        """Return how many seconds a branch may take from its start until it is prepared; 0 is no
        limit.

        Raises: NotFoundError, AccessRefusedError.
        """
        return self._branch(xid, access).timeout_s

    def set_timeout(self, access: Access, xid: Xid, timeout_s: int) -> None:
        """Change the timeout of a branch. Raises: PreconditionFailedError, NotFoundError,
        AccessRefusedError.
        """
        branch = self._branch(xid, access)
        branch.check_unprepared()
        branch.timeout_s = timeout_s
        if branch.timer is None:
            branch.timer = self._services.timers.timer(partial(self._time_out, branch))
        branch.timer.set(branch.began_ms + 1000 * timeout_s if timeout_s else 0)

    def restore(self, prepared: Prepared, queues: Mapping[int, Queue]) -> None:
        """Restore a branch from the store. Args: queues, by their ids in the store."""
        label = prepared.label
        format_id, global_id, branch_id = label["xid"]
        xid = Xid(format_id, global_id, branch_id)
        # The branch's age begins anew: the row does not have a time, and no timeout applies to it
        # any more.
        branch = _Branch(xid, label["user"], self._services.clock.monotonic_ms())
        branch.prepared = PreparedWork(self._services, prepared, queues)
        self._branches[xid] = branch
        _log.warning("in doubt", extra=self._log_fields(branch))

    def _log_fields(self, branch: _Branch) -> dict[str, object]:
        return {"vhost": self._vhost, "user": branch.user, "xid": str(branch.xid)}

    def _branch(self, xid: Xid, access: Access) -> _Branch:
        branch = self._branches.get(xid)
        if branch is None:
            raise NotFoundError(f"XAER_NOTA: no branch {xid} in vhost '{self._vhost}'")
        if not _may_decide(access, branch):
            raise AccessRefusedError(
                f"access to branch {xid} in vhost '{self._vhost}' refused for user "
                f"'{access.user}': it is another user's, and configuring '{RESOURCE}' is not "
                "permitted"
            )
        return branch

    def _gathering(
        self, branch: _Branch, *, prepares: bool
    ) -> Generator[None, None, Transaction | None]:
        """Return all the work of a branch, which has been ended; None if it has failed, also
        between two steps, or a queue refuses part of it.
        """
        if branch.failure:
            return None
        transaction = Transaction(self._services)
        works = [*branch.works.values()]
        steps = chain.from_iterable(work.adding_to(transaction) for work in works)
        if prepares:
            steps = chain(steps, transaction.merging_acks())
        try:
            for _ in steps:
                yield
                if branch.failure:
                    # It timed out, or a channel that worked in it has closed.
                    transaction.undo()
                    return None
        except PreconditionFailedError as error:
            transaction.undo()
            extra = {**self._log_fields(branch), "reason": str(error)}
            _log.warning("branch rolled back", extra=extra)
            self._fail(branch, XaStatus.RB_ROLLBACK)
            return None
        except BaseException:
            transaction.undo()
            raise
        return transaction

    def _finishing(self, branch: _Branch) -> Steps:
        """Finish the work of a branch, which is done, or the store's now."""
        works = deque(branch.works.values())
        branch.works.clear()
        try:
            while works:
                yield from works.popleft().finishing()
        finally:
            self._services.agenda.background.extend(work.finishing() for work in works)

    def _fail(self, branch: _Branch, why: XaStatus) -> None:
        """Roll a branch back, and remember why."""
        if branch.failure is XaStatus.OK:
            branch.failure = why
        self._undo(branch)
        self._failed[branch.xid] = None
        if len(self._failed) > self._services.limits.max_failed_branches:
            # A client that starts and fails branches in a loop would fill the memory with their
            # names.
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        for xid in self._failed:
            branch = self._branches[xid]
            if not (branch.active or branch.suspended or branch.underway):
                self._forget(branch)
                return

    def _undo(self, branch: _Branch) -> None:
        for channel, work in branch.works.items():
            channel.requeue_all(work.rollback())

    def _time_out(self, branch: _Branch) -> None:
        if not branch.failure:
            _log.warning("branch rolled back: it timed out", extra=self._log_fields(branch))
            self._fail(branch, XaStatus.RB_TIMEOUT)

    def _forget(self, branch: _Branch) -> None:
        branch.stop_timer()
        del self._branches[branch.xid]
        self._failed.pop(branch.xid, None)


def _may_decide(access: Access, branch: _Branch) -> bool:
    return access.user == branch.user or access.may("configure", RESOURCE)


def _check_xid(xid: Xid) -> None:
    """Raises: PreconditionFailedError."""
    if not (0 < len(xid.global_id) <= MAX_ID_BYTES and len(xid.branch_id) <= MAX_ID_BYTES):
        raise PreconditionFailedError(
            f"XAER_INVAL: a global id has 1 to {MAX_ID_BYTES} bytes and a branch id up to "
            f"{MAX_ID_BYTES}, these have {len(xid.global_id)} and {len(xid.branch_id)}"
        )
