"""The way into queues: a publish is checked, and its messages enter the open batch of the log and
the ends of their queues.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import index as as_index

from amqpstore.format.message import MAX_PROPERTIES_BYTES, Message
from amqpstore.format.records import (
    HEADER,
    OPERATION,
    Operation,
    OperationKind,
    SpreadEnqueue,
)
from amqpstore.format.runs import Run, body_bytes, overhead_bytes
from amqpstore.log.log import Log
from amqpstore.queues.arguments import check_queue
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Placement, Queue

# Each look-up in an enumeration takes 50 ns, and there is one for each publish.
_ENQUEUE = OperationKind.ENQUEUE

_MAX_PRIORITY = 255
_MAX_TIME_MS = (1 << 64) - 1
_MAX_MESSAGE_BYTES = (1 << 32) - 1
"""The largest payload of a MESSAGE: exchange, routing key, properties and body."""


class Enqueues:
    """Puts messages that were checked before in queues. Args: joined_bytes, up to which messages of
    several publishes are one run.
    """

    def __init__(self, log: Log, memory: Memory, joined_bytes: int) -> None:
        self._log = log
        self._memory = memory
        self._joined_bytes = joined_bytes

    def enqueue(
        self,
        placements: Sequence[Placement],
        messages: list[Message],
        whole_bytes: int,
        whole_overhead: int | None = None,
        *,
        priority: int = 0,
        withheld: list[tuple[Queue, Run]] | None = None,
    ) -> bool:
        """Enqueue messages that were checked before: a transaction must not stop half-way.

        Args: whole_bytes, of all bodies; whole_overhead, see `overhead_bytes`, if that is known;
        withheld, a list that the runs are added to instead of being ready, until `make_ready`.
        Returns whether they entered the log.
        """
        persistent = messages[0].envelope.persistent
        columns = [
            messages if most is None and indexes is None else _chosen(messages, most, indexes)
            for _, _, most, indexes in placements
        ]
        # Where no queue shares a message with another, the ids of each are contiguous.
        is_split = (
            len(placements) > 1
            and placements[0].indexes is not None
            and sum(map(len, columns)) == len(messages)
        )
        first_id = next_id = 0
        for (queue, expires_ms, most, indexes), placed in zip(placements, columns, strict=True):
            count, sequence = len(placed), queue.next_sequence
            if not count:
                continue
            if placed is not messages:
                placed_bytes, overhead = body_bytes(placed), overhead_bytes(placed)
            else:
                if whole_overhead is None:
                    whole_overhead = overhead_bytes(messages)
                placed_bytes, overhead = whole_bytes, whole_overhead
            run = Run(
                sequence,
                count,
                first_id=0,
                messages=placed,
                body_bytes=placed_bytes,
                memory_bytes=placed_bytes + overhead,
                expires_ms=expires_ms,
                priority=priority,
            )
            queue.next_sequence = sequence + count
            # A message that is in no durable queue does not enter the log at all: nothing would
            # ever release its bytes there.
            if queue.durable and (persistent or queue.keeps_transient):
                if not first_id:
                    logged = messages
                    if is_split:
                        logged = list(chain.from_iterable(columns))
                    elif most is not None:
                        logged = _logged(placements, messages)
                    logged_bytes = whole_bytes
                    if len(logged) < len(messages):
                        logged_bytes = body_bytes(logged)
                    # The message is added once for all queues: they share the record, and its
                    # reference count is how many of them name it.
                    first_id = next_id = self._log.append_messages(logged, logged_bytes)
                if indexes is None or is_split or placed is messages:
                    run.first_id = next_id
                    self._log.append_operation(
                        Operation(
                            _ENQUEUE, count, queue.id, sequence, next_id, expires_ms, priority
                        )
                    )
                    if is_split:
                        next_id += count
                else:
                    run.ids = array("Q", [first_id + index for index in indexes])
                    run.first_id = run.ids[0]
                    # Ids that are not contiguous: a consistent-hash or topic exchange has given
                    # each queue some messages of one batch.
                    self._log.append_operation(SpreadEnqueue(queue.id, sequence, run.ids, priority))
            self._append(queue, run, withheld)
        return first_id != 0

    def _append(self, queue: Queue, run: Run, withheld: list[tuple[Queue, Run]] | None) -> None:
        """Make a run that was just published ready, unless it is withheld."""
        if withheld is not None:
            withheld.append((queue, run))
            return
        ready, memory = queue.ready, self._memory
        # As `Queue.count_in`, without the call: this is the hot path.
        queue.ready_bytes += run.body_bytes
        if not run.first_id:
            queue.unlogged_count += run.count
            queue.unlogged_bytes += run.body_bytes
        if not queue.lazy and memory.memory_bytes + run.memory_bytes <= memory.plenty_bytes:
            # The hot path: nothing is too much, and the run is only counted.
            ready.append_new(run, self._joined_bytes)
            queue.memory_bytes += run.memory_bytes
            memory.memory_bytes += run.memory_bytes
        elif memory.is_excess(queue, is_logged=run.first_id > 0):
            # What leaves memory soon is not joined to what may stay.
            ready.append(run)
            memory.add(queue, run, run.memory_bytes)
        else:
            joined = ready.append_new(run, self._joined_bytes)
            memory.add(queue, joined, run.memory_bytes)
        if run.expires_ms:
            queue.watch((run,))


def _chosen(
    messages: list[Message], most: int | None, indexes: Sequence[int] | None
) -> list[Message]:
    """Return the messages that go to one of the queues: see `Placement`."""
    if indexes is not None and len(indexes) < len(messages):
        return [messages[index] for index in indexes]
    return messages if most is None or most >= len(messages) else messages[:most]


def _logged(placements: Sequence[Placement], messages: list[Message]) -> list[Message]:
    """Return the messages that go to any durable queue. The log holds no others."""
    count = 0
    for queue, _, most, _ in placements:
        if queue.durable:
            if most is None:
                return messages
            count = max(count, most)
    return messages[:count]


def publish_bytes(
    placements: Sequence[Placement], messages: Sequence[Message], priority: int, body_bytes: int
) -> int:
    """Return about how many bytes of the log a publish takes. Args: body_bytes, of all the
    messages.

    Raises: ValueError, if the log cannot hold it; TypeError, for a number that is not an integer.
    """
    if not 0 <= as_index(priority) <= _MAX_PRIORITY:
        raise ValueError(
            f"a priority must be an integer from 0 to {_MAX_PRIORITY}, not {priority!r}"
        )
    is_logged = bool(messages) and messages[0].envelope.persistent
    for queue, expires_ms, most, _ in placements:
        if queue.__class__ is not Queue:
            check_queue(queue)
        if queue.keeps_transient and queue.durable:
            is_logged = True
        if not 0 <= as_index(expires_ms) <= _MAX_TIME_MS:
            raise ValueError(f"an expiry time must be in ms since 1970, not {expires_ms!r}")
        if most is not None and (most < 0 or most.__class__ is bool):
            raise ValueError(f"the number of messages for a queue must be 0 or more, not {most}")
    if not messages:
        raise ValueError("a publish needs at least one message")
    if len(placements) > 1 and len({one.queue for one in placements}) < len(placements):
        raise ValueError("a publish puts its messages in a queue once: a queue is named twice")
    # Messages of one call usually share an envelope.
    head_bytes = len(messages[0].envelope.head)
    count = len(messages)
    needed = body_bytes + count * (HEADER.size + head_bytes) + len(placements) * OPERATION.size
    # Only where a single message could be too large; the sum is at hand, and the lengths would
    # have to be looked at one by one.
    if body_bytes > _MAX_MESSAGE_BYTES - MAX_PROPERTIES_BYTES - (1 << 10):
        _check_sizes(messages)
    return needed if is_logged else 0


def _check_sizes(messages: Sequence[Message]) -> None:
    for message in messages:
        size = len(message.envelope.head) + len(message.body)
        if size > _MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message may have at most {_MAX_MESSAGE_BYTES} bytes, including its properties "
                f"and names; this one has {size}"
            )
