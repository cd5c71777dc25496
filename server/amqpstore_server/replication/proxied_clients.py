"""Clients that followers pass on, as the leader sees them: like those that connect to it, with
their own addresses.
"""

from __future__ import annotations

import socket

from amqpstore_server.listening.proxied_sockets import AddressedSocket, ProxiedListener
from amqpstore_server.replication.handshake import DEADLINE_S
from amqpstore_server.replication.proxy_header import ClientAddress, Scheme, read_header

UNREAD_MS = 300_000
"""A client that takes nothing for this long is disconnected, on either side of a follower. Until
then, a side that does not read only holds the other one back.
"""


class ProxiedSocket(AddressedSocket):
    """The socket of a client's connection that a follower passes on. `client` says who it is."""

    client: ClientAddress

    @classmethod
    def of(cls, connection: socket.socket) -> ProxiedSocket:
        """Read who the client is, and take the connection over, which is closed if that fails.

        Raises: ProxyHeaderError, EOFError, OSError.
        """
        try:
            # A follower that hangs within the header would keep this thread for ever.
            connection.settimeout(DEADLINE_S)
            client = read_header(lambda size: _read(connection, size))
            bear(connection)
        except BaseException:
            connection.close()
            raise
        made = cls(fileno=connection.detach())
        made.client = client
        # The client's own addresses: logs, limits by address and the rule that `guest` comes from
        # loopback are about the client, not about the follower.
        made.peer = client.host, client.port
        made.local = client.to_host, client.to_port
        made.setblocking(False)
        return made


def bear(connection: socket.socket) -> None:
    """Keep a connection on which a client is passed on while its peer does not read."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise EOFError("the connection has ended within its header")
        received += piece
    return received


class ProxiedListeners:
    """The listeners of a leader for clients that followers pass on, one for each scheme; closed
    while it does not lead.
    """

    def __init__(self) -> None:
        self._open: dict[Scheme, ProxiedListener] = {}

    def open(self, scheme: Scheme) -> ProxiedListener:
        """Return a listener for the clients of a scheme, until it is closed."""
        listener = ProxiedListener.open(lambda: self._closed(scheme))
        self._open[scheme] = listener
        return listener

    def _closed(self, scheme: Scheme) -> None:
        self._open.pop(scheme, None)

    def enter(self, client: ProxiedSocket) -> None:
        """Have a client accepted, or close its connection."""
        listener = self._open.get(client.client.scheme)
        if listener is None:
            client.close()
        else:
            listener.put(client)
