"""Exports messages from a store to a file."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from amqpstore.format.index import Entries
from amqpstore_tools.offline.bulk_reading import BulkReader, Contents
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.transfer.lines import (
    EndLine,
    ExportLine,
    LineWriter,
    MessageColumns,
    QueueKey,
    QueueLine,
    TransferError,
)


class ExportedQueue(Protocol):
    """A queue whose messages can be exported: of a sound store, or of what is left of one."""

    @property
    def key(self) -> QueueKey: ...

    @property
    def definition(self) -> Any: ...

    @property
    def count(self) -> int:
        """The number of messages, readable or not."""

    @property
    def lost(self) -> int:
        """The number of messages that were not among its columns: nothing else is known of them."""

    def columns(self) -> Iterator[MessageColumns]:
        """Yield its messages in order. Raises: OSError."""


@dataclass
class Exported:
    """The result: messages by queue, those that could not be read, and bytes written."""

    messages: dict[str, int] = field(default_factory=dict)
    unreadable: Counter[str] = field(default_factory=Counter)
    total: int = 0
    bytes: int = 0


_Queue = TypeVar("_Queue", bound=ExportedQueue)


class ImageQueue:
    """A queue of a store as the next start would find it. Args: reader, of the store's messages."""

    def __init__(self, queue: QueueImage, reader: BulkReader) -> None:
        self._queue = queue
        self._reader = reader
        self.key = QueueKey(queue.vhost, queue.name, queue.level or 0)
        self.definition = queue.definition
        self.count = queue.live_count

    @property
    def lost(self) -> int:
        """The number of messages that were in index files that cannot be read."""
        return sum(one.live for one in self._queue.unreadable)

    def columns(self) -> Iterator[MessageColumns]:
        """Yield its messages in order. Raises: OSError."""
        for entries in self._queue.columns():
            start = 0
            for contents in self._reader.read(entries.ids):
                stop = start + len(contents.bodies)
                yield columns_of(self.key, contents, entries.slice(start, stop))
                start = stop


def queues_of(image: StoreImage) -> list[ImageQueue]:
    """Return the queues of a store that clients see."""
    reader = BulkReader(image.recovered.segments, image.decoder, image.seed)
    return [ImageQueue(queue, reader) for queue in image.queues if not queue.is_hidden]


def columns_of(key: QueueKey, contents: Contents, entries: Entries) -> MessageColumns:
    """Return messages of a queue, from their contents and their entries."""
    return MessageColumns(
        key,
        *contents,
        entries.sequences,
        entries.ids,
        entries.priorities,
        entries.expires_ms,
        entries.delivery_counts,
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
    for queue in queues:
        label = queue.key.label
        out.bytes += writer.write(QueueLine(queue.key, queue.definition))
        out.messages.setdefault(label, 0)
        unreadable = 0
        for messages in queue.columns():
            readable = messages.readable()
            out.bytes += writer.write_messages(readable)
            count = len(readable.bodies)
            unreadable += len(messages.bodies) - count
            out.messages[label] += count
            out.total += count
            progress("exporting", out.total, total)
        if unreadable := unreadable + queue.lost:
            out.unreadable[label] += unreadable
    progress("exporting", total, total)
    end = EndLine(out.total, out.unreadable.total())
    out.bytes += writer.write(end)
    return out
