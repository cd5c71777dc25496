"""The lines of a file of exported messages, as JSON Lines or as msgpack.

Each line is an object with a `type`: one `export` at the start, a `queue` before the messages of
each, the `message`s, and one `end`, which shows that the file is complete. In msgpack a line is a
map, and the maps follow each other directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import IO, Any, NamedTuple

import msgpack
import msgspec

from amqpstore.format.message import MAX_NAME_BYTES
from amqpstore_tools.offline.exits import ToolError
from amqpstore_tools.transfer.fields import FieldError, as_bytes
from amqpstore_tools.transfer.properties import decode_properties, encode_properties
from amqpstore_tools.transfer.shapes import PropertyShapes

VERSION = 1
FORMATS = ("jsonl", "msgpack")

_MAX_BYTES = 1 << 31

_SAMPLE = 32
"""Properties that are compared, to see whether they repeat."""


class TransferError(ToolError):
    """A file of messages cannot be read, or used. The message says where."""


@dataclass(frozen=True)
class QueueKey:
    """Identifies a queue of a store: each priority level of a broker's queue is one."""

    vhost: str | None
    name: str | None
    level: int = 0

    @property
    def label(self) -> str:
        """The queue of the broker, as text for people: the same for all of its levels."""
        return f"{self.name!r} in virtual host {self.vhost!r}"

    def __str__(self) -> str:
        return f"{self.label}, level {self.level}" if self.level else self.label


@dataclass
class QueueLine:
    """A queue; `definition` is its owner's, as in the catalog."""

    key: QueueKey
    definition: Any


@dataclass(slots=True)
class MessageLine:
    """A message of the queue `key`. `sequence` and `id` are those in its original store.

    `priority`, `expires_ms` and `deliveries` are the store's values: see FORMAT.md.
    """

    key: QueueKey
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    sequence: int = 0
    id: int = 0
    priority: int = 0
    expires_ms: int = 0
    deliveries: int = 0


class MessageColumns(NamedTuple):
    """Messages of the queue `key`, a column each, which are as in `MessageLine`. One whose body is
    None cannot be read.
    """

    key: QueueKey
    exchanges: Sequence[str]
    routing_keys: Sequence[str]
    properties: Sequence[bytes]
    bodies: Sequence[bytes | None]
    sequences: Sequence[int]
    ids: Sequence[int]
    priorities: Sequence[int]
    expires_ms: Sequence[int]
    deliveries: Sequence[int]

    def readable(self) -> MessageColumns:
        """Return those that can be read."""
        if None not in self.bodies:
            return self
        there = [body is not None for body in self.bodies]
        columns: list[Sequence[Any]] = [*self[1:]]
        return MessageColumns(self.key, *(list(compress(column, there)) for column in columns))


@dataclass
class ExportLine:
    """The first line."""

    store_id: str
    exported_at: str
    format: int = VERSION


@dataclass
class EndLine:
    """The last line: how many messages there are, and how many could not be read."""

    messages: int
    unreadable: int = 0


Line = ExportLine | QueueLine | MessageLine | EndLine


class _MessageObject(msgspec.Struct, tag_field="type", tag="message", omit_defaults=True, gc=False):
    """A message as it is written: the fields in their order, without those that are 0.

    The defaults of the last ones are not valid, so that they are always written.
    """

    vhost: str | None
    queue: str | None
    level: int = 0
    sequence: int = 0
    id: int = 0
    priority: int = 0
    expires_ms: int = 0
    deliveries: int = 0
    exchange: str | None = None
    routing_key: str | None = None
    properties: Any = None
    body: Any = None


class LineWriter:
    """Writes lines to a file, in one of the formats."""

    def __init__(self, file: IO[bytes], format_name: str) -> None:
        self._file = file
        self._is_json = format_name == "jsonl"
        self._json = msgspec.json.Encoder()
        self._shapes = PropertyShapes()
        self._msgpack = msgspec.msgpack.Encoder()

    def write(self, line: Line) -> int:
        """Write a line. Returns its size in bytes. Raises: OSError."""
        if isinstance(line, MessageLine):
            return self.write_messages(
                MessageColumns(
                    line.key,
                    [line.exchange],
                    [line.routing_key],
                    [line.properties],
                    [line.body],
                    [line.sequence],
                    [line.id],
                    [line.priority],
                    [line.expires_ms],
                    [line.deliveries],
                )
            )
        plain = _plain(line)
        return self._write(
            self._json.encode(plain) + b"\n" if self._is_json else msgpack.packb(plain)
        )

    def write_messages(self, messages: MessageColumns) -> int:
        """Write messages that can be read. Returns their size in bytes. Raises: OSError."""
        key = messages.key
        bodies = messages.bodies
        lines = map(
            _MessageObject,
            repeat(key.vhost),
            repeat(key.name),
            repeat(key.level),
            messages.sequences,
            messages.ids,
            messages.priorities,
            messages.expires_ms,
            messages.deliveries,
            messages.exchanges,
            messages.routing_keys,
            self._properties(messages.properties),
            _json_bodies(bodies) if self._is_json else bodies,
        )
        if self._is_json:
            return self._write(self._json.encode_lines(list(lines)))
        return self._write(b"".join(map(self._msgpack.encode, lines)))

    def _properties(self, column: Sequence[bytes]) -> Sequence[Any]:
        """Return properties as they are to be encoded."""
        if len(set(column[:_SAMPLE])) < _SAMPLE // 4 and len(column) > _SAMPLE:
            # Properties that repeat, as those of many programs do, are decoded once.
            distinct = list(set(column))
            decoded = dict(zip(distinct, map(decode_properties, distinct), strict=True))
            return [decoded[raw] for raw in column]
        if self._is_json:
            return self._shapes.json_values(column)
        return list(map(decode_properties, column))

    def _write(self, encoded: bytes) -> int:
        self._file.write(encoded)
        return len(encoded)


