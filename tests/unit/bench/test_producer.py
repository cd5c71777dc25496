"""The window of a publisher, on a socket pair."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore_tools.bench.board import Board
from amqpstore_tools.bench.messages import AlikeBlock, MessageBlock, VariedBlock
from amqpstore_tools.bench.producer import UNLIMITED, BlockPublisher
from amqpstore_tools.client import wire
from amqpstore_tools.client.errors import PeerError

BLOCK = AlikeBlock([("", "q")], size=50, persistent=True, frame_max=4096)


class Peer:
    """A publisher with a window, and the other end of its socket."""

    def __init__(
        self, ours: socket.socket, theirs: socket.socket, window: int, block: MessageBlock = BLOCK
    ) -> None:
        connection: Any = SimpleNamespace(socket=ours)
        self.board = Board(1)
        self.publisher = BlockPublisher(connection, block, window, self.board.row(0))
        self.theirs = theirs

    def publish(self, quota: int = UNLIMITED) -> int:
        """Steps until nothing moves; returns what was published in all."""
        before = -1
        while self.publisher.published > before:
            before = self.publisher.published
            self.publisher.step(quota)
        return self.publisher.published


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_window_is_filled_and_moves_with_the_confirms(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=10)
    assert peer.publish() == 10
    peer.theirs.sendall(wire.ack(1, 4))
    peer.publisher.step(UNLIMITED)
    assert peer.publish() == 14
    assert peer.board.totals().confirmed == 4
    assert len(peer.theirs.recv(1 << 20)) == 14 * BLOCK.message_bytes


def test_a_large_window_waits_for_64_free_places(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=520)
    assert peer.publish() == 520
    peer.theirs.recv(1 << 20)
    for confirmed, expected in ((63, 520), (64, 584)):
        peer.theirs.sendall(wire.ack(1, confirmed))
        peer.publisher.step(UNLIMITED)
        assert peer.publish() == expected


def test_a_quota_ends_on_a_whole_message_even_when_the_window_is_larger(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=1000)
    assert peer.publish(quota=7) == peer.publisher.begun == 7
    assert peer.theirs.recv(1 << 20) == BLOCK.octets[: 7 * BLOCK.message_bytes]


def test_without_a_window_the_socket_is_the_limit_and_the_stream_is_seamless(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=0)
    total = 3 * BLOCK.messages
    received = bytearray()
    while len(received) < total * BLOCK.message_bytes:
        peer.publish(quota=total)
        received += peer.theirs.recv(100_001)
    assert received == BLOCK.octets * 3


def test_a_confirm_of_what_was_never_sent_ends_the_run(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=2)
    peer.publish()
    peer.theirs.sendall(wire.ack(1, 3))
    with pytest.raises(PeerError, match="not published"):
        peer.publish()


def test_flow_off_is_answered_between_messages_and_pauses(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = Peer(*pair, window=3)
    assert peer.publish() == 3
    peer.theirs.sendall(wire.method(1, wire.CHANNEL_FLOW, b"\0") + wire.ack(1, 3))
    peer.publisher.step(UNLIMITED)
    assert peer.publish() == 3
    octets = peer.theirs.recv(1 << 20)
    assert octets[3 * BLOCK.message_bytes :] == wire.method(1, wire.CHANNEL_FLOW_OK, b"\0")
    peer.theirs.sendall(wire.method(1, wire.CHANNEL_FLOW, b"\1"))
    peer.publisher.step(UNLIMITED)
    assert peer.publish() == 6


def test_a_varied_block_begins_a_new_round_when_all_of_it_was_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    block = VariedBlock([("", "q")], size=50, persistent=True, frame_max=4096)
    peer = Peer(*pair, window=0, block=block)
    total = 3 * block.messages
    received = bytearray()
    while len(received) < total * block.message_bytes:
        peer.publish(quota=total)
        received += peer.theirs.recv(100_001)
    size = block.message_bytes
    messages = [bytes(received[at : at + size]) for at in range(0, len(received), size)]
    assert len(set(messages)) == total
