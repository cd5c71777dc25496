"""An attacker between two members who knows no secret cannot speak for either of them."""

import logging
import socket
from pathlib import Path

import pytest

from amqpstore_server.cluster.codec import encode
from amqpstore_server.cluster.frames import Ack, Frame, ShippedBatch
from tests.pairs import TERM, Member, pair_of

REFUSED = "a peer sends what is not its next frame"


def forged(frame: Frame, tag: bytes = bytes(16)) -> bytes:
    """Return a frame as an attacker sends it who does not know the key."""
    return tag + b"".join(encode(frame))


def refuse(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    """Have a member read what came, and see that it ends the connection and says why, once."""
    link = member.link
    link._read()
    assert member.controller.refused_frames == 1
    assert not member.controller._links
    assert [one.message for one in caplog.records if one.levelno == logging.ERROR] == [REFUSED]


def test_a_relay_cannot_ack_for_a_follower(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A relay holds the batch back, and says that the follower has it: nothing is confirmed. The
    follower gets the batch once it has connected again, and it is committed then. Without tags the
    ack of the relay would count: the connection has proved to be the follower's.
    """
    with pair_of(tmp_path) as pair:
        pair.publish()
        log, batch = pair.store.log, pair.seal()
        assert log.start_write(batch, pair.datasyncs)
        held_back = pair.follower.socket.recv(1 << 20)
        assert held_back
        pair.follower.socket.sendall(forged(Ack(TERM, 1 << 30)))
        refuse(pair.leader, caplog)
        assert not log.finish_write(batch, pair.datasyncs)
        pair.connect_again()
        assert log.finish_write(batch, pair.datasyncs)
        log.complete(batch)


def test_a_relay_cannot_ack_again_what_the_follower_acked_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay has bytes that the follower itself has sent on this connection."""
    with pair_of(tmp_path) as pair:
        log, batch = pair.store.log, pair.seal()
        assert log.start_write(batch, pair.datasyncs)
        assert not log.finish_write(batch, pair.datasyncs)
        assert pair.follower.read()
        pair.follower.carry_out()
        ack = pair.leader.socket.recv(1 << 20, socket.MSG_PEEK)
        assert pair.leader.read()
        assert log.finish_write(batch, pair.datasyncs)
        log.complete(batch)
        pair.follower.socket.sendall(ack)
        refuse(pair.leader, caplog)


def test_a_relay_cannot_have_a_follower_take_a_batch_that_its_leader_never_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pair_of(tmp_path) as pair:
        pair.publish()
        last = pair.follower.controller.log.last()
        position = last._replace(number=last.number + 1)
        pair.leader.socket.sendall(forged(ShippedBatch(TERM, 9, position, 9, b"", b"any")))
        refuse(pair.follower, caplog)
        assert pair.follower.controller.log.last() == last
        pair.connect_again()
        pair.publish()
        assert pair.follower.controller.log.last() == position