def read_lines(file: IO[bytes]) -> Iterator[tuple[Line, int]]:
    """Yield the lines of a file, and how many bytes of it were read so far. The format is detected.

    Raises: TransferError, also if the file has no end line; OSError.
    """
    number = 0
    line: Line | None = None
    messages = 0
    for number, (plain, read) in enumerate(_read(file), 1):
        try:
            line = _line(plain)
        except (FieldError, KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise TransferError(f"line {number} does not belong in an export: {reason}") from None
        if number == 1 and not isinstance(line, ExportLine):
            raise TransferError("line 1 is not the first line of an export")
        if isinstance(line, EndLine) and line.messages != messages:
            raise TransferError(
                f"the file has {messages} messages, but {line.messages} were written: it is damaged"
            )
        messages += isinstance(line, MessageLine)
        yield line, read
    if not isinstance(line, EndLine):
        raise TransferError(
            f"the file ends at line {number}, without its end line: it is incomplete. Export again."
        )


def _read(file: IO[bytes]) -> Iterator[tuple[Any, int]]:
    first = file.read(1)
    read = 0
    if first == b"{":
        rest: bytes
        for rest in file:
            text = first + rest
            first = b""
            read += len(text)
            try:
                yield msgspec.json.decode(text), read
            except (msgspec.DecodeError, RecursionError) as error:
                raise TransferError(f"after byte {read - len(text)}: {error}") from None
        return
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=_MAX_BYTES, raw=False)
    content = first
    try:
        while content:
            unpacker.feed(content)
            for plain in unpacker:
                yield plain, unpacker.tell()
            content = file.read(1 << 20)
    except (msgpack.UnpackException, ValueError) as error:
        raise TransferError(f"after byte {unpacker.tell()}: {error!r}") from None


def _plain(line: ExportLine | QueueLine | EndLine) -> dict[str, Any]:
    if isinstance(line, ExportLine):
        return {
            "type": "export",
            "format": line.format,
            "store_id": line.store_id,
            "exported_at": line.exported_at,
        }
    if isinstance(line, EndLine):
        return {"type": "end", "messages": line.messages, "unreadable": line.unreadable}
    key = line.key
    plain: dict[str, Any] = {"type": "queue", "vhost": key.vhost, "queue": key.name}
    if key.level:
        plain["level"] = key.level
    plain["definition"] = msgpack.packb(line.definition)
    return plain


def _json_bodies(bodies: Sequence[bytes | None]) -> list[Any]:
    """Return bodies as they are in JSON."""
    return [
        body.decode() if body and body.isascii() and b"\0" not in body else _json_body(body)
        for body in bodies
    ]


def _json_body(body: bytes | None) -> Any:
    """Return a body as it is in JSON."""
    # JSON has six characters for a NUL: a body of many takes less space as base64.
    if body is not None and b"\0" not in body:
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": body}


def _line(plain: Any) -> Line:
    if not isinstance(plain, dict):
        raise FieldError("it is not an object")
    kind = plain["type"]
    if kind == "export":
        if plain["format"] != VERSION:
            raise FieldError(f"it has format {plain['format']}; this amqpstore reads {VERSION}")
        return ExportLine(_str(plain, "store_id"), _str(plain, "exported_at"), plain["format"])
    if kind == "end":
        return EndLine(_int(plain, "messages"), _int(plain, "unreadable"))
    key = QueueKey(_name(plain, "vhost"), _name(plain, "queue"), _int(plain, "level"))
    if kind == "queue":
        return QueueLine(key, msgpack.unpackb(as_bytes(plain["definition"]), strict_map_key=False))
    if kind != "message":
        raise FieldError(f"{kind!r} is not a type of line")
    if not isinstance(plain["properties"], dict):
        raise FieldError("its properties are not an object")
    return MessageLine(
        key,
        _short(plain, "exchange"),
        _short(plain, "routing_key"),
        encode_properties(plain["properties"]),
        _body(plain["body"]),
        _int(plain, "sequence"),
        _int(plain, "id"),
        _int(plain, "priority", 255),
        _int(plain, "expires_ms"),
        _int(plain, "deliveries", (1 << 32) - 1),
    )


def _body(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return as_bytes(value["base64"])
    raise FieldError("its body is neither a text nor base64")


def _str(plain: dict[str, Any], name: str) -> str:
    value = plain[name]
    if not isinstance(value, str):
        raise FieldError(f"{name} is not text: {value!r}")
    return value


def _short(plain: dict[str, Any], name: str) -> str:
    value = _str(plain, name)
    if (size := len(value.encode())) > MAX_NAME_BYTES:
        raise FieldError(f"{name} has at most {MAX_NAME_BYTES} bytes, not {size}")
    return value


def _name(plain: dict[str, Any], name: str) -> str | None:
    return None if plain[name] is None else _str(plain, name)


def _int(plain: dict[str, Any], name: str, most: int = (1 << 63) - 1) -> int:
    value = plain.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise FieldError(f"{name} cannot be {value!r}")
    return value
