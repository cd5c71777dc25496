"""Messages that leave a queue for another one after a client has settled them.

They were rejected or delivered too often in a queue with dead letters, or consumed from a queue
that keeps a history. One ack may settle hundreds of thousands, and each may have to be read back
from disk and get properties of its own: so they leave at once only as far as the cost of a round
allows, and the others in later rounds, no faster than the disk can write the results, in the order
in which they were settled. Until a message has left, it is unacked in the store: after a crash it
is in its queue, marked as delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from amqpstore import Message, MessageDamagedError, PartlyReadError, ReadLaterError
from amqpstore_server.broker.weak_references import weakly
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.queues.queue import Queue

ENVELOPE_COST = 35
_PROPERTY_BYTES_OF_ONE = 16
_BYTES_OF_ONE = 512
"""The cost of a message besides 1, in about microseconds: if it differs in its properties from the
one before it, and then for each of these bytes of them; and for each of these bytes of its body. A
hundred deaths in x-death are 15 kB, looked through in each move.
"""

Go = Callable[["Taken"], bool]
"""Lets a run leave. Returns False if the disk is full: the run is back in its queue then."""


class _Going(NamedTuple):
    """A run that waits for its turn. Args: is_acked, whether it was acked, and counted so."""

    taken: Taken
    go: Go
    is_acked: bool


class PendingMoves:
    """The messages that are leaving one queue, in order."""

    def __init__(self, services: BrokerServices, queue: Queue) -> None:
        self._services = services
        self._queue = weakly(queue)
        self.line: deque[_Going] = deque()
        self.added = 0
        """How many runs were ever told to leave."""

    def __bool__(self) -> bool:
        return bool(self.line)

    @property
    def is_long(self) -> bool:
        """Whether too many are leaving for more to be handed out."""
        return len(self.line) > self._services.limits.max_pending_runs

    def add(self, taken: Taken, go: Go, *, is_acked: bool = False) -> None:
        """Let a run leave: now, or when its turn comes. Args: is_acked, whether it was acked: its
        departure is counted already.
        """
        self.added += 1
        self.line.append(_Going(taken, go, is_acked))
        # Only the first moves at once: with others before it, it would overtake them.
        if len(self.line) == 1:
            self.pump()

    @property
    def gone(self) -> int:
        """The number of the `added` runs, the first ones, that no longer wait to leave."""
        return self.added - len(self.line)

    def waiting(self) -> list[Taken]:
        """Return the runs that wait for their turn."""
        return [going.taken for going in self.line]

    @property
    def uncounted(self) -> int:
        """The number of messages that wait to leave and whose departure is not counted yet."""
        return sum([going.taken.run.count for going in self.line if not going.is_acked])

    def pump(self) -> None:
        """Let some of them leave; the queue goes on later while there are more."""
        services = self._services
        agenda, moves = services.agenda, services.moves
        while self.line:
            # The log takes what moves no faster than the disk writes it: otherwise one ack of
            # 100,000 messages would fill the memory with their copies.
            if not moves.has_room:
                moves.wait_for_room(self._queue().touch)
                return
            if moves.must_wait:
                self._queue().go_on_later()
                return
            going = self.line.popleft()
            taken = going.taken
            part, rest = services.store.stored.bring_back(*taken, in_chunks=True)
            if rest is not None:
                self.line.appendleft(going._replace(taken=taken._replace(run=rest)))
            if isinstance(part, PartlyReadError):
                self._queue().touch()
                return
            if isinstance(part, ReadLaterError):
                self._queue().backlog.read_later(part)
                return
            if isinstance(part, MessageDamagedError):
                # The message is in quarantine, and out of the line: the others go on.
                continue
            most = (services.limits.round_budget - agenda.spent) / moves.ratio
            count, cost = affordable(part.messages or (), most)
            moves.expected_cost = cost
            agenda.spent += cost * moves.ratio
            if count < part.count:
                left, part = part, part.split(count)
                self.line.appendleft(going._replace(taken=taken._replace(run=left)))
            # The disk is full. All of them go back in order, so that none overtakes another when
            # they are tried again.
            if not going.go(taken._replace(run=part)):
                self.put_back_all()
                self._queue().touch()
                return

    def put_back_all(self) -> None:
        """Put all of them back into the queue, ready: they cannot leave now."""
        line, self.line = self.line, deque()
        for taken, _, is_acked in line:
            if is_acked:
                self._queue().departures.note_back(taken.run.count)
            self._queue().backlog.put_back(taken)

    def forget(self) -> None:
        """Drop them: the queue is deleted, and they with it."""
        line, self.line = self.line, deque()
        for taken, _, _ in line:
            # The queue is gone, so this only releases what the runs have in memory.
            self._services.store.ack(*taken)


def affordable(messages: Sequence[Message], most: float, first: int = 0) -> tuple[int, int]:
    """Return how many messages, from one on, may be moved for this cost, at least one, and what
    they cost.
    """
    cost = 0
    known = None
    for index in range(len(messages) - first):
        message = messages[first + index]
        more = 1 + len(message.body) // _BYTES_OF_ONE
        if message.envelope is not known:
            known = message.envelope
            more += ENVELOPE_COST + len(known.properties) // _PROPERTY_BYTES_OF_ONE
        if index and cost + more > most:
            return index, cost
        cost += more
    return len(messages) - first, cost
