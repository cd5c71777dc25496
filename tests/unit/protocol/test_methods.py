"""Methods: wire examples written by hand, and every method through bytes and back."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.protocol import methods as m
from amqpstore_server.protocol.errors import MalformedError, NotImplementedByServer
from amqpstore_server.protocol.layout import Bit, MethodLayout, WireType
from tests.unit.protocol import strategies

EXAMPLES: list[tuple[str, m.Method]] = [
    (
        "000a000a 00 09 0000000b 05 6166746572 53 00000000 00000005 504c41494e 00000002 656e",
        m.ConnectionStart(
            version_major=0,
            version_minor=9,
            server_properties={"after": ""},
            mechanisms=b"PLAIN",
            locales=b"en",
        ),
    ),
    (
        "000a000b 00000000 05 504c41494e 00000004 00610062 05 656e5f5553",
        m.ConnectionStartOk(mechanism="PLAIN", response=b"\0a\0b", locale="en_US"),
    ),
    (
        "000a001e 07ff 00020000 003c",
        m.ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60),
    ),
    ("000a0028 01 2f 00 00", m.ConnectionOpen(virtual_host="/")),
    ("000a0029 00", m.ConnectionOpenOk()),
    (
        "000a0032 0194 02 c3a9 0032 000a",
        m.ConnectionClose(
            reply_code=404, reply_text="é", failing_class_id=50, failing_method_id=10
        ),
    ),
    ("000a0033", m.ConnectionCloseOk()),
    ("0014000a 00", m.ChannelOpen()),
    ("0014000b 00000000", m.ChannelOpenOk()),
    ("00140014 01", m.ChannelFlow(active=True)),
    (
        "0028000a 0000 01 65 06 6469726563740a 00000000",
        m.ExchangeDeclare(exchange="e", type="direct", durable=True, internal=True),
    ),
    (
        "0032000a 0000 01 71 1f 00000004 01 61 74 01",
        m.QueueDeclare(
            queue="q",
            passive=True,
            durable=True,
            exclusive=True,
            auto_delete=True,
            no_wait=True,
            arguments={"a": True},
        ),
    ),
    (
        "0032000b 01 71 00000001 ffffffff",
        m.QueueDeclareOk(queue="q", message_count=1, consumer_count=(1 << 32) - 1),
    ),
    ("003c000a 00000000 000a 01", m.BasicQos(prefetch_size=0, prefetch_count=10, global_=True)),
    (
        "003c0014 0000 01 71 00 02 00000000",
        m.BasicConsume(queue="q", consumer_tag="", no_ack=True),
    ),
    ("003c0028 0000 00 01 71 01", m.BasicPublish(exchange="", routing_key="q", mandatory=True)),
    (
        "003c003c 01 63 ffffffffffffffff 00 00 01 71",
        m.BasicDeliver(consumer_tag="c", delivery_tag=(1 << 64) - 1, exchange="", routing_key="q"),
    ),
    ("003c0046 0000 01 71 01", m.BasicGet(queue="q", no_ack=True)),
    ("003c0048 00", m.BasicGetEmpty()),
    ("003c0050 0000000000000007 01", m.BasicAck(delivery_tag=7, multiple=True)),
    ("003c0078 0000000000000007 02", m.BasicNack(delivery_tag=7, requeue=True)),
    ("0055000a 01", m.ConfirmSelect(no_wait=True)),
    ("005a000a", m.TxSelect()),
]
every_example = pytest.mark.parametrize(
    ("wire", "method"),
    [pytest.param(bytes.fromhex(wire), method, id=method.name) for wire, method in EXAMPLES],
)
every_method = pytest.mark.parametrize(
    "cls", [pytest.param(cls, id=cls.name) for cls in m.METHODS.values()]
)


@every_example
def test_an_example_is_read_and_written(wire: bytes, method: m.Method) -> None:
    assert m.decode_method(wire) == method
    assert method.encode() == wire


@every_example
def test_every_truncation_of_an_example_is_malformed(wire: bytes, method: m.Method) -> None:
    for size in range(len(wire)):
        with pytest.raises(MalformedError, match=r"past the end|are there|no class and") as caught:
            m.decode_method(wire[:size])
        ids = (caught.value.class_id, caught.value.method_id)
        assert ids == ((0, 0) if size < 4 else (method.class_id, method.method_id))


@every_example
def test_bytes_behind_the_arguments_are_malformed(wire: bytes, method: m.Method) -> None:
    # Behind a basic.get they may be its arguments, and are too few for these.
    reason = "past the end|are there" if isinstance(method, m.BasicGet) else "behind the last"
    with pytest.raises(MalformedError, match=reason):
        m.decode_method(wire + b"\0")


@every_method
@strategies.for_each_method
@given(chooser=st.data())
def test_what_is_written_is_read(cls: type[m.Method], chooser: st.DataObject) -> None:
    method = chooser.draw(strategies.methods_of(cls))
    payload = method.encode()
    decoded = m.decode_method(payload)
    assert type(decoded) is cls
    assert decoded == method
    assert decoded.encode() == payload


@given(strategies.methods)
def test_every_truncation_is_malformed(method: m.Method) -> None:
    payload = method.encode()
    without_its_arguments = None
    if isinstance(method, m.BasicGet):
        without_its_arguments = dataclasses.replace(method, arguments={}).encode()
    for size in range(len(payload)):
        if payload[:size] != without_its_arguments:
            with pytest.raises(MalformedError):
                m.decode_method(payload[:size])


def test_a_get_may_have_arguments_behind_all_that_the_specification_gives_it() -> None:
    wire = bytes.fromhex("003c0046 0000 01 71 00 0000000c 06 782d77616974 49 000003e8")
    get = m.BasicGet(queue="q", arguments={"x-wait": 1000})
    assert m.decode_method(wire) == get
    assert get.encode() == wire
    assert m.decode_method(wire[:9]) == m.BasicGet(queue="q")
    for size in range(10, len(wire)):
        with pytest.raises(MalformedError):
            m.decode_method(wire[:size])
    with pytest.raises(MalformedError, match="behind the last argument"):
        m.decode_method(wire + b"\0")


def test_reserved_arguments_may_hold_anything() -> None:
    assert m.decode_method(bytes.fromhex("0014000a 03 616263")) == m.ChannelOpen()
    assert m.decode_method(bytes.fromhex("000a0028 01 2f 01 78 01")) == m.ConnectionOpen(
        virtual_host="/"
    )
    assert m.decode_method(bytes.fromhex("003c0028 ffff 00 00 00")) == m.BasicPublish(
        exchange="", routing_key=""
    )


def test_a_reserved_argument_must_be_well_formed() -> None:
    with pytest.raises(MalformedError):
        m.decode_method(bytes.fromhex("0014000a 03 6162"))


def test_bits_that_no_argument_has_are_ignored() -> None:
    """Every broker ignores them: the specification leaves the rest of a bit octet open."""
    assert m.decode_method(bytes.fromhex("00140014 ff")) == m.ChannelFlow(active=True)


@pytest.mark.parametrize("ids", [(60, 41), (1, 10), (0, 0), (65535, 65535), (30, 10)])
def test_an_unknown_method_is_not_implemented(ids: tuple[int, int]) -> None:
    class_id, method_id = ids
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + b"rest"
    with pytest.raises(NotImplementedByServer) as caught:
        m.decode_method(payload)
    assert (caught.value.class_id, caught.value.method_id) == ids
    assert f"class {class_id} method {method_id}" in caught.value.reply_text


def test_a_short_string_must_be_utf_8() -> None:
    with pytest.raises(MalformedError, match="UTF-8"):
        m.decode_method(bytes.fromhex("000a0028 01 ff 00 00"))


@pytest.mark.parametrize(
    "method",
    [
        m.BasicGet(queue="é" * 128),
        m.BasicGet(queue="\ud800"),
        m.BasicAck(delivery_tag=1 << 64),
        m.BasicAck(delivery_tag=-1),
        m.ChannelClose(reply_code=1 << 16, reply_text="", failing_class_id=0, failing_method_id=0),
        m.QueueDeclare(queue="", arguments={"k": 1 << 64}),
    ],
)
def test_a_value_that_does_not_fit_is_this_sides_mistake(method: m.Method) -> None:
    with pytest.raises(ValueError):
        method.encode()


def test_methods_are_frozen_and_slotted() -> None:
    method = m.BasicAck(delivery_tag=1)
    with pytest.raises(AttributeError):
        method.delivery_tag = 2  # type: ignore[misc]
    assert not hasattr(method, "__dict__")


@every_method
def test_a_method_has_the_name_of_its_class(cls: type[m.Method]) -> None:
    assert cls.name.title().replace(".", "").replace("-", "") == cls.__name__
    assert m.METHODS[cls.class_id, cls.method_id] is cls


@every_method
def test_strings_and_numbers_may_not_be_left_out(cls: type[m.Method]) -> None:
    if any(
        not argument.is_reserved
        and argument.wire_type not in (WireType.BIT, WireType.TABLE, WireType.TRAILING_TABLE)
        for argument in cls.layout.arguments
    ):
        with pytest.raises(TypeError):
            cls()


def test_the_ninth_bit_in_a_row_starts_a_second_octet() -> None:
    """No method has nine, but the specification says what would happen (section 4.2.5.2)."""
    layout = MethodLayout({f"bit{place}": Bit for place in range(9)})
    ninth = {"bit8": True}
    assert layout.encode(lambda name: ninth.get(name, False)) == b"\x00\x01"
    decoded = layout.decode(b"\x80\x01", 0)
    assert [name for name, is_set in decoded.items() if is_set] == ["bit7", "bit8"]
