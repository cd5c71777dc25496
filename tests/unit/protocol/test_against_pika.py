"""Methods, properties and tables go both ways through pika's codec, which is not ours."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pika.data
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties
from amqpstore_server.protocol.field_table import FieldValue, Timestamp, decode_table, encode_table
from amqpstore_server.protocol.layout import WireType
from amqpstore_server.protocol.methods import METHODS, BasicGet, Method, decode_method
from tests.unit.protocol import strategies

_spec: Any = pika.spec
_data: Any = pika.data

PIKA_NAMES = {
    "no_wait": "nowait",
    "global_": "global_qos",
    "failing_class_id": "class_id",
    "failing_method_id": "method_id",
}

OURS_ALONE = 100
"""The class dtx, which no other broker has."""

every_method = pytest.mark.parametrize(
    "cls",
    [pytest.param(cls, id=cls.name) for cls in METHODS.values() if cls.class_id != OURS_ALONE],
)


def as_pika(value: Any) -> Any:
    """A field value, or an argument, as pika has it."""
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, dict):
        return {key: as_pika(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_pika(inner) for inner in value]
    return value


def fields(method: Method) -> dict[str, Any]:
    """A method's arguments under pika's names, as pika has them, but for what it does not know."""
    return {
        PIKA_NAMES.get(argument.name, argument.name): as_pika(getattr(method, argument.name))
        for argument in method.layout.arguments
        if not argument.is_reserved and argument.wire_type is not WireType.TRAILING_TABLE
    }


def test_pika_knows_the_same_methods() -> None:
    """Pika has access.request and its answer besides, which AMQP 0-9-1 no longer has."""
    ids = {(index >> 16, index & 0xFFFF) for index in _spec.methods if index >> 16 != OURS_ALONE}
    assert {ids for ids in METHODS if ids[0] != OURS_ALONE} == ids - {(30, 10), (30, 11)}


@every_method
@strategies.for_each_method
@given(chooser=st.data())
def test_pika_reads_our_methods(cls: type[Method], chooser: st.DataObject) -> None:
    method = chooser.draw(strategies.methods_of(cls, floats=False))
    theirs_class = _spec.methods[cls.class_id << 16 | cls.method_id]
    theirs = theirs_class.__new__(theirs_class).decode(method.encode()[4:])
    expected = fields(method)
    if "new_secret" in expected:
        theirs.new_secret = theirs.mechanisms  # where pika 1.4 puts it, by mistake
    assert {name: getattr(theirs, name) for name in expected} == expected
    assert theirs.NAME.lower().replace(".", "") == cls.name.replace(".", "").replace("-", "")


@every_method
@strategies.for_each_method
@given(chooser=st.data())
def test_we_read_pikas_methods(cls: type[Method], chooser: st.DataObject) -> None:
    method = chooser.draw(strategies.methods_of(cls, floats=False))
    if isinstance(method, BasicGet):
        method = dataclasses.replace(method, arguments={})
    theirs = _spec.methods[cls.class_id << 16 | cls.method_id](**fields(method))
    ids = cls.class_id.to_bytes(2, "big") + cls.method_id.to_bytes(2, "big")
    assert decode_method(ids + b"".join(theirs.encode())) == method


@given(strategies.properties(floats=False))
def test_properties_both_ways(properties: BasicProperties) -> None:
    expected = {
        name: as_pika(getattr(properties, name)) for name in BasicProperties.__dataclass_fields__
    }
    theirs = _spec.BasicProperties()
    theirs.decode(encode_properties(properties))
    assert {name: getattr(theirs, name) for name in expected} == expected
    encoded = b"".join(_spec.BasicProperties(**expected).encode())
    assert decode_properties(encoded) == properties


@given(strategies.tables(floats=False))
def test_tables_both_ways(table: dict[str, FieldValue]) -> None:
    encoded = encode_table(table)
    assert _data.decode_table(encoded, 0) == (as_pika(table), len(encoded))
    pieces: list[bytes] = []
    size = _data.encode_table(pieces, as_pika(table))
    assert decode_table(b"".join(pieces), 0) == (table, size)
