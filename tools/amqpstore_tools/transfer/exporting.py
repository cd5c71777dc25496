"""Exports messages from a store to a file."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

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


@dataclass
class Exported:
    """The result: messages by queue, those that could not be read, and bytes written."""

    messages: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        """All messages that were written."""
        return sum(self.messages.values())


def key_of(queue: QueueImage) -> QueueKey:
    """Return how a file of messages names a queue."""
    return QueueKey(queue.vhost, queue.name, queue.level or 0)


def chosen(image: StoreImage, names: Collection[str] | None, vhost: str | None) -> list[QueueImage]:
    """Return queues of a store: with these names, of a virtual host, or all that clients see.

    Raises: TransferError, if one does not exist.
    """
    of_vhost = [
        queue
        for queue in image.queues
        if (vhost is None or queue.vhost == vhost) and not queue.is_hidden
    ]
    found = [queue for queue in of_vhost if names is None or queue.name in names]
    missing = set(names or ()) - {queue.name for queue in found}
    if missing or (vhost is not None and not of_vhost):
        there = ", ".join(sorted({str(queue.name) for queue in of_vhost})[:10])
        what = f"queue {min(missing)!r}" if missing else f"virtual host {vhost!r} with queues"
        raise TransferError(
            f"there is no {what} in {image.directory}. Available: {there or 'none'}"
        )
    return found


def export(
    image: StoreImage,
    writer: LineWriter,
    queues: Collection[QueueImage],
    progress: Progress = lambda *_: None,
) -> Exported:
    """Write the messages of some queues of a store, each queue in order. Raises: OSError."""
    out = Exported()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    store_id = image.store_id.hex if image.store_id else ""
    out.bytes += writer.write(ExportLine(store_id, now))
    total = sum(queue.live_count for queue in queues)
    for queue in queues:
        label = str(key_of(queue))
        out.bytes += writer.write(QueueLine(key_of(queue), queue.definition))
        out.messages[label] = 0
        unreadable = 0
        for line in _messages(image, queue):
            if line is None:
                unreadable += 1
                continue
            out.bytes += writer.write(line)
            out.messages[label] += 1
            progress("exporting", out.total, total)
        if unreadable := unreadable + sum(one.live for one in queue.unreadable):
            out.unreadable[label] = unreadable
    end = EndLine(out.total, sum(out.unreadable.values()))
    out.bytes += writer.write(end)
    return out


def _messages(image: StoreImage, queue: QueueImage) -> Iterator[MessageLine | None]:
    """Yield the messages of a queue; None for one that cannot be read."""
    key = key_of(queue)
    for columns in queue.columns():
        entries = list(map(Entry, *columns[:6]))
        for entry, (_, stored) in zip(entries, image.messages(columns.ids), strict=True):
            try:
                message = stored.message(image.decoder) if stored else None
            except ValueError:
                message = None
            if message is None:
                yield None
                continue
            envelope = message.envelope
            yield MessageLine(
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
