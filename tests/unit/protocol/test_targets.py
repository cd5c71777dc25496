"""A basic.publish that is read byte by byte is the one that its layout says."""

from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore_server.protocol.errors import MalformedError
from amqpstore_server.protocol.methods import BasicPublish, Method, decode_method
from amqpstore_server.protocol.targets import Targets

NAMES = st.text(max_size=255).filter(lambda name: len(name.encode()) <= 255)
START = BasicPublish(exchange="", routing_key="").encode()[:6]


def read(payload: bytes) -> BasicPublish | None:
    target = Targets().learn(payload)
    return None if target is None else target.publish


def by_layout(payload: bytes) -> Method | None:
    try:
        return decode_method(payload)
    except MalformedError:
        return None


@given(NAMES, NAMES, st.booleans(), st.booleans())
def test_each_publish_is_read(
    exchange: str, routing_key: str, mandatory: bool, immediate: bool
) -> None:
    publish = BasicPublish(
        exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
    )
    assert read(publish.encode()) == publish


@given(st.binary(max_size=12))
@example(b"\0\0\0\0")
@example(b"\0\0")
@example(b"\x01\xff\0\0")
@example(b"\0\0\x04")
def test_what_is_malformed_is_left_to_the_layout(rest: bytes) -> None:
    found = read(START + rest)
    assert found is None or found == by_layout(START + rest)


def test_other_methods_are_left_to_their_layouts() -> None:
    payload = BasicPublish(exchange="e", routing_key="k").encode()
    assert read(payload[:3] + b"\x29" + payload[4:]) is None
    assert read(b"") is None
