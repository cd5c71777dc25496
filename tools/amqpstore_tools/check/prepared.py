"""Prepared transactions: the messages that each will ack and publish must exist until it is
decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore_tools.check.catalog import FILE
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.history import LogHistory
from amqpstore_tools.check.index import Live


class Holdings:
    """Counts of the messages that queues hold: live entries of index files, and the changes in the
    log.

    Args: counted, messages of queues whose index files are not in `live`.
    """

    def __init__(
        self, live: Iterable[Live], history: LogHistory, counted: Mapping[int, int] | None = None
    ) -> None:
        self._history = history
        self._counted = counted or {}
        self._runs: dict[int, list[tuple[int, int]]] = {}
        for one in live:
            self._add(one.queue_id, one.first_sequence, len(one.sizes))
        for fresh in history.fresh:
            _, count, queue_id, first, *_ = fresh.operation
            self._add(queue_id, first, count)

    def _add(self, queue_id: int, first: int, count: int) -> None:
        runs = self._runs.setdefault(queue_id, [])
        if runs and runs[-1][1] == first:
            # Their ids are apart, perhaps, but not their sequences.
            runs[-1] = runs[-1][0], first + count
        else:
            runs.append((first, first + count))

    def count(self, queue_id: int, first: int = 0, end: int = 1 << 64) -> int:
        """Count the messages of a queue from sequence `first` to before `end`."""
        count = self._counted.get(queue_id, 0)
        for start, stop in self._runs.get(queue_id, ()):
            start, stop = max(start, first), min(stop, end)
            if start < stop:
                count += stop - start - self._history.removed_of(queue_id, start, stop)
        return count


def check_prepared(rows: Rows, holdings: Holdings, history: LogHistory, findings: Findings) -> None:
    """Check every undecided transaction. One whose queue is empty is decided, or was never
    prepared.
    """
    queue_ids = tables.QUEUES.read_keys(rows.__getitem__)
    for hidden, row in tables.PREPARED.read(rows.__getitem__).items():
        name = f"the prepared transaction of queue {hidden}"
        if hidden not in queue_ids:
            text = f"{name}: the queue is not there"
            findings.add("prepared-queue-missing", FILE, text, queue_id=hidden)
            continue
        if not holdings.count(hidden):
            continue
        # Between the sequences of a purge some may have been acked before it.
        for queue_id, first, count in () if row.purged else row.locked:
            if gone := history.removed_of(queue_id, first, first + count):
                text = f"{name} is to ack messages that have already left their queue"
                findings.add(
                    "prepared-incomplete",
                    FILE,
                    text,
                    queue_id=queue_id,
                    sequence=first,
                    messages=gone,
                )
        for first, count, *_ in row.publishes:
            # Transient messages are gone after a crash, all of a publish or none.
            if 0 < (there := holdings.count(hidden, first, first + count)) < count:
                text = f"{name} is to publish {count} messages, but only {there} of them exist"
                findings.add(
                    "prepared-incomplete",
                    FILE,
                    text,
                    queue_id=hidden,
                    sequence=first,
                    messages=count - there,
                )
