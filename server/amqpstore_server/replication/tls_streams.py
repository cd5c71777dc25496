"""TLS between members: one thread reads a connection while another one writes it.

OpenSSL does not let two threads use one connection at a time. So the socket never blocks inside it:
whoever has to wait does so outside the lock.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time

from amqpstore_server.config.keys import ConfigError
from amqpstore_server.replication.settings import MemberCertificates


class TlsStream:
    """A TLS connection with the methods of a socket that are needed here; for two threads."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._timeout_s: float | None = None
        sock.setblocking(False)

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def recv(self, size: int) -> bytes:
        """Raises: TimeoutError, OSError."""
        until = self._until()
        while True:
            try:
                with self._lock:
                    return self._socket.recv(size)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, until)

    def sendall(self, content: bytes | memoryview) -> None:
        """Raises: TimeoutError, OSError."""
        until = self._until()
        left = memoryview(content)
        while left:
            try:
                with self._lock:
                    sent = self._socket.send(left)
                left = left[sent:]
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, until)

    def send_now(self, content: bytes) -> int:
        """Send what can be sent at once; the rest has to be sent next. Returns how many bytes.

        Raises: OSError, also if that is none: all of it has to be sent next.
        """
        with self._lock:
            return self._socket.send(content)

    def shutdown(self, how: int) -> None:
        # Not `SSLSocket.shutdown`, which would leave the TLS layer under the other thread.
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _until(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _wait(self, event: int, until: float | None) -> None:
        left_s = None if until is None else until - time.monotonic()
        poll = select.poll()
        poll.register(self._socket, event)
        if (left_s is not None and left_s <= 0) or not poll.poll(left_s and left_s * 1000):
            raise TimeoutError("the peer does not answer in time")


def context_of(certificates: MemberCertificates, *, is_listener: bool) -> ssl.SSLContext:
    """Return what checks the peer's certificate and shows one's own; the files are read now.

    A name in a certificate is not compared: the CA has signed those of members only.
    Raises: ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listener else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(certificates.ca)
        context.load_cert_chain(certificates.certificate, certificates.key or None, _no_password)
    except OSError as error:
        files = ", ".join(filter(None, certificates.__dict__.values()))
        raise ConfigError(f"the certificates of this member ({files}): {error}") from None
    return context


def _no_password() -> str:
    """Keep OpenSSL from asking for one at the terminal."""
    raise OSError("the private key has a password, which nobody is there to enter")
