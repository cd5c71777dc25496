"""Messages that are read back in one go, each of which may differ from the one before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqpstore import Envelope, Message
from amqpstore.format.message import HEAD
from amqpstore.format.records import (
    Kind,
    MessageDecoder,
    encode_messages,
    encode_record,
    read_messages,
)

SEGMENT, SEED = 3, 12345

names = st.sampled_from(["", "ordérs"])
properties = st.sampled_from([b"", b"one", b"two", b"x" * 300])
envelopes = st.builds(Envelope, names, names, properties)
stored = st.lists(st.builds(Message, envelopes, st.binary(max_size=20)), min_size=1, max_size=12)


def read(content: bytes, count: int) -> tuple[list[Message], str | None]:
    decoder = MessageDecoder({}, lambda body: body)
    found, _, reason = read_messages(content, SEGMENT, SEED, 1, count, decoder)
    return found, reason


def said(message: Message) -> tuple[str, str, bytes, bytes, bytes]:
    envelope = message.envelope
    names = envelope.exchange, envelope.routing_key
    return *names, envelope.properties, envelope.head, message.body


@given(stored)
def test_each_message_is_what_was_written(messages: list[Message]) -> None:
    buffers: list[bytes] = []
    encode_messages(messages, 1, SEGMENT, buffers, [], seed=SEED, batch=1)
    found, reason = read(b"".join(buffers), len(messages))
    assert reason is None
    assert list(map(said, found)) == list(map(said, messages))


def test_a_message_that_begins_like_the_one_before_and_is_too_short_is_refused() -> None:
    whole = HEAD.pack(2, 3, 10) + b"exkey" + b"p" * 10
    short = whole[:-4]
    records = [
        encode_record(Kind.MESSAGE, number, SEGMENT, payload, seed=SEED, batch=1)
        for number, payload in enumerate([whole, short], 1)
    ]
    found, reason = read(b"".join(records), 2)
    assert [one.envelope.properties for one in found] == [b"p" * 10]
    assert reason == "lengths run past the payload's end"
