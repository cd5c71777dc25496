"""Two members prove to each other that they know the secret; other peers get no further."""

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator
from hashlib import blake2b

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from amqpstore_server.cluster.frame_tags import FrameTags
from amqpstore_server.replication import handshake
from amqpstore_server.replication.handshake import (
    MAGIC,
    HandshakeError,
    PeerSession,
    Purpose,
    answer,
    greet,
)

SECRET, OTHER = bytes(range(32)), bytes(32)


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Beside:
    """A call that runs in another thread, and what it returned or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._result: object = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except (HandshakeError, OSError) as error:
            self._result = error

    def result(self) -> object:
        self._thread.join()
        return self._result


def test_members_with_the_same_secret_are_let_in(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    dialer, listener = pair
    answered = Beside(lambda: answer(listener, SECRET))
    assert greet(dialer, SECRET, Purpose.STREAM) == PeerSession(Purpose.STREAM)
    assert answered.result() == PeerSession(Purpose.STREAM)


def agreed(pair: tuple[socket.socket, socket.socket]) -> tuple[FrameTags, ...]:
    """Return the tags of a new session: those the dialer sends and reads, and the listener."""
    dialer, listener = pair
    answered = Beside(lambda: answer(listener, SECRET))
    ours = greet(dialer, SECRET, Purpose.TAGGED_STREAM)
    theirs = answered.result()
    assert isinstance(theirs, PeerSession)
    found = (ours.sent, ours.read, theirs.sent, theirs.read)
    return tuple(one for one in found if one is not None)


def test_each_direction_of_each_connection_has_tags_of_its_own(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    tags = [one.next(b"head", b"content") for _ in range(2) for one in agreed(pair)]
    assert tags[:4] == [tags[0], tags[1], tags[1], tags[0]]
    assert tags[4:] == [tags[4], tags[5], tags[5], tags[4]]
    assert len({*tags}) == 4


def test_the_keys_of_tags_are_made_of_the_secret_and_both_nonces(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written down once more: members of other versions have to make the same ones."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"n" * size)
    small, large = b"content", bytes(5000)
    made = [(one.next(b"head", small), one.next(b"head", large)) for one in agreed(pair)]
    for role, tags in (("dialer", made[0]), ("listener", made[1])):
        key = hmac.digest(SECRET, f"frames of {role} t ".encode() + b"n" * 64, "sha256")
        of_small, of_large = (hmac.digest(key, use, "sha256") for use in (b"small", b"large"))
        first, second = bytes(11) + b"\x01", bytes(11) + b"\x02"
        expected = blake2b(first + b"head" + small, key=of_small, digest_size=16).digest()
        assert tags == (expected, AESGCM(of_large).encrypt(second, b"head", large)[-16:])


@pytest.mark.parametrize(("ours", "theirs"), [(SECRET, OTHER), (OTHER, SECRET)])
def test_another_secret_is_refused_by_both(
    pair: tuple[socket.socket, socket.socket], ours: bytes, theirs: bytes
) -> None:
    """The dialer finds out first; so a listener without the secret learns nothing of it."""
    dialer, listener = pair
    answered = Beside(lambda: answer(listener, theirs))
    with pytest.raises(HandshakeError, match="does not know the secret"):
        greet(dialer, ours, Purpose.STREAM)
    dialer.close()
    assert isinstance(answered.result(), HandshakeError)


def test_a_proof_cannot_be_sent_back_to_who_gave_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    dialer, listener = pair
    answered = Beside(lambda: answer(listener, SECRET))
    dialer.sendall(MAGIC + b"s" + bytes(32))
    said = dialer.recv(1000)
    dialer.sendall(said[-32:])
    assert isinstance(answered.result(), HandshakeError)


@pytest.mark.parametrize(
    ("begins", "reason"),
    [(b"GET / HTTP/1.1\r\n\r\n" + bytes(40), "begins with"), (MAGIC + b"?", "asks for")],
)
def test_a_stranger_is_refused_after_a_few_bytes(
    pair: tuple[socket.socket, socket.socket], begins: bytes, reason: str
) -> None:
    stranger, listener = pair
    stranger.sendall(begins)
    with pytest.raises(HandshakeError, match=reason):
        answer(listener, SECRET)
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.recv(1)


def test_a_silent_peer_does_not_hold_a_member(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "DEADLINE_S", 0.05)
    stranger, listener = pair
    began = time.monotonic()
    stranger.sendall(MAGIC[:3])
    with pytest.raises(TimeoutError):
        answer(listener, SECRET)
    assert time.monotonic() - began < 2
