"""Field tables: named values of many types, as arguments of methods and headers of messages.

The tags are those that RabbitMQ and Qpid use and clients send, which are not the ones printed in
section 4.2.1 (`s` is a 16-bit integer, not a short string; `l` and `L` are both signed). Each tag,
with its bytes and its Python type, has a row in server/PROTOCOL.md; a test compares them with this
module.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Context, Decimal
from typing import Any, TypeAlias

from amqpstore_server.protocol.bounds import (
    MAX_ARGUMENTS_DEPTH,
    MAX_DEPTH,
    MAX_ENTRIES,
    too_deep,
    too_many,
)
from amqpstore_server.protocol.errors import MalformedError, PreconditionFailed
from amqpstore_server.protocol.primitives import (
    LONG,
    number_reader,
    number_writer,
    read_long,
    read_longlong,
    read_longstr,
    read_octet,
    read_shortstr,
    truncated,
    write_longlong,
    write_longstr,
    write_octet,
    write_shortstr,
)

_OWN_DEPTH = MAX_DEPTH + 8
"""The depth of tables that the broker itself writes: they may have a client's tables inside."""

OWN_HEADERS = frozenset(
    {
        *("x-death", "x-death-omitted", "x-delivery-count"),
        *(
            f"x-{when}-death-{what}"
            for when in ("first", "last")
            for what in ("reason", "queue", "exchange")
        ),
    }
)
"""Headers that the broker adds, and takes back: they themselves do not count as entries."""

EMPTY_TABLE = bytes(LONG.size)
"""A table without fields, encoded."""


