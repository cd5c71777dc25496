"""Accepts connections of other members, and makes them: each is known to be a member's before it
counts.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol

from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.etcd.host_addresses import HostAddresses
from amqpstore_server.replication.handshake import (
    DEADLINE_S,
    HandshakeError,
    PeerSession,
    Purpose,
    answer,
    greet,
)
from amqpstore_server.replication.links import MemberSocket, prepare
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_server.replication.tls_streams import TlsStream, context_of

_log = logging.getLogger(__name__)

MAX_UNPROVEN = 32
"""Connections at a time that have not proved yet to be a member's."""
_TOLD_S = 60.0
"""How often it is logged that some are closed for others."""
_LOOK_UP_S = 1.0
_CONNECT_TIMEOUT_S = 1.0
_BACKLOG = 64
_RETRY_S = 0.1


class MemberConnections(Protocol):
    """Takes connections of members, in threads of their own."""

    @property
    def secret(self) -> bytes | None:
        """The group's secret; None as long as etcd was not read."""

    def accepted(self, sock: MemberSocket, session: PeerSession, peer: str) -> None:
        """Take a connection. Args: peer, the address that it comes from."""


class UnprovenConnections:
    """The connections that have not proved yet to be a member's: a limited number of them.

    One more puts out the oldest of the address that has the most: many silent connections keep no
    member out, as a member proves what it is at once.
    """

    def __init__(self, limit: int) -> None:
        self.put_out = 0
        self._limit = limit
        self._lock = threading.Lock()
        self._addresses: dict[socket.socket, str] = {}
        self._told_at = -inf

    def enter(self, sock: socket.socket, address: str) -> None:
        """Let a connection in, and another one go if there are too many."""
        with self._lock:
            if len(self._addresses) >= self._limit:
                counts = Counter(self._addresses.values())
                # `max` returns the first of equals, and a dict is in order of entry: so it is the
                # oldest of the address that has the most.
                oldest = max(self._addresses, key=lambda one: counts[self._addresses[one]])
                crowded = self._addresses.pop(oldest)
                self.put_out += 1
                with suppress(OSError):
                    # Shut down and not closed: its own thread is reading from it, and closes it. A
                    # descriptor that was closed here could already be another connection's.
                    oldest.shutdown(socket.SHUT_RDWR)
                self._tell(crowded, counts[crowded])
            self._addresses[sock] = address

    def _tell(self, address: str, count: int) -> None:
        if time.monotonic() >= self._told_at + _TOLD_S:
            self._told_at = time.monotonic()
            _log.warning(
                "connections that do not prove to be a member's are put out",
                extra={"peer": address, "connections": count, "put_out": self.put_out},
            )

    def forget(self, sock: socket.socket) -> None:
        """Note that a connection is a member's, or closed."""
        with self._lock:
            self._addresses.pop(sock, None)


class MemberListener:
    """Listens for other members. Args: connections, takes those that are.

    Raises: ConfigError, if it cannot listen, or the certificates cannot be read.
    """

    def __init__(self, settings: ClusterSettings, connections: MemberConnections) -> None:
        certificates = settings.certificates
        self._tls = context_of(certificates, is_listener=True) if certificates else None
        self._connections = connections
        self._unproven = UnprovenConnections(MAX_UNPROVEN)
        host, port = settings.replicate
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cluster_replicate: cannot listen on {host}:{port}: {error}"
            ) from None
        threading.Thread(target=self._accept, name="members", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        with suppress(OSError):
            # `close` alone does not wake a thread that is in `accept`.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(_RETRY_S)  # there is no descriptor
                continue
            self._unproven.enter(sock, address[0])
            peer = f"{address[0]}:{address[1]}"
            threading.Thread(
                target=self._welcome, args=(sock, peer), name=f"member {peer}", daemon=True
            ).start()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        secret = self._connections.secret
        found: MemberSocket = sock
        try:
            if secret is None:  # etcd was not read yet: the peer comes again
                sock.close()
                return
            prepare(sock)
            if self._tls is not None:
                sock.settimeout(DEADLINE_S)
                found = TlsStream(self._tls.wrap_socket(sock, server_side=True))
            session = answer(found, secret)
        except (OSError, HandshakeError) as error:
            extra = {"peer": peer, "reason": str(error)}
            _log.warning("a connection is not a member's", extra=extra)
            found.close()
            return
        finally:
            self._unproven.forget(sock)
        self._connections.accepted(found, session, peer)


class MemberDialer:
    """Connects to other members. Raises: ConfigError, if the certificates cannot be read."""

    def __init__(self, settings: ClusterSettings) -> None:
        certificates = settings.certificates
        self._tls = context_of(certificates, is_listener=False) if certificates else None
        self._lock = threading.Lock()
        self._under_way: set[tuple[str, Purpose]] = set()
        """Whom threads dial at the moment."""
        self._names: dict[str, HostAddresses] = {}

    def dial(
        self,
        address: str,
        secret: bytes,
        connected: Callable[[MemberSocket, PeerSession], None],
        purpose: Purpose,
    ) -> None:
        """Connect in a thread; `connected` is called there, or never. There is one thread for each
        address, however often it is dialled.
        """
        dialled = (address, purpose)
        with self._lock:
            # A member that is gone is dialled again while the attempt before still waits for TCP.
            if dialled in self._under_way:
                return
            self._under_way.add(dialled)

        def run() -> None:
            try:
                sock, session = self.connect(address, secret, purpose)
            except (OSError, HandshakeError) as error:
                _log.info(
                    "the leader cannot be reached", extra={"peer": address, "reason": str(error)}
                )
                # Before `connected` is called, as that may end the connection and dial again.
                self._ended(dialled)
            else:
                self._ended(dialled)
                connected(sock, session)

        threading.Thread(target=run, name=f"dial {address}", daemon=True).start()

    def _ended(self, dialled: tuple[str, Purpose]) -> None:
        with self._lock:
            self._under_way.discard(dialled)

    def connect(
        self, address: str, secret: bytes, purpose: Purpose
    ) -> tuple[MemberSocket, PeerSession]:
        """Return a connection to a member that has proved to be one. Over TLS frames have no tags.

        Raises: HandshakeError, OSError.
        """
        if self._tls is not None and purpose is Purpose.TAGGED_STREAM:
            purpose = Purpose.STREAM
        sock = self._connected(*host_and_port(address))
        stream: MemberSocket = sock
        try:
            prepare(sock)
            if self._tls is not None:
                sock.settimeout(DEADLINE_S)
                stream = TlsStream(self._tls.wrap_socket(sock))
            session = greet(stream, secret, purpose)
        except BaseException:
            stream.close()
            raise
        return stream, session

    def _connected(self, host: str, port: int) -> socket.socket:
        """Return a connection to the first address of a host that takes it. Raises: OSError."""
        with self._lock:
            names = self._names.setdefault(host, HostAddresses(host, _LOOK_UP_S))
        failure = OSError(f"the name {host} has no address")
        for one in names.get():
            try:
                return socket.create_connection((one, port), timeout=_CONNECT_TIMEOUT_S)
            except OSError as error:
                failure = error
        raise failure
