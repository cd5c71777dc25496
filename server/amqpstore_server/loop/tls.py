"""TLS on the socket of one client, behind the calls of a plain socket.

OpenSSL works on two buffers in memory: this module moves their content from and to the socket. What
it holds is bounded: of what the client sends, the part of one record (16 KiB); of what is sent to
the client, one chunk. Reads are paused and deliveries stopped as on a plain connection, because
`recv` and `sendmsg` block where the socket does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.config.config import Config
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.process.ticking import in_time

if TYPE_CHECKING:
    from amqpstore_server.logins.certificates import Certificates

TLS_KEYS = (
    "tls_certificate",
    "tls_key",
    "tls_certificates",
    "tls_ca",
    "tls_crl",
    "tls_client",
    "tls_min_version",
    "tls_login_from",
)
"""The keys of the configuration that new connections take over."""

HANDSHAKE_S = 5.0
"""The longest that a handshake may take, counted from the accept, as in RabbitMQ."""

HANDSHAKE_BYTES = 256 << 10
"""The most that a client may send until its handshake is done: OpenSSL accepts a ClientHello of 128
KiB and a chain of certificates of 100 KiB."""

_RECORD_BYTES = 16 << 10
_CHUNK_BYTES = 64 << 10
"""How much is encrypted before it is sent. What the socket does not take of it stays in memory."""

_IDLE_RECORD_BYTES = 64
"""The bytes of a record beside its content, at most, in what clients send."""

MAX_IDLE_BYTES = 64 << 10
"""How much more than records with content a client may send: each KeyUpdate has the keys computed
again, and has no content (CVE-2026-39304 of ActiveMQ)."""


_AMQP = b"AMQP"
_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"
"""A fatal alert, unexpected_message, which RabbitMQ sends as well."""


class ClientSocket(Protocol):
    """A socket as its connection needs it, with TLS or without."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what was received; nothing at the end. Raises: BlockingIOError, OSError."""

    def sendmsg(self, buffers: Sequence[bytes | memoryview], /) -> int:
        """Send from the buffers. Returns how many bytes were sent.

        Raises: BlockingIOError: none was. Call it with the same bytes again. OSError.
        """

    def shutdown(self, how: int, /) -> None:
        """Tell the client that nothing more comes."""

    def close(self) -> None:
        """Close the descriptor."""


class TlsError(Exception):
    """The handshake failed. The message says why."""