class Timestamp(int):
    """Seconds since 1970-01-01 UTC, unsigned 64 bits; a type of its own to keep its tag."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


class Int64(int):
    """An integer that is encoded in 64 bits (`l`), however small it is."""

    __slots__ = ()


class Encoded(bytes):
    """A value in its encoded form, with its tag."""

    __slots__ = ()


FieldValue: TypeAlias = (
    bool
    | int
    | float
    | str
    | bytes
    | bytearray
    | Decimal
    | Timestamp
    | list["FieldValue"]
    | dict[str, "FieldValue"]
    | None
)
"""The values of fields. int and float stand for all widths, bytes for tag `x`."""


def decode_table(buffer: bytes, offset: int) -> tuple[dict[str, FieldValue], int]:
    """Decode the table at `offset`; also returns the offset after it. Of equal names the last
    applies.

    Raises: MalformedError for anything that is not a table; PreconditionFailed for one beyond the
    limits above, before more of it is built.
    """
    most_entries = MAX_ENTRIES + len(OWN_HEADERS)
    table, end, count = _decode_container(_TABLE, buffer, offset, MAX_DEPTH, most_entries)
    if count > MAX_ENTRIES and count - len(OWN_HEADERS & table.keys()) > MAX_ENTRIES:
        raise _too_many()
    return table, end


def check_table(buffer: bytes, offset: int) -> tuple[int, int]:
    """Make sure that `decode_table` takes the table at `offset`, in a third of its time. Returns
    the number of entries in it and in all inside it, and the offset after it.

    Raises: as `decode_table`.
    """
    start, size = offset, len(buffer)
    try:
        offset = start + LONG.size
        end = offset + LONG.unpack_from(buffer, start)[0]
        count, has_names = 0, True
        around: list[tuple[int, bool]] = []
        # The decoder is a loop and not a recursion: a client chooses the depth.
        while end <= size and count <= MAX_ENTRIES and len(around) < MAX_DEPTH:
            if offset >= end:
                if offset > end:
                    break
                if not around:
                    return count, offset
                end, has_names = around.pop()
                continue
            if has_names:
                name = offset + 1
                offset = name + buffer[offset]
                # Names are UTF-8 for every consumer; values may be any bytes.
                buffer[name:offset].decode()
            count += 1
            tag = buffer[offset]
            width = _WIDTHS[tag]
            if width >= 0:
                offset += 1 + width
                continue
            offset += 1 + LONG.size
            length = LONG.unpack_from(buffer, offset - LONG.size)[0]
            if tag in _CONTAINERS:
                around.append((end, has_names))
                end, has_names = offset + length, tag == _TABLE
            else:
                offset += length
    except (LookupError, struct.error, UnicodeDecodeError):
        pass
    # It is not a table, or it has too much in it: what is wrong is said where values are read too.
    _, end = decode_table(buffer, start)
    return MAX_ENTRIES, end


def decode_arguments(buffer: bytes, offset: int) -> tuple[dict[str, FieldValue], int]:
    """Do as `decode_table`, for the arguments of a method."""
    table, end, _ = _decode_container(_TABLE, buffer, offset, MAX_ARGUMENTS_DEPTH, MAX_ENTRIES)
    return table, end


def decode_own_table(buffer: bytes, offset: int) -> tuple[dict[str, FieldValue], int]:
    """Decode a table that was accepted before, and to which the broker may have added entries."""
    try:
        table, end, _ = _decode_container(_TABLE, buffer, offset, _OWN_DEPTH, len(buffer))
    except PreconditionFailed as error:
        raise MalformedError(error.detail) from None
    return table, end


def count_entries(table: bytes) -> int:
    """Return the number of entries of an encoded table that was accepted before, of everything
    inside it together.
    """
    count, offset = 0, LONG.size
    ends = [(len(table), True)]
    while ends:
        end, has_names = ends[-1]
        if offset >= end:
            ends.pop()
            continue
        count += 1
        if has_names:
            offset += 1 + table[offset]
        tag = table[offset]
        width = _WIDTHS[tag]
        offset += 1
        if width < 0:
            width = LONG.unpack_from(table, offset)[0]
            offset += LONG.size
        if tag in _CONTAINERS:
            ends.append((offset + width, tag == _TABLE))
        else:
            offset += width
    return count


def encode_table(table: Mapping[str, FieldValue]) -> bytes:
    """Encode a table with its length, each value under the tag of its Python type.

    An int is 32 bits wide (`I`) if that is enough, otherwise 64 (`l`). A table that `decode_table`
    returned encodes to an equal table, though not always to the same bytes: narrower and unsigned
    integers, `f` and an `S` that is not UTF-8 (bytes, hence `x`) get the tags above.

    Raises: ValueError for a number that no tag can hold; TypeError for a type that has no tag.
    """
    return _encode_container(table)[1:]


def split_table(table: bytes) -> dict[bytes, bytes]:
    """Return the fields of an encoded table that was accepted before: values by name, both encoded,
    whatever is in them.

    Raises: MalformedError, if they do not end where it ends.
    """
    fields: dict[bytes, bytes] = {}
    offset, end = LONG.size, len(table)
    try:
        while offset < end:
            start = offset + 1 + table[offset]
            width = _WIDTHS[table[start]]
            if width < 0:
                width = 4 + int.from_bytes(table[start + 1 : start + 5])
            name, offset = table[offset:start], start + 1 + width
            fields[name] = table[start:offset]
    except LookupError:
        raise MalformedError(f"there is no field at byte {offset} of a table") from None
    _check_end("table", offset, end)
    return fields


def without_fields(table: bytes, names: Iterable[bytes]) -> bytes:
    """Return an encoded table that was accepted before without the fields of some names, which are
    encoded too. No further than to the last of them it is looked at.
    """
    candidates = set()
    for name in names:
        at = table.find(name, LONG.size)
        while at >= 0:
            candidates.add(at)
            at = table.find(name, at + 1)
    if not candidates:
        return table
    kept = []
    last = max(candidates)
    start = offset = LONG.size
    while offset <= last:
        # What was found may stand in a value.
        at, offset = offset, offset + 1 + table[offset]
        width = _WIDTHS[table[offset]]
        offset += 1
        if width < 0:
            width = LONG.size + LONG.unpack_from(table, offset)[0]
        offset += width
        if at in candidates:
            kept.append(table[start:at])
            start = offset
    return write_longstr(b"".join((*kept, table[start:])))


def without_first(table: bytes, name: bytes) -> bytes:
    """Return an encoded table that was accepted before without its first field, if that has this
    name, which is encoded too, and is a table.
    """
    if not table.startswith(name + b"F", LONG.size):
        return table
    at = LONG.size + len(name) + 1
    end = at + LONG.size + LONG.unpack_from(table, at)[0]
    return write_longstr(table[end:])


def join_table(fields: Mapping[bytes, bytes]) -> bytes:
    """Encode a table: values by name, both encoded."""
    return write_longstr(b"".join([part for field in fields.items() for part in field]))


def table_of(*fields: bytes) -> bytes:
    """Encode a table as a value, with its tag. Args: fields, names and values, all encoded."""
    return b"F" + write_longstr(b"".join(fields))


def array_of(values: Iterable[bytes]) -> bytes:
    """Encode an array as a value, with its tag. Args: values, encoded."""
    return b"A" + write_longstr(b"".join(values))


def encode_name(name: str) -> bytes:
    """Encode the name of a field. Raises: ValueError, if it is too long."""
    return write_shortstr(name)


def split_array(array: bytes) -> list[bytes]:
    """Return the values of an array, which begins with its tag and was accepted before, encoded.

    Raises: MalformedError, if they do not end where it ends.
    """
    values = []
    offset, end = 1 + LONG.size, len(array)
    try:
        while offset < end:
            width = _WIDTHS[array[offset]]
            if width < 0:
                width = 4 + int.from_bytes(array[offset + 1 : offset + 5])
            start, offset = offset, offset + 1 + width
            values.append(array[start:offset])
    except LookupError:
        raise MalformedError(f"there is no value at byte {offset} of an array") from None
    _check_end("array", offset, end)
    return values


def decode_value(value: bytes) -> FieldValue:
    """Decode a value that was accepted before. Raises: MalformedError."""
    tag = value[0]
    if tag in _CONTAINERS:
        container: list[FieldValue] | dict[str, FieldValue]
        container, _, _ = _decode_container(tag, value, 1, _OWN_DEPTH, len(value))
        return container
    return _READERS[tag](value, 1)[0]


_WIDTHS = {
    tag: width
    for tags, width in (
        (b"V", 0),
        (b"tbB", 1),
        (b"sUu", 2),
        (b"Iif", 4),
        (b"D", 5),
        (b"lLdT", 8),
        (b"SxAF", -1),
    )
    for tag in tags
}
"""The bytes of a value behind its tag; -1 if it begins with their number."""

_NUMBERS = {
    ord(tag): (struct.Struct(f">{layout}"), type_name)
    for tag, layout, type_name in (
        ("b", "b", "int8"),
        ("B", "B", "uint8"),
        ("s", "h", "int16"),
        ("U", "h", "int16"),
        ("u", "H", "uint16"),
        ("I", "i", "int32"),
        ("i", "I", "uint32"),
        ("l", "q", "int64"),
        ("L", "q", "int64"),
        ("f", "f", "float"),
        ("d", "d", "double"),
    )
}
_FIXED_READERS = {tag: number_reader(*number) for tag, number in _NUMBERS.items()}
_read_decimal_digits = number_reader(struct.Struct(">i"), "decimal")


_EXACT = Context(prec=10, Emin=-999, Emax=999)
"""A context that rounds no decimal: it has room for the digits of 32 bits, at any scale."""


def _read_bool(buffer: bytes, offset: int) -> tuple[bool, int]:
    octet, offset = read_octet(buffer, offset)
    return octet != 0, offset


def _read_decimal(buffer: bytes, offset: int) -> tuple[Decimal, int]:
    scale, offset = read_octet(buffer, offset)
    unscaled, offset = _read_decimal_digits(buffer, offset)
    # In a context of its own: that of the thread may round it.
    return _EXACT.scaleb(Decimal(unscaled), -scale), offset


def _read_string(buffer: bytes, offset: int) -> tuple[str | bytes, int]:
    """Return text if the bytes are UTF-8, as they nearly always are: the protocol does not require
    it.
    """
    value, offset = read_longstr(buffer, offset)
    try:
        return value.decode(), offset
    except UnicodeDecodeError:
        # As bytes: what a client has sent goes on as it was.
        return value, offset


def _read_timestamp(buffer: bytes, offset: int) -> tuple[Timestamp, int]:
    seconds, offset = read_longlong(buffer, offset)
    return Timestamp(seconds), offset


def _read_void(_buffer: bytes, offset: int) -> tuple[None, int]:
    return None, offset


_READERS: dict[int, Callable[[bytes, int], tuple[FieldValue, int]]] = {
    **_FIXED_READERS,
    ord("t"): _read_bool,
    ord("D"): _read_decimal,
    ord("S"): _read_string,
    ord("T"): _read_timestamp,
    ord("V"): _read_void,
    ord("x"): read_longstr,
}
_ARRAY = ord("A")
_STRING = ord("S")
_TABLE = ord("F")


_CONTAINERS = (_ARRAY, _TABLE)


def _decode_container(  # noqa: C901 - what it does not do itself costs a call for each entry
    tag: int, buffer: bytes, offset: int, most_depth: int, most_entries: int
) -> tuple[Any, int, int]:
    """Decode the table or array at `offset`, without its tag.

    Returns it with the offset after it, and the number of entries in it and in all inside it.
    Raises: MalformedError, PreconditionFailed.
    """
    top: Any = {} if tag == _TABLE else []
    offset, end = _bounds(tag, buffer, offset)
    container, is_table, count = top, tag == _TABLE, 0
    around: list[tuple[Any, bool, int]] = []
    size = len(buffer)
    # Names, tags, numbers and strings are read here and not by their readers: for 16,384 entries of
    # a table that halves the time for which everybody waits (8 ms, and 4).
    while True:
        while offset >= end:
            _check_end("table" if is_table else "array", offset, end)
            if not around:
                return top, offset, count
            container, is_table, end = around.pop()
        if is_table:
            start = offset + 1
            offset = start + buffer[offset]
            try:
                name = buffer[start:offset].decode()
            except UnicodeDecodeError:
                read_shortstr(buffer, start - 1)  # It raises what is to be said.
                raise
        count += 1
        if count > most_entries:
            raise _too_many()
        if offset >= size:
            raise truncated("octet", buffer, offset)
        tag = buffer[offset]
        offset += 1
        value: Any
        if (number := _NUMBERS.get(tag)) and offset + number[0].size <= size:
            (value,) = number[0].unpack_from(buffer, offset)
            offset += number[0].size
        elif tag == _STRING and offset + LONG.size <= size:
            start = offset + LONG.size
            offset = start + LONG.unpack_from(buffer, offset)[0]
            if offset > size:
                read_longstr(buffer, start - LONG.size)  # It raises what is to be said.
            try:
                value = buffer[start:offset].decode()
            except UnicodeDecodeError:
                value = buffer[start:offset]
        elif tag in _CONTAINERS:
            around.append((container, is_table, end))
            # The check comes before the container is begun: nothing of it is built.
            if len(around) >= most_depth:
                raise PreconditionFailed(too_deep("tables and arrays are", most_depth))
            value = {} if tag == _TABLE else []
            offset, inner_end = _bounds(tag, buffer, offset)
        else:
            reader = _READERS.get(tag)
            if reader is None:
                raise MalformedError(f"{bytes((tag,))!r} at byte {offset - 1} is not a field type")
            value, offset = reader(buffer, offset)
        if is_table:
            container[name] = value
        else:
            container.append(value)
        if tag in _CONTAINERS:
            container, is_table, end = value, tag == _TABLE, inner_end


def _bounds(tag: int, buffer: bytes, offset: int) -> tuple[int, int]:
    """Return where the entries of a container start and end."""
    length, start = read_long(buffer, offset)
    # A length is not believed before the bytes are there.
    if start + length > len(buffer):
        raise MalformedError(
            f"the {'table' if tag == _TABLE else 'array'} at byte {offset} has a length of "
            f"{length} bytes, and {len(buffer) - start} are there"
        )
    return start, start + length


def _check_end(kind: str, offset: int, end: int) -> None:
    if offset != end:
        raise MalformedError(f"the last entry of a {kind} runs past its end at byte {end}")


def _too_many() -> PreconditionFailed:
    return PreconditionFailed(too_many("a table"))


_write_int32 = number_writer(struct.Struct(">i"), "int32")
_write_int64 = number_writer(struct.Struct(">q"), "int64")
_write_double = number_writer(struct.Struct(">d"), "double")


def encode_value(value: FieldValue) -> bytes:
    """Encode a value with its tag: see `encode_table`. Raises: ValueError, TypeError."""
    writer = _WRITERS.get(type(value)) or next(
        (writer for kind, writer in _WRITERS.items() if isinstance(value, kind)), None
    )
    if writer is None:
        raise TypeError(f"{value!r} has a type that no field can have")
    return writer(value)


def _encode_int(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + _write_int32(value)
    return b"l" + _write_int64(value)


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    # Nothing wider than 10 digits fits; checked first, because 1E+999999 would be expanded.
    if not isinstance(exponent, int) or exponent + len(digits) > 10 or exponent < -255:
        raise ValueError(f"{value!r} does not fit the type decimal")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return b"D" + write_octet(max(-exponent, 0)) + _write_int32(-unscaled if sign else unscaled)


def _encode_container(value: Mapping[str, FieldValue] | list[FieldValue]) -> bytes:
    """Encode a table or an array, with its tag, and everything inside it."""
    around: list[tuple[bool, list[bytes], Iterator[Any]]] = []
    is_table, parts, entries = _begun(value)
    while True:
        for entry in entries:
            item = entry
            if is_table:
                name, item = entry
                parts.append(write_shortstr(name))
            if isinstance(item, (list, dict)):
                around.append((is_table, parts, entries))
                is_table, parts, entries = _begun(item)
                break
            parts.append(encode_value(item))
        else:
            encoded = (b"F" if is_table else b"A") + write_longstr(b"".join(parts))
            if not around:
                return encoded
            is_table, parts, entries = around.pop()
            parts.append(encoded)


def _begun(
    value: Mapping[str, FieldValue] | list[FieldValue],
) -> tuple[bool, list[bytes], Iterator[Any]]:
    if isinstance(value, list):
        return False, [], iter(value)
    return True, [], iter(value.items())


# The first type that fits is used, so bool and Timestamp come before int.
_WRITERS: dict[type, Callable[..., bytes]] = {
    Encoded: bytes,
    Int64: lambda value: b"l" + _write_int64(value),
    str: lambda value: b"S" + write_longstr(value.encode()),
    bool: lambda value: b"t\x01" if value else b"t\x00",
    Timestamp: lambda value: b"T" + write_longlong(value),
    int: _encode_int,
    float: lambda value: b"d" + _write_double(value),
    bytes: lambda value: b"x" + write_longstr(value),
    bytearray: lambda value: b"x" + write_longstr(value),
    Decimal: _encode_decimal,
    type(None): lambda _value: b"V",
    list: _encode_container,
    dict: _encode_container,
}
