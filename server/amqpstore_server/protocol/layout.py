"""The layout of a method's arguments on the wire, declared by the annotations of its class.

`MethodLayout` compiles the annotations, in their order, into steps that read and write. One that
is a ClassVar is a reserved argument: it is on the wire, empty, and not a field.

This module and `methods` do not use postponed annotations: they are evaluated here as objects.
"""

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin

from amqpstore_server.protocol import primitives
from amqpstore_server.protocol.errors import MalformedError
from amqpstore_server.protocol.field_table import FieldValue, decode_arguments, encode_table
from amqpstore_server.protocol.primitives import Reader, Writer


class WireType(Enum):
    """The specification's domains, reduced to their types on the wire (section 4.2.5).

    OCTETS is not in the specification: a shortstr of bytes that need not be UTF-8.
    """

    BIT = "bit"
    OCTET = "octet"
    SHORT = "short"
    LONG = "long"
    LONGLONG = "longlong"
    SHORTSTR = "shortstr"
    OCTETS = "octets"
    LONGSTR = "longstr"
    TABLE = "table"
    TRAILING_TABLE = "trailing table"
    """An extension: it may be left out, and is empty then. Only for the last argument."""


Bit = Annotated[bool, WireType.BIT]
Octet = Annotated[int, WireType.OCTET]
Short = Annotated[int, WireType.SHORT]
Long = Annotated[int, WireType.LONG]
LongLong = Annotated[int, WireType.LONGLONG]
ShortStr = Annotated[str, WireType.SHORTSTR]
Octets = Annotated[bytes, WireType.OCTETS]
LongStr = Annotated[bytes, WireType.LONGSTR]
Table = Annotated[dict[str, FieldValue], WireType.TABLE]
TrailingTable = Annotated[dict[str, FieldValue], WireType.TRAILING_TABLE]


def _read_trailing_table(payload: bytes, offset: int) -> tuple[dict[str, FieldValue], int]:
    return ({}, offset) if offset == len(payload) else decode_arguments(payload, offset)


def _write_trailing_table(table: dict[str, FieldValue]) -> bytes:
    return encode_table(table) if table else b""


_CODECS: dict[WireType, tuple[Reader, Writer, Any]] = {
    WireType.OCTET: (primitives.read_octet, primitives.write_octet, 0),
    WireType.SHORT: (primitives.read_short, primitives.write_short, 0),
    WireType.LONG: (primitives.read_long, primitives.write_long, 0),
    WireType.LONGLONG: (primitives.read_longlong, primitives.write_longlong, 0),
    WireType.SHORTSTR: (primitives.read_shortstr, primitives.write_shortstr, ""),
    WireType.OCTETS: (primitives.read_octets, primitives.write_octets, b""),
    WireType.LONGSTR: (primitives.read_longstr, primitives.write_longstr, b""),
    WireType.TABLE: (decode_arguments, encode_table, {}),
    WireType.TRAILING_TABLE: (_read_trailing_table, _write_trailing_table, {}),
}
"""Reader, writer and the value of a reserved argument. Bits share octets and are not here."""

_BITS_AN_OCTET = 8


class Argument(NamedTuple):
    """One argument on the wire. A reserved one is skipped when read, whatever its value."""

    name: str
    wire_type: WireType
    is_reserved: bool


class _Value(NamedTuple):
    """A step for one argument that is not a bit. `name` is empty for a reserved one."""

    name: str
    read: Reader
    write: Writer
    empty: Any


class _Bits(NamedTuple):
    """A step for up to eight consecutive bits, the first in the lowest bit of the octet."""

    names: tuple[str, ...]


class MethodLayout:
    """The arguments of one method."""

    __slots__ = ("_steps", "arguments")

    def __init__(self, annotations: dict[str, Any]) -> None:
        self.arguments = tuple(_argument(name, hint) for name, hint in annotations.items())
        self._steps: list[_Value | _Bits] = []
        for argument in self.arguments:
            name = "" if argument.is_reserved else argument.name
            last = self._steps[-1] if self._steps else None
            if argument.wire_type is not WireType.BIT:
                self._steps.append(_Value(name, *_CODECS[argument.wire_type]))
            elif isinstance(last, _Bits) and len(last.names) < _BITS_AN_OCTET:
                self._steps[-1] = _Bits((*last.names, name))
            else:
                self._steps.append(_Bits((name,)))

    def decode(self, payload: bytes, offset: int) -> dict[str, Any]:
        """Decode the arguments that fill `payload` from `offset` on.

        Raises: MalformedError if the payload is too short, malformed, or too long;
        PreconditionFailed for a table that is too large.
        """
        fields: dict[str, Any] = {}
        for step in self._steps:
            if isinstance(step, _Bits):
                octet, offset = primitives.read_octet(payload, offset)
                for index, name in enumerate(step.names):
                    fields[name] = bool(octet >> index & 1)
            else:
                fields[step.name], offset = step.read(payload, offset)
        if offset != len(payload):
            raise MalformedError(f"{len(payload) - offset} bytes behind the last argument")
        fields.pop("", None)
        return fields

    def encode(self, field: Callable[[str], Any]) -> bytes:
        """Encode the arguments; `field` returns a field's value. Raises: ValueError for a value
        that does not fit.
        """
        parts: list[bytes] = []
        for step in self._steps:
            if isinstance(step, _Bits):
                octet = sum(
                    1 << index for index, name in enumerate(step.names) if name and field(name)
                )
                parts.append(bytes((octet,)))
            else:
                parts.append(step.write(field(step.name) if step.name else step.empty))
        return b"".join(parts)


def _argument(name: str, hint: Any) -> Argument:
    is_reserved = get_origin(hint) is ClassVar
    if is_reserved:
        (hint,) = get_args(hint)
    (wire_type,) = hint.__metadata__
    return Argument(name, wire_type, is_reserved)