class TlsSocket:
    """A client's socket, once `shake_hands` has returned.

    `certificate` is the client's certificate (DER), if it has sent one: it was verified.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, log: ClientLog) -> None:
        self.certificate: bytes | None = None
        self._socket = sock
        self._log = log
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        """Encrypted, and not taken by the socket yet."""
        self._encrypted_bytes = 0
        """How many of the caller's bytes are in `_unsent`: it was not told that they are sent."""
        self._has_first_bytes = True
        self._is_over = False
        self._is_shut_down = False
        self._idle_bytes = 0

    # The handshake.

    async def shake_hands(self, deadline: float, turns: LoginChecks, host: str) -> None:
        """Do the handshake. A few clients at a time, a peer's in a line of their own: signing takes
        a millisecond or more, in a worker thread.

        Raises: TlsError, also at the deadline (trio's clock).
        """
        try:
            await in_time(HANDSHAKE_S, partial(self._shake_hands, turns, host), deadline)
        except trio.TooSlowError:
            raise TlsError("it was not done in time") from None

    async def _shake_hands(self, turns: LoginChecks, host: str) -> None:
        first = b""
        received_bytes = 0
        while True:
            received = await self._wait_for_bytes()
            received_bytes += len(received)
            if received_bytes > HANDSHAKE_BYTES:
                raise TlsError(f"more than {HANDSHAKE_BYTES} bytes")
            first = (first + received)[: len(_AMQP)]
            self._incoming.write(received)
            try:
                async with turns.turn(host, ""):
                    is_done = await trio.to_thread.run_sync(self._step)
            except ssl.SSLError as error:
                if first == _AMQP:
                    # OpenSSL says nothing to somebody who does not speak TLS at all.
                    self._unsent = memoryview(_ALERT)
                raise TlsError(_reason(error, first)) from None
            finally:
                with contextlib.suppress(OSError):
                    self._flush()
            if is_done:
                self.certificate = self._tls.getpeercert(binary_form=True)
                return

    async def _wait_for_bytes(self) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                received = self._socket.recv(_RECORD_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise TlsError(error.strerror or str(error)) from None
            if not received:
                raise TlsError("the client closed the connection")
            return received

    def _step(self) -> bool:
        """Go on with the handshake. Returns whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def version_and_cipher(self) -> tuple[str, str]:
        """The version and the cipher that were agreed on."""
        cipher = self._tls.cipher()
        return self._tls.version() or "", cipher[0] if cipher else ""

    # The calls of a socket.

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what was received; nothing at the end. No content is ever left behind: what the
        socket has read is decrypted as far as it is whole.

        With flags, or after `shutdown`, these are the bytes of the socket as they are.
        """
        if flags or self._is_shut_down:
            return self._socket.recv(size, flags)
        if self._is_over:
            return b""
        if self._has_first_bytes:
            # What followed the handshake in the same read: no event of the socket reports it.
            self._has_first_bytes = False
            received_bytes = self._incoming.pending
        else:
            received = self._socket.recv(size)
            if not received:
                return b""
            received_bytes = len(received)
            self._incoming.write(received)
        return self._decrypt(received_bytes)

    def _decrypt(self, received_bytes: int) -> bytes:
        """Return the content of the whole records. Raises: BlockingIOError, if they have none."""
        parts = []
        read = self._tls.read
        try:
            while part := read(_RECORD_BYTES):
                parts.append(part)
            self._is_over = True  # close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._failed(error.reason or str(error))
        content = b"".join(parts)
        spent = len(content) + _IDLE_RECORD_BYTES * len(parts)
        self._idle_bytes = max(0, self._idle_bytes + received_bytes - spent)
        if self._idle_bytes > MAX_IDLE_BYTES:
            self._failed("too many records without content")
        with contextlib.suppress(OSError):
            self._flush()  # alerts, and answers to a KeyUpdate
        if self._is_over and content:
            # The caller hears of the end with its next read: this makes the socket readable.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
        elif not content and not self._is_over:
            raise BlockingIOError
        return content

    def _failed(self, reason: str) -> None:
        self._is_over = True
        self._log.warning("TLS failed", extra={"reason": reason})

    def sendmsg(self, buffers: Sequence[bytes | memoryview], /) -> int:
        """Encrypt and send the buffers. Returns how many of their bytes have left; those that are
        encrypted, but not sent, are counted by a later call, which begins with them again.
        """
        sent_bytes = 0
        with contextlib.suppress(BlockingIOError):
            self._flush()
            sent_bytes = self._encrypted_bytes
            self._encrypted_bytes = 0
            content = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            while sent_bytes < len(content):
                chunk = content[sent_bytes : sent_bytes + _CHUNK_BYTES]
                self._encrypt(chunk)
                self._encrypted_bytes = len(chunk)
                self._flush()
                self._encrypted_bytes = 0
                sent_bytes += len(chunk)
        if not sent_bytes:
            raise BlockingIOError
        return sent_bytes

    def _encrypt(self, chunk: memoryview) -> None:
        while chunk:
            chunk = chunk[self._tls.write(chunk) :]

    def _flush(self) -> None:
        """Send what is encrypted. Raises: BlockingIOError, if some of it is left; OSError."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def shutdown(self, how: int, /) -> None:
        """Send close_notify, and shut the socket down."""
        if not self._is_shut_down:
            self._is_shut_down = True
            # The client's own close_notify is not waited for: SSLWantReadError.
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self._flush()
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _reason(error: ssl.SSLError, first: bytes) -> str:
    """Return why a handshake failed. `first` are the first bytes of the client."""
    if first == _AMQP:
        return "the client speaks AMQP without TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()


def certificates_of(config: Config) -> Certificates | None:
    """Load the certificates, if there is an address for TLS. Raises: ConfigError."""
    if not (config.tls_listen or config.management_tls_listen):
        return None
    # Imported here: a broker without TLS starts sooner, and needs no cryptography.
    from amqpstore_server.logins.certificates import Certificates

    return Certificates(config)
