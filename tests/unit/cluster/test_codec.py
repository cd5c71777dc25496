"""Frames on the wire: whole, in pieces, damaged, and from a peer that means harm."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.cluster.codec import (
    MAX_HEADER_BYTES,
    PREFIX,
    ForgedFrameError,
    FrameReader,
    PeerFrameError,
    encode,
    read_follower,
    read_leader,
)
from amqpstore_server.cluster.frame_tags import TAG_BYTES, FrameTags
from amqpstore_server.cluster.frames import (
    CLAIM_PROTOCOL,
    FOUNDED_PROTOCOL,
    MAX_TAIL,
    MAX_TERM,
    PROTOCOL,
    START,
    Ack,
    Beat,
    CaughtUp,
    Claim,
    Definition,
    DefinitionsSnapshot,
    Frame,
    Goodbye,
    HeldBatch,
    Hello,
    Join,
    Promise,
    Ready,
    Refused,
    ReplicaPosition,
    Resign,
    ShippedBatch,
    StoreCopy,
    StorePiece,
    Welcome,
)

AT = ReplicaPosition(3, 77)
ADDED: tuple[Frame, ...] = (Claim(7, AT), Goodbye(3))
"""Frames that version 2 has added: sent only to a leader that says that it takes them."""
FROM_FOLLOWER: tuple[Frame, ...] = (
    Hello("a1", "i1", "store", 1, 3, (HeldBatch(AT, 0xFFFFFFFF), HeldBatch(START, 0))),
    Ready(3, Join.REPLACE),
    Ack(3, 12),
    Promise(3, 4),
)
FROM_LEADER: tuple[Frame, ...] = (
    Refused("not a member"),
    Welcome("b1", "i2", 1, 3, Join.STREAM, AT),
    DefinitionsSnapshot(3, 5, b"definitions"),
    ShippedBatch(3, 9, AT, 70, b"layout", bytes(range(256)) * 40),
    ShippedBatch(3, 0, AT, 70, b"", b""),
    Definition(3, 10, 6, 70, b"a queue"),
    CaughtUp(3, 10, 70),
    Beat(3, 11, 70),
    Resign(3),
    StorePiece(3, "segments/0000000001.segment", 1 << 20, 5 << 20, 1 << 40, bytes(1000)),
    StoreCopy(3, b"rows"),
)
MAX_BYTES = 1 << 20
WIRE = {
    1: "398098b9465aed52f1ed953cfba0ccd8ea8076a134eaec8e5d36a9b4943844bb",
    2: "7db032402cf85ba20f3a24df060d169a2879478ea69387fdc3df1b285f1bcea7",
    3: "a7b0e891fe4fa948c0fe4446f33003d327809455a0ae6c87c7a12649d782b127",
}
"""Digests of all these frames on the wire, by version of the protocol; version 3 has tags."""
KEY = bytes(range(32))


def wire(frame: Frame) -> bytes:
    return b"".join(encode(frame))


def test_frames_change_with_the_version_of_the_protocol_only() -> None:
    """Members of two versions of this broker follow each other while they are upgraded."""
    frames = b"".join(wire(one) for one in (*FROM_FOLLOWER, *FROM_LEADER))
    assert hashlib.sha256(frames).hexdigest() == WIRE[FOUNDED_PROTOCOL]
    frames += b"".join(map(wire, ADDED))
    assert hashlib.sha256(frames).hexdigest() == WIRE[CLAIM_PROTOCOL]
    tagged = b"".join(wires_with_tags((*FROM_FOLLOWER, *FROM_LEADER, *ADDED)))
    assert hashlib.sha256(tagged).hexdigest() == WIRE[PROTOCOL]


def wires_with_tags(frames: Sequence[Frame], key: bytes = KEY) -> list[bytes]:
    """Return frames as one side sends them on a connection with tags."""
    tags = FrameTags(key)
    encoded = [encode(one) for one in frames]
    return [tags.next(head, content) + head + content for head, content in encoded]


LEADER_SENT = wires_with_tags(FROM_LEADER)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_frames_with_their_tags_are_read_in_any_pieces(size: int) -> None:
    sent = b"".join(LEADER_SENT)
    reader = read_leader(MAX_BYTES, FrameTags(KEY))
    found: list[Frame] = []
    for at in range(0, len(sent), size):
        reader.receive(sent[at : at + size])
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
    assert tuple(found) == FROM_LEADER
    assert not reader.partial_bytes


@pytest.mark.parametrize(
    ("changed", "good"),
    {
        "one is left out": (LEADER_SENT[1:], 0),
        "one is left out later": (LEADER_SENT[:4] + LEADER_SENT[5:], 4),
        "one is sent twice": (LEADER_SENT[:2] + LEADER_SENT[1:], 2),
        "two are exchanged": ([LEADER_SENT[1], LEADER_SENT[0]], 0),
        "one is made up": ([bytes(TAG_BYTES) + wire(Beat(3, 12, 99))], 0),
        "one has the tag of another": ([LEADER_SENT[0][:TAG_BYTES] + wire(Resign(3))], 0),
        "one has no tag": ([LEADER_SENT[0], wire(Resign(3)) + bytes(TAG_BYTES)], 1),
        "those of another connection": (wires_with_tags(FROM_LEADER, bytes(32)), 0),
    }.values(),
    ids=str,
)
def test_only_what_the_peer_sent_next_is_taken(changed: list[bytes], good: int) -> None:
    """An attacker who changes frames can make the checksum right, but does not know the key."""
    reader = read_leader(MAX_BYTES, FrameTags(KEY))
    reader.receive(b"".join(changed))
    assert [reader.next_frame() for _ in range(good)] == [*FROM_LEADER[:good]]
    with pytest.raises(PeerFrameError):
        reader.next_frame()


@pytest.mark.parametrize("content", [b"a queue", b"a queue" * 1000], ids=["small", "large"])
@pytest.mark.parametrize("field", range(3))
def test_what_is_changed_with_its_checksum_is_refused(field: int, content: bytes) -> None:
    """An attacker between two members can change the header, the content and the tag."""
    frame = Definition(3, 10, 6, 70, content)
    (sent,) = wires_with_tags([frame])
    tag, (head, content) = sent[:TAG_BYTES], encode(frame)
    header = head[PREFIX.size :]
    if field == 0:
        header = header.replace(b"\x46", b"\x47")
    elif field == 1:
        content = b"A" + content[1:]
    else:
        tag = tag[:-1] + bytes([tag[-1] ^ 1])
    reader = read_leader(MAX_BYTES, FrameTags(KEY))
    reader.receive(tag + sealed(header, content))
    with pytest.raises(ForgedFrameError, match="is not what the other member sent next"):
        reader.next_frame()


def reader_of(frame: Frame) -> FrameReader[Any]:
    return read_follower() if frame in ADDED + FROM_FOLLOWER else read_leader(MAX_BYTES)


def sealed(header: bytes, content: bytes = b"") -> bytes:
    """Return a frame with a right checksum around any header."""
    lengths = PREFIX.pack(len(header), len(content), 0)[:8]
    checksum = crc32c(content, crc32c(header, crc32c(lengths)))
    return lengths + checksum.to_bytes(4, "big") + header + content


@pytest.mark.parametrize(
    "frame", ADDED + FROM_FOLLOWER + FROM_LEADER, ids=lambda one: type(one).__name__
)
def test_a_frame_is_read_whole_byte_by_byte_and_with_more_behind_it(frame: Frame) -> None:
    sent = wire(frame)
    reader = reader_of(frame)
    reader.receive(sent + sent + sent[:-1])
    assert [reader.next_frame(), reader.next_frame()] == [frame, frame]
    assert reader.next_frame() is None
    reader.receive(sent[-1:])
    assert reader.next_frame() == frame
    for at in range(len(sent)):
        assert reader.next_frame() is None
        reader.receive(sent[at : at + 1])
    assert reader.next_frame() == frame


@pytest.mark.parametrize(
    "frame", ADDED + FROM_FOLLOWER + FROM_LEADER, ids=lambda one: type(one).__name__
)
def test_no_bit_that_was_turned_makes_another_frame(frame: Frame) -> None:
    sent = wire(frame)
    positions = range(len(sent) * 8)
    for bit in random.Random(1).sample(positions, min(len(positions), 400)):
        damaged = bytearray(sent)
        damaged[bit // 8] ^= 1 << bit % 8
        reader = reader_of(frame)
        reader.receive(bytes(damaged))
        try:
            # A length that has grown waits for what never comes.
            assert reader.next_frame() is None
            assert bit < 64
        except PeerFrameError:
            pass


@pytest.mark.parametrize("frame", FROM_FOLLOWER)
def test_a_leader_cannot_send_what_followers_send(frame: Frame) -> None:
    reader = read_leader(MAX_BYTES)
    reader.receive(wire(frame))
    with pytest.raises(PeerFrameError, match="header cannot be read"):
        reader.next_frame()


def test_a_follower_cannot_send_content() -> None:
    """A frame that only announces content is refused at once: none of it is waited for."""
    reader = read_follower()
    reader.receive(PREFIX.pack(10, 1, 0))
    with pytest.raises(PeerFrameError, match="1 bytes of content; at most 4194304 and 0 are taken"):
        reader.next_frame()


@pytest.mark.parametrize(
    "lengths", [(MAX_HEADER_BYTES + 1, 0), (0, MAX_BYTES + 1), ((1 << 32) - 1, (1 << 32) - 1)]
)
def test_what_is_too_long_is_refused_before_it_comes(lengths: tuple[int, int]) -> None:
    reader = read_leader(MAX_BYTES)
    reader.receive(PREFIX.pack(*lengths, 0))
    with pytest.raises(PeerFrameError, match="a frame is announced with"):
        reader.next_frame()


HOSTILE: dict[str, Any] = {
    "no type": [],
    "an unknown type": [99, 1],
    "too few fields": [12, 3],
    "too many fields": [12, 3, 4, 5],
    "a text for a number": [12, "3", 4],
    "a term below zero": [12, -1, 4],
    "a term beyond the LSN": [12, MAX_TERM + 1, 4],
    "a frame's number that is too large": [12, 3, 1 << 62],
    "an unknown join": [4, 3, "erase"],
    "no name": [1, "", "i", "store", 1, 3, []],
    "a name that is too long": [1, "n" * 65, "i", "store", 1, 3, []],
    "a batch's number beyond the LSN": [1, "a", "i", "s", 1, 3, [[[3, 1 << 44], 0]]],
    "a checksum that is too large": [1, "a", "i", "s", 1, 3, [[[3, 1], 1 << 32]]],
    "a tail that is too long": [1, "a", "i", "s", 1, 3, [[[3, 1], 0]] * (MAX_TAIL + 1)],
    "a map": {"term": 3},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_out_of_bounds_is_refused(header: object) -> None:
    reader = read_follower()
    reader.receive(sealed(msgspec.msgpack.encode(header)))
    with pytest.raises(PeerFrameError, match="a frame's header cannot be read: "):
        reader.next_frame()


def test_content_is_where_it_belongs() -> None:
    beat, batch = FROM_LEADER[7], FROM_LEADER[3]
    for sent, message in (
        (sealed(msgspec.msgpack.encode(beat), b"more"), "Beat has no content, and 4 bytes of it"),
        (sealed(msgspec.msgpack.encode(batch)), "ShippedBatch has content in its header"),
    ):
        reader = read_leader(MAX_BYTES)
        reader.receive(sent)
        with pytest.raises(PeerFrameError, match=message):
            reader.next_frame()


@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_any_bytes_are_a_clear_error_or_not_enough(pieces: list[bytes], is_sealed: bool) -> None:
    for reader in (read_follower(), read_leader(MAX_BYTES)):
        with suppress(PeerFrameError):
            for piece in pieces:
                reader.receive(sealed(piece) if is_sealed else piece)
                while reader.next_frame() is not None:
                    pass
