"""Accepts connections of other members, and makes them: each is known to be a member's before it
counts.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from amqpstore_server.config_checks import host_and_port
from amqpstore_server.config_keys import ConfigError
from amqpstore_server.replication.handshake import (
    DEADLINE_S,
    HandshakeError,
    Purpose,
    answer,
    greet,
)
from amqpstore_server.replication.links import MemberSocket, prepare
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_server.replication.tls_streams import TlsStream, context_of

_log = logging.getLogger(__name__)

_MAX_STRANGERS = 32
"""Connections at a time that have not proved yet to be a member's."""
_CONNECT_TIMEOUT_S = 1.0
_BACKLOG = 64
_RETRY_S = 0.1


class MemberConnections(Protocol):
    """Takes connections of members, in threads of their own."""

    @property
    def secret(self) -> bytes | None:
        """The group's secret; None as long as etcd was not read."""

    def accepted(self, sock: MemberSocket, purpose: Purpose) -> None: ...


class MemberListener:
    """Listens for other members. Args: connections, takes those that are.

    Raises: ConfigError, if it cannot listen, or the certificates cannot be read.
    """

    def __init__(self, settings: ClusterSettings, connections: MemberConnections) -> None:
        certificates = settings.certificates
        self._tls = context_of(certificates, is_listener=True) if certificates else None
        self._connections = connections
        self._strangers = threading.BoundedSemaphore(_MAX_STRANGERS)
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
        """Accept nobody any more."""
        with suppress(OSError):
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
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            peer = f"{address[0]}:{address[1]}"
            threading.Thread(
                target=self._welcome, args=(sock, peer), name=f"member {peer}", daemon=True
            ).start()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        secret = self._connections.secret
        found: MemberSocket = sock
        try:
            if secret is None:
                sock.close()
                return
            prepare(sock)
            if self._tls is not None:
                sock.settimeout(DEADLINE_S)
                found = TlsStream(self._tls.wrap_socket(sock, server_side=True))
            purpose = answer(found, secret)
        except (OSError, HandshakeError) as error:
            extra = {"peer": peer, "reason": str(error)}
            _log.warning("a connection is not a member's", extra=extra)
            found.close()
            return
        finally:
            self._strangers.release()
        self._connections.accepted(found, purpose)


class MemberDialer:
    """Connects to other members. Raises: ConfigError, if the certificates cannot be read."""

    def __init__(self, settings: ClusterSettings) -> None:
        certificates = settings.certificates
        self._tls = context_of(certificates, is_listener=False) if certificates else None

    def dial(
        self,
        address: str,
        secret: bytes,
        connected: Callable[[MemberSocket], None],
        purpose: Purpose = Purpose.STREAM,
    ) -> None:
        """Connect in a thread; `connected` is called there, or never."""

        def run() -> None:
            try:
                sock = self.connect(address, secret, purpose)
            except (OSError, HandshakeError) as error:
                _log.info(
                    "the leader cannot be reached", extra={"peer": address, "reason": str(error)}
                )
            else:
                connected(sock)

        threading.Thread(target=run, name=f"dial {address}", daemon=True).start()

    def connect(self, address: str, secret: bytes, purpose: Purpose) -> MemberSocket:
        """Return a connection to a member that has proved to be one.

        Raises: HandshakeError, OSError.
        """
        sock = socket.create_connection(host_and_port(address), timeout=_CONNECT_TIMEOUT_S)
        found: MemberSocket = sock
        try:
            prepare(sock)
            if self._tls is not None:
                sock.settimeout(DEADLINE_S)
                found = TlsStream(self._tls.wrap_socket(sock))
            greet(found, secret, purpose)
        except BaseException:
            found.close()
            raise
        return found
