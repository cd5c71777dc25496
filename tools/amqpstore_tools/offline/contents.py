"""Messages and transactions, decoded for people: malformed parts are shown as bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from amqpstore.format.batches import StoredBatch
from amqpstore.format.message import Message
from amqpstore.format.records import (
    MessageDecoder,
    Operation,
    OperationKind,
    Record,
    decode_message,
    head_size,
)
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.errors import MalformedError
from amqpstore_server.protocol.field_table import Timestamp
from amqpstore_tools.offline.segments import SegmentImage

PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""The properties of class basic, in their order on the wire; the first has the flag of the highest
bit.
"""


class StoredMessage(NamedTuple):
    """A sound MESSAGE record, and its place."""

    segment: SegmentImage
    record: Record
    payload: bytes

    @property
    def id(self) -> int:
        """The message's id."""
        return self.record.number

    def message(self, decoder: MessageDecoder) -> Message:
        """Decode the message. Raises: ValueError, when the payload is inconsistent, or the body
        cannot be decompressed.
        """
        return decode_message(self.payload, self.record.flags, decoder)

    def head(self) -> Message:
        """Decode the message with its body as it is on disk, which may be compressed. Raises:
        ValueError.
        """
        return decode_message(self.payload, 0, MessageDecoder({}, bytes))

    @property
    def stored_body_bytes(self) -> int:
        """Size of the body on disk; of the whole payload if its lengths are inconsistent."""
        try:
            return len(self.payload) - head_size(self.payload)
        except ValueError:
            return len(self.payload)


class TransactionImage(NamedTuple):
    """A sound TRANSACTION record: its batch starts at `batch_offset` of the segment."""

    segment: SegmentImage
    record: Record
    batch_offset: int
    message_count: int
    time_ms: int
    operations: list[Operation]

    @classmethod
    def of(cls, segment: SegmentImage, batch: StoredBatch) -> TransactionImage | None:
        """Return the transaction of a batch; None without a sound TRANSACTION."""
        record = batch.transaction
        if record is None:
            return None
        first = batch.messages[0] if batch.messages else record
        count = len(batch.messages)
        return cls(segment, record, first.offset, count, batch.time_ms, batch.operations)

    @property
    def lsn(self) -> int:
        """The log sequence number of the batch."""
        return self.record.number


def operation_name(kind: int) -> str:
    """Return the name of an operation in FORMAT.md; its number if it is unknown here."""
    try:
        return OperationKind(kind).name
    except ValueError:
        return f"kind {kind}"


def properties_of(raw: bytes) -> dict[str, Any]:
    """Decode content properties, by name, as plain values (see `plain`).

    Raises: ValueError, when they are not properties of class basic: a library may store others.
    """
    try:
        decoded = decode_properties(raw)
    except MalformedError as error:
        raise ValueError(str(error)) from None
    found = {name: getattr(decoded, name) for name in PROPERTIES}
    return {name: plain(value) for name, value in found.items() if value is not None}


def edited_properties(
    raw: bytes,
    *,
    headers: Mapping[str, Any],
    without_headers: Collection[str],
    **properties: Any,
) -> bytes:
    """Change some properties and headers; everything else stays the same, byte for byte.

    Raises: ValueError, for a value that does not fit.
    """
    return edit_properties(raw, headers=headers, without_headers=without_headers, **properties)


def plain(value: Any) -> Any:
    """Convert a value of a field table, or of the catalog, for JSON.

    Bytes become text if they are UTF-8 and `{"hex": ...}` otherwise, decimals become text. The
    value may be nested to any depth.
    """
    result: list[Any] = [None]
    todo: list[tuple[Any, Any, Any]] = [(value, result, 0)]
    while todo:
        item, parent, index = todo.pop()
        made: Any
        if isinstance(item, dict):
            made = {}
            # The first is the next to be taken: so the keys keep their order.
            todo += [(two, made, str(plain_key(key))) for key, two in reversed(item.items())]
        elif isinstance(item, (list, tuple)):
            made = [None] * len(item)
            todo += [(two, made, number) for number, two in enumerate(item)]
        else:
            made = _plain_value(item)
        parent[index] = made
    return result[0]


def _plain_value(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"hex": bytes(value).hex()}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Timestamp):
        return int(value)
    return value


def plain_key(key: Any) -> Any:
    """Convert a key of a map to text or a number."""
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
