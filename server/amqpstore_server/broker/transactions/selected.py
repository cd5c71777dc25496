"""Messages of a queue that an operator selects, to be moved, copied or deleted.

Only ready messages are selected, of those that are in the queue when the request comes; unacked
ones stay with whoever has them. They are found and handled in pieces, of up to 256 messages and
about 1 MiB each, and others have their turn in between. A piece is one transaction: after a crash
each message is in exactly one place, and a piece is handled as a whole or not at all. A whole
selection of any size is not one transaction, because its messages are written again for their new
queue: all of them would be in memory, and in one batch that holds up everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from amqpstore import Envelope, Message, ReadLaterError
from amqpstore.format.departures import Departure
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.browsing import SEEN_AT_ONCE, MessagePosition, SeenMessage, Walk
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.transaction import Transaction, plan
from amqpstore_server.protocol.content import BasicProperties, decode_properties

if TYPE_CHECKING:
    from amqpstore_server.broker.messages.filters import Matcher
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.work.services import BrokerServices

_PIECE_BYTES = 1 << 20
_MAX_REASONS = 100

PATIENCE = 20_000
"""How many turns of others are waited for the disk, before this work waits for it alone."""

_IS_READ = 1 << 11 | 1 << 8
"""The flags of the properties priority and expiration, which say where a message goes in a queue.
"""

DISK_FULL = "the disk is full"
UNREADABLE = "cannot be read"
OTHER_REASONS = "other reasons"
GONE = "a queue was deleted, or has failed"

Steps = Generator[None, None, None]


class Selection(NamedTuple):
    """The messages at these positions, or all; of them those that `matcher` means, and only the
    first `limit`.
    """

    positions: Sequence[MessagePosition] | None = None
    matcher: Matcher | None = None
    limit: int | None = None


class Handled:
    """The outcome of a selection: how many messages were handled, and how many were left where they
    are, by reason; `stopped` says why the rest was not tried, or is empty.
    """

    def __init__(self) -> None:
        self.count = 0
        self.left: Counter[str] = Counter()
        self.stopped = ""

    def skip(self, reason: str, count: int = 1) -> None:
        """Count messages that are left where they are. Reasons have names in them that clients
        chose: of those there may be any number.
        """
        # Each reason is a row of the answer, and of the memory for it.
        if len(self.left) >= _MAX_REASONS and reason not in self.left:
            reason = OTHER_REASONS
        self.left[reason] += count


def selected(
    services: BrokerServices, queue: Queue, selection: Selection, most: int
) -> Iterator[list[SeenMessage] | None]:
    """Yield the selected messages in pieces, and None where others may have their turn.

    Each of them was in the queue when it was read, and is wherever it may be by now.
    Raises: ReadLaterError.
    """
    left = selection.limit
    piece: list[SeenMessage] = []
    size = 0
    for seen in _candidates(services, queue, selection.positions):
        for candidate in seen or ():
            if left == 0:
                break
            if selection.matcher is not None and (
                candidate.message is None
                or not selection.matcher.matches(candidate.message, candidate.delivery_count)
            ):
                continue
            left = None if left is None else left - 1
            piece.append(candidate)
            size += len(candidate.message.body) if candidate.message else 0
            if len(piece) >= most or size >= _PIECE_BYTES:
                yield piece
                piece, size = [], 0
        if left == 0:
            break
        yield None
    if piece:
        yield piece


def _candidates(
    services: BrokerServices, queue: Queue, positions: Sequence[MessagePosition] | None
) -> Iterator[list[SeenMessage]]:
    """Yield what is in a queue now, or at some positions of it, a step at a time."""
    # A move into the queue itself, or traffic that never ends, would otherwise keep it going for
    # ever.
    walk = Walk(services, queue, until_now=True)
    if positions is None:
        while not walk.is_done:
            services.work["selected"] = None
            yield walk.step()
        return
    for first, count in _ranges(positions):
        walk.position, walk.is_done = first, False
        end = first._replace(sequence=first.sequence + count)
        while not walk.is_done and walk.position.order < end.order:
            services.work["selected"] = None
            most = min(end.sequence - walk.position.sequence, SEEN_AT_ONCE)
            seen = walk.step(max(most, 1) if walk.position.priority == end.priority else 1)
            yield [one for one in seen if first.order <= one.position.order < end.order]


def _ranges(positions: Sequence[MessagePosition]) -> Iterator[tuple[MessagePosition, int]]:
    """Yield neighbours: the first position, and how many there are."""
    first: MessagePosition | None = None
    count = 0
    for position in sorted(set(positions), key=lambda one: one.order):
        if first and position == first._replace(sequence=first.sequence + count):
            count += 1
            continue
        if first:
            yield first, count
        first, count = position, 1
    if first:
        yield first, count


def take(queue: Queue, piece: Sequence[SeenMessage]) -> list[tuple[Taken, list[Message]]]:
    """Take what is still ready of a piece off its queue: runs, each with its messages.

    Raises: ReadLaterError; nothing is taken then.
    """
    messages = {one.position: one.message for one in piece}
    taken_runs: list[tuple[Taken, list[Message]]] = []
    levels = dict(queue.priorities.levels())
    for first, count in _ranges(list(messages)):
        if (store_queue := levels.get(first.priority)) is None:
            continue
        try:
            runs = queue.backlog.withdraw(store_queue, first.sequence, count)
        except ReadLaterError:
            put_back(queue, taken_runs)
            raise
        for taken in runs:
            there = [
                messages[MessagePosition(first.priority, sequence)]
                for sequence in range(taken.run.first_sequence, taken.run.end)
            ]
            taken_runs.append((taken, [one for one in there if one is not None]))
    return taken_runs


def put_back(queue: Queue, found: Iterable[tuple[Taken, list[Message]]]) -> None:
    """Put back what was taken: it is as if it had never left."""
    for taken, _ in found:
        queue.backlog.put_back(taken)
    queue.touch()


def moving(
    services: BrokerServices, queue: Queue, target: Queue, selection: Selection, *, copies: bool
) -> Generator[None, None, Handled]:
    """Move selected messages to the end of another queue, or put copies of them there, in order.

    They arrive there as if they were published now: its limits and its TTL apply, and so does an
    expiration of their own, from now on. The rest stays if the target refuses one because it is
    full. Durable when it returns. Raises: ReadLaterError.
    """
    handled = Handled()
    for piece in selected(services, queue, selection, services.limits.max_selected):
        if piece is None:
            yield
            continue
        yield from room(services)
        readable = [one for one in piece if one.message is not None]
        if len(readable) < len(piece):
            handled.skip(UNREADABLE, len(piece) - len(readable))
        # Looked at after the wait and not before: others had their turn in it.
        if queue.is_deleted or target.is_deleted or queue.is_set_aside or target.is_set_aside:
            handled.stopped = GONE
            break
        if copies:
            _copy(services, target, [one.message for one in readable if one.message], handled)
        else:
            _move(services, queue, target, readable, handled)
        if handled.stopped:
            break
    yield from durable(services)
    return handled


def _move(
    services: BrokerServices,
    queue: Queue,
    target: Queue,
    piece: Sequence[SeenMessage],
    handled: Handled,
) -> None:
    """Move a piece, in one transaction."""
    runs = take(queue, piece)
    transaction = Transaction(services)
    try:
        messages = [one for _, there in runs for one in there]
        accepted = _add(transaction, target, messages)
        if accepted < len(messages):
            handled.stopped = f"queue '{target.name}' is full"
            # The ones behind the first refused one stay, or they would overtake it.
            runs = _first_of(queue, runs, accepted)
        for taken, _ in runs:
            transaction.ack(queue, taken)
        commit(services, transaction)
    except Exception as error:
        # What is expected in the target would otherwise take up room there for ever.
        transaction.undo()
        put_back(queue, runs)
        if not isinstance(error, ResourceExhaustedError):
            raise
        handled.stopped = DISK_FULL
    else:
        handled.count += accepted
        queue.departures.note(Departure.MOVED, accepted)


def _copy(
    services: BrokerServices, target: Queue, messages: Sequence[Message], handled: Handled
) -> None:
    """Put copies of a piece in a queue, in one transaction."""
    transaction = Transaction(services)
    try:
        accepted = _add(transaction, target, messages)
        commit(services, transaction)
    except Exception as error:
        transaction.undo()
        if not isinstance(error, ResourceExhaustedError):
            raise
        handled.stopped = DISK_FULL
    else:
        handled.count += accepted
        if accepted < len(messages):
            handled.stopped = f"queue '{target.name}' is full"


def commit(services: BrokerServices, transaction: Transaction) -> None:
    """Commit a piece. Raises: ResourceExhaustedError."""
    if not transaction.is_empty:
        services.agenda.spent += services.limits.move_cost
        transaction.commit()


def _first_of(
    queue: Queue, found: Sequence[tuple[Taken, list[Message]]], most: int
) -> list[tuple[Taken, list[Message]]]:
    """Return the first messages of what was taken; the others are put back."""
    kept, others = [], []
    for taken, messages in found:
        if 0 < most < len(messages):
            kept.append((taken._replace(run=taken.run.split(most)), messages[:most]))
            others.append((taken, messages[most:]))
        elif most:
            kept.append((taken, messages))
        else:
            others.append((taken, messages))
        most -= min(most, len(messages))
    put_back(queue, others)
    return kept


def _add(transaction: Transaction, target: Queue, messages: Sequence[Message]) -> int:
    """Add messages for the end of one queue to a transaction, until it refuses one. Returns how
    many it accepts.
    """
    route = Route([target])
    accepted = 0
    for _, group in groupby(messages, key=_traits):
        alike = list(group)
        planned = plan(route, _parsed(alike[0].envelope), alike)
        # Now, as it counts for the room that the next ones have.
        transaction.publish(planned)
        accepted += planned.accepted
        if planned.accepted < len(alike):
            break
    return accepted


def _traits(message: Message) -> tuple[bool, int | None, str | None]:
    """Return what a queue reads of a message; neighbours with equal traits are handled together."""
    envelope = message.envelope
    if not int.from_bytes(envelope.properties[:2], "big") & _IS_READ:
        return envelope.persistent, None, None
    properties = decode_properties(envelope.properties)
    return envelope.persistent, properties.priority, properties.expiration


def _parsed(envelope: Envelope) -> ParsedEnvelope:
    properties = BasicProperties()
    if envelope.properties:
        properties = decode_properties(envelope.properties)
    return ParsedEnvelope(envelope.exchange, envelope.routing_key, envelope.properties, properties)


def deleting(
    services: BrokerServices, queue: Queue, selection: Selection
) -> Generator[None, None, Handled]:
    """Delete selected messages: they become no dead letters. Durable when it returns.

    Raises: ReadLaterError.
    """
    handled = Handled()
    for piece in selected(services, queue, selection, services.limits.max_selected):
        if piece is None:
            yield
            continue
        if queue.is_deleted or queue.is_set_aside:
            handled.stopped = GONE
            break
        # No transaction is needed: acks of one batch are one already.
        for taken, _ in take(queue, piece):
            services.store.ack(*taken)
            handled.count += taken.run.count
            queue.departures.note(Departure.DELETED, taken.run.count)
    yield from durable(services)
    return handled


def room(services: BrokerServices) -> Steps:
    """Wait until the disk has caught up with what was moved."""
    for _ in range(PATIENCE):
        if services.moves.has_room:
            return
        yield
    services.flush()


def durable(services: BrokerServices) -> Steps:
    """Wait until everything that was done so far is durable."""
    waiting = [True]
    services.when_durable(waiting.clear)
    for _ in range(PATIENCE):
        if not waiting:
            return
        yield
    services.flush()
