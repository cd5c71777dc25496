"""Exports messages from a store to a file."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from amqpstore.message import Message
from amqpstore_tools.offline.bulk_reading import BulkReader
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.queues import Entry, QueueImage
from amqpstore_tools.transfer.lines import (
    EndLine,
    ExportLine,
    LineWriter,
    MessageLine,
    QueueKey,
    QueueLine,
    TransferError,
)

_STEP = 1000
"""Messages between two signs of progress."""


class ExportedQueue(Protocol):
    """A queue whose messages can be exported: of a sound store, or of what is left of one."""

    @property
    def key(self) -> QueueKey: ...

    @property
    def definition(self) -> Any: ...

    @property
    def count(self) -> int:
        """How many messages it has, readable or not."""

    def lines(self) -> Iterator[MessageLine | None]:
        """Yield its messages in order; None for each that cannot be read. Raises: OSError."""


@dataclass
class Exported:
    """The result: messages by queue, those that could not be read, and bytes written."""

    messages: dict[str, int] = field(default_factory=dict)
    unreadable: Counter[str] = field(default_factory=Counter)
    total: int = 0
    bytes: int = 0


_Queue = TypeVar("_Queue", bound=ExportedQueue)


class ImageQueue:
    """A queue of a store as the next start would find it."""

    def __init__(self, image: StoreImage, queue: QueueImage) -> None:
        self._image = image
        self._queue = queue
        self.key = QueueKey(queue.vhost, queue.name, queue.level or 0)
        self.definition = queue.definition
        self.count = queue.live_count

    def lines(self) -> Iterator[MessageLine | None]:
        """Yield its messages in order; None for each that cannot be read. Raises: OSError."""
        image, queue = self._image, self._queue
        reader = BulkReader(image.recovered.segments, image.decoder)
        for columns in queue.columns():
            entries = map(Entry, *columns[:6])
            for entry, message in zip(entries, reader.read(columns.ids), strict=True):
                yield line_of(self.key, entry, message) if message else None
        for one in queue.unreadable:
            yield from (None for _ in range(one.live))


def queues_of(image: StoreImage) -> list[ImageQueue]:
    """Return the queues of a store that clients see."""
    return [ImageQueue(image, queue) for queue in image.queues if not queue.is_hidden]


def line_of(key: QueueKey, entry: Entry, message: Message) -> MessageLine:
    """Return the line of a message of a queue."""
    envelope = message.envelope
    return MessageLine(
        key,
        envelope.exchange,
        envelope.routing_key,
        envelope.properties,
        message.body,
        entry.sequence,
        entry.message_id,
        entry.priority,
        entry.expires_ms,
        entry.delivery_count,
    )


def chosen(
    queues: Sequence[_Queue], directory: str, names: Collection[str] | None, vhost: str | None
) -> list[_Queue]:
    """Return queues of the store in a directory: with these names, of a virtual host, or all.

    Raises: TransferError, if one does not exist.
    """
    of_vhost = [queue for queue in queues if vhost is None or queue.key.vhost == vhost]
    found = [queue for queue in of_vhost if names is None or queue.key.name in names]
    missing = set(names or ()) - {queue.key.name for queue in found}
    if missing or (vhost is not None and not of_vhost):
        there = ", ".join(sorted({str(queue.key.name) for queue in of_vhost})[:10])
        what = f"queue {min(missing)!r}" if missing else f"virtual host {vhost!r} with queues"
        raise TransferError(f"there is no {what} in {directory}. Available: {there or 'none'}")
    return found


def export(
    store_id: str,
    writer: LineWriter,
    queues: Iterable[ExportedQueue],
    progress: Progress = lambda *_: None,
) -> Exported:
    """Write the messages of some queues of a store, each queue in order. Raises: OSError."""
    out = Exported()
    queues = list(queues)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    out.bytes += writer.write(ExportLine(store_id, now))
    total = sum(queue.count for queue in queues)
    write = writer.write
    for queue in queues:
        label = str(queue.key)
        out.bytes += writer.write(QueueLine(queue.key, queue.definition))
        out.messages.setdefault(label, 0)
        count = 0
        for line in queue.lines():
            if line is None:
                out.unreadable[label] += 1
                continue
            out.bytes += write(line)
            count += 1
            if not count % _STEP:
                progress("exporting", out.total + count, total)
        out.messages[label] += count
        out.total += count
    progress("exporting", total, total)
    end = EndLine(out.total, out.unreadable.total())
    out.bytes += writer.write(end)
    return out
