"""The way into queues: messages enter the open batch of the log and the ends of their queues."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain

from amqpstore.format.message import Message
from amqpstore.format.records import Operation, OperationKind, SpreadEnqueue
from amqpstore.format.runs import Run, body_bytes, overhead_bytes
from amqpstore.log.log import Log
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Placement, Queue

# Each look-up in an enumeration takes 50 ns, and there is one for each publish.
_ENQUEUE = OperationKind.ENQUEUE


class Enqueues:
    """Puts messages that were checked before in queues. Args: joined_bytes, up to which messages of
    several publishes are one run.
    """

    def __init__(self, log: Log, memory: Memory, joined_bytes: int) -> None:
        self._log = log
        self._memory = memory
        self._joined_bytes = joined_bytes

    def put(
        self,
        placements: Sequence[Placement],
        messages: list[Message],
        whole_bytes: int,
        whole_overhead: int,
        *,
        priority: int = 0,
        withheld: list[tuple[Queue, Run]] | None = None,
    ) -> bool:
        """Enqueue messages that were checked before: a transaction must not stop half-way.

        Args: whole_bytes, of all bodies; whole_overhead, see `overhead_bytes`; withheld, a list
        that the runs are added to instead of being ready, until `make_ready`.
        """
        first_id = 0
        persistent = messages[0].envelope.persistent
        whole = len(messages)
        for queue, expires_ms, most in placements:
            count, placed, placed_bytes, overhead = whole, messages, whole_bytes, whole_overhead
            if most is not None and most < whole:
                count, placed = most, messages[:most]
                placed_bytes, overhead = body_bytes(placed), overhead_bytes(placed)
            if not count:
                continue
            logged_id = 0
            if queue.durable and (persistent or queue.keeps_transient):
                if not first_id:
                    logged = messages if most is None else _logged(placements, messages)
                    first_id = self._log.append_messages(
                        logged, whole_bytes if logged is messages else body_bytes(logged)
                    )
                logged_id = first_id
                self._log.append_operation(
                    Operation(
                        _ENQUEUE,
                        count,
                        queue.id,
                        queue.next_sequence,
                        first_id,
                        expires_ms,
                        priority,
                    )
                )
            run = Run(
                queue.next_sequence,
                count,
                first_id=logged_id,
                messages=placed,
                body_bytes=placed_bytes,
                memory_bytes=placed_bytes + overhead,
                expires_ms=expires_ms,
                priority=priority,
            )
            queue.next_sequence += count
            if withheld is not None:
                withheld.append((queue, run))
            else:
                self._append(queue, run)
                if expires_ms:
                    queue.watch((run,))
        return first_id != 0

    def spread(
        self,
        places: Mapping[Queue, Sequence[int]],
        messages: list[Message],
        whole_bytes: int,
        *,
        priority: int,
    ) -> bool:
        """Put messages in queues, each in some of them: see `Store.spread`."""
        columns = [
            messages if len(at) == len(messages) else [messages[index] for index in at]
            for at in places.values()
        ]
        is_shared = len(columns) > 1 and sum(map(len, columns)) > len(messages)
        next_id = 0
        if messages[0].envelope.persistent and next(iter(places)).durable:
            logged = messages
            if len(columns) > 1 and not is_shared:
                # No queue shares one with another: those of each have contiguous ids.
                logged = list(chain.from_iterable(columns))
            next_id = self._log.append_messages(logged, whole_bytes)
        is_logged = next_id != 0
        append = self._log.append_operation
        for (queue, indexes), placed in zip(places.items(), columns, strict=True):
            sequence, count = queue.next_sequence, len(placed)
            queue.next_sequence = sequence + count
            placed_bytes = whole_bytes if placed is messages else body_bytes(placed)
            run = Run(
                sequence,
                count,
                first_id=next_id,
                messages=placed,
                body_bytes=placed_bytes,
                memory_bytes=placed_bytes + overhead_bytes(placed),
                priority=priority,
            )
            if is_logged and (not is_shared or placed is messages):
                append(Operation(_ENQUEUE, count, queue.id, sequence, next_id, 0, priority))
                if not is_shared:
                    next_id += count
            elif is_logged:
                run.ids = array("Q", [next_id + index for index in indexes])
                run.first_id = run.ids[0]
                append(SpreadEnqueue(queue.id, sequence, run.ids, priority))
            self._append(queue, run)
        return is_logged

    def _append(self, queue: Queue, run: Run) -> None:
        """Make a run that was just published ready."""
        ready, memory = queue.ready, self._memory
        # As `Queue.count_in`, without the call: this is the hot path.
        queue.ready_bytes += run.body_bytes
        if not run.first_id:
            queue.unlogged_count += run.count
            queue.unlogged_bytes += run.body_bytes
        if memory.is_excess(queue, is_logged=run.first_id > 0):
            # What leaves memory soon is not joined to what may stay.
            ready.append(run)
            memory.add(queue, run, run.memory_bytes)
        else:
            joined = ready.append_new(run, self._joined_bytes)
            memory.add(queue, joined, run.memory_bytes)


def _logged(placements: Sequence[Placement], messages: list[Message]) -> list[Message]:
    """Return the messages that go to any durable queue. The log holds no others."""
    count = 0
    for queue, _, most in placements:
        if queue.durable:
            if most is None:
                return messages
            count = max(count, most)
    return messages[:count]
