"""The handshake by which two members prove to each other that they know the group's secret, before
anything else.

    dialer to listener      MAGIC, purpose (1 byte), nonce (32 bytes)
    listener to dialer      MAGIC, nonce (32 bytes), proof (32 bytes)
    dialer to listener      proof (32 bytes)

A proof is the HMAC-SHA-256, under the secret, of who gives it, the purpose, and both nonces: so it
cannot be used again, nor sent back to its sender. Without one, a peer gets no more than these few
bytes, and no more time than the deadline. What follows is not encrypted by this: that takes
certificates.

The keys for tags of frames, one for each direction, are the HMAC-SHA-256, under the secret, of what
a proof is made of, with `frames of dialer` and `frames of listener` as the role. Whether there are
tags is decided by the purpose, which is under the proofs: an attacker between the two cannot change
that.
"""

from __future__ import annotations

import hmac
import secrets
import time
from enum import Enum
from typing import NamedTuple, Protocol

from amqpstore_server.cluster.frame_tags import FrameTags

MAGIC = b"amqpstore member 1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
DEADLINE_S = 3.0


class Purpose(Enum):
    """The purpose of a connection."""

    STREAM = b"s"
    """A follower takes the leader's frames, without tags: over TLS, or one of them is too old."""
    TAGGED_STREAM = b"t"
    """A follower takes the leader's frames, and each frame has its tag."""
    PROXY = b"p"
    """A follower passes on a client."""


class PeerSession(NamedTuple):
    """The agreement of two members: what the connection is for, and with which tags this one sends
    frames and reads them; None without tags.
    """

    purpose: Purpose
    sent: FrameTags | None = None
    read: FrameTags | None = None


class HandshakeError(Exception):
    """The peer is not a member of this group, or not one that speaks this version."""


class HandshakeSocket(Protocol):
    """A socket as a handshake needs it, with TLS or without."""

    def settimeout(self, timeout: float | None, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, content: bytes, /) -> None: ...


def greet(sock: HandshakeSocket, secret: bytes, purpose: Purpose) -> PeerSession:
    """Be the dialer. Raises: HandshakeError, OSError."""
    until = time.monotonic() + DEADLINE_S
    mine = secrets.token_bytes(_NONCE_BYTES)
    _send(sock, MAGIC + purpose.value + mine, until)
    _expect_magic(sock, until)
    theirs = _receive(sock, _NONCE_BYTES, until)
    # The listener proves itself first. A dialer that proved first would hand a proof to whoever
    # listens at an address that etcd or DNS names.
    _check(_receive(sock, _PROOF_BYTES, until), secret, b"listener", purpose, mine, theirs)
    _send(sock, _proof(secret, b"dialer", purpose, mine, theirs), until)
    # The purpose is under the proof, so an attacker on the way cannot turn a stream with tags into
    # one without.
    if purpose is not Purpose.TAGGED_STREAM:
        return PeerSession(purpose)
    of_dialer, of_listener = _tags(secret, purpose, mine, theirs)
    return PeerSession(purpose, of_dialer, of_listener)


def answer(sock: HandshakeSocket, secret: bytes) -> PeerSession:
    """Be the listener. Raises: HandshakeError, OSError."""
    until = time.monotonic() + DEADLINE_S
    _expect_magic(sock, until)
    asked = _receive(sock, 1, until)
    try:
        purpose = Purpose(asked)
    except ValueError:
        raise HandshakeError(f"it asks for {asked!r}, which this version does not know") from None
    theirs = _receive(sock, _NONCE_BYTES, until)
    mine = secrets.token_bytes(_NONCE_BYTES)
    _send(sock, MAGIC + mine + _proof(secret, b"listener", purpose, theirs, mine), until)
    _check(_receive(sock, _PROOF_BYTES, until), secret, b"dialer", purpose, theirs, mine)
    if purpose is not Purpose.TAGGED_STREAM:
        return PeerSession(purpose)
    of_dialer, of_listener = _tags(secret, purpose, theirs, mine)
    return PeerSession(purpose, of_listener, of_dialer)


def _tags(
    secret: bytes, purpose: Purpose, of_dialer: bytes, of_other: bytes
) -> tuple[FrameTags, FrameTags]:
    """Return the tags of what the dialer sends, and of what the listener sends."""
    by_dialer, by_listener = (
        FrameTags(_proof(secret, role, purpose, of_dialer, of_other))
        for role in (b"frames of dialer", b"frames of listener")
    )
    return by_dialer, by_listener


def _proof(
    secret: bytes, role: bytes, purpose: Purpose, of_dialer: bytes, of_other: bytes
) -> bytes:
    # The purpose is one byte and the nonces have a fixed size, so no two roles ever sign the same
    # bytes.
    signed = b" ".join((role, purpose.value, of_dialer + of_other))
    return hmac.digest(secret, signed, "sha256")


def _check(
    found: bytes, secret: bytes, role: bytes, purpose: Purpose, dialers: bytes, others: bytes
) -> None:
    # The comparison takes constant time: an attacker could otherwise find the proof byte by byte.
    if not hmac.compare_digest(found, _proof(secret, role, purpose, dialers, others)):
        raise HandshakeError("it does not know the secret of this group")


def _expect_magic(sock: HandshakeSocket, until: float) -> None:
    found = _receive(sock, len(MAGIC), until)
    if found != MAGIC:
        raise HandshakeError(f"it begins with {found!r}, and not as a member of this version does")


def _send(sock: HandshakeSocket, content: bytes, until: float) -> None:
    sock.settimeout(_left_s(until))
    sock.sendall(content)


def _receive(sock: HandshakeSocket, size: int, until: float) -> bytes:
    received = b""
    while len(received) < size:
        # Anew for each piece: a peer that sends a byte now and then has no more time than others.
        sock.settimeout(_left_s(until))
        piece = sock.recv(size - len(received))
        if not piece:
            raise HandshakeError("it has closed the connection: does it have the same secret?")
        received += piece
    return received


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(f"the handshake took longer than {DEADLINE_S} s")
    return left_s
