"""The connection of one client, without its socket, whatever protocol it speaks: who the client is,
what is sent to it, and for how long it may say nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from amqpstore_server.broker.monitoring.counters import OctetCounters
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.deadline import Deadline
from amqpstore_server.clients.heartbeat import Heartbeat
from amqpstore_server.clients.outbox import Outbox

HANDSHAKE_S = 10.0
LOGIN_CHECK_S = 30.0
"""How much longer a handshake may take while its login is checked, and waits for that: threads that
check leave the processor to others, and where other programs need all of it they take their time.
"""


class ClientConnection(ABC):
    """The server's side of one connection.

    Args: peer, the client's name in the log; name, that of the connection, as RabbitMQ writes it:
    "PEER -> ADDRESS"; on_output, as `Outbox` has it, unless it is set there later; now, seconds on
    the clock whose readings all methods get.
    """

    def __init__(
        self, *, peer: str, name: str, on_output: Callable[[], None] | None, now: float
    ) -> None:
        self.name = name or peer
        self.peer = peer
        self.log = ClientLog(peer)
        self.vhost = ""
        """The virtual host of the open connection."""
        self.outbox = Outbox(on_output)
        self.octets = OctetCounters()
        """Counts of the octets that passed through its socket."""
        self.on_secret: Callable[[str], None] | None = None
        """Called with a token that is to renew the login; it calls `renewed` later."""
        self.heartbeat = Heartbeat(0, now)
        self._deadline = Deadline(HANDSHAKE_S, now)
        self._now = now

    @property
    @abstractmethod
    def is_served(self) -> bool:
        """Whether the connection is open: the client may publish and consume."""

    @property
    @abstractmethod
    def is_authenticating(self) -> bool:
        """Whether the login has to be checked now; call `logged_in` afterwards."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the socket is to be closed once the outbox is empty."""

    @property
    @abstractmethod
    def is_input_paused(self) -> bool:
        """Whether input from the client has to wait: it leaves too much unread, its login is being
        checked, others have their turn, or as much as is held waits for the end of an alarm. Do not
        call `receive` then; call `go_on` when the reason is gone.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Drop the connection without a close handshake: the client does not answer."""

    @abstractmethod
    def _time_out(self) -> None:
        """End a connection whose handshake has taken too long."""

    @abstractmethod
    def _send_heartbeat(self) -> None: ...

    def tick(self, now: float) -> None:
        """Send a heartbeat if one is due, and notice missed ones. Call it about once a second."""
        self._now = now
        if not self.is_served:
            more_s = LOGIN_CHECK_S if self.is_authenticating else 0.0
            if self._deadline.is_over(now, more_s=more_s) and not self.is_finished:
                self._time_out()
            return
        heartbeat = self.heartbeat
        if self.is_input_paused:
            # Nothing is read from it: only that it accepts bytes shows that it is alive.
            heartbeat.received_at = max(heartbeat.received_at, heartbeat.sent_at)
        if heartbeat.is_peer_gone(now):
            self.log.warning("missed heartbeats from client")
            self.abandon()
        elif heartbeat.is_due(now):
            self._send_heartbeat()

    def excuse(self, now: float) -> None:
        """Do not count missed heartbeats: the server has stopped reading from the client."""
        self.heartbeat.received_at = now

    def stood_still(self, seconds: float, now: float) -> None:
        """Do not count so much time until now against the client: nothing could be read from it."""
        heartbeat = self.heartbeat
        heartbeat.received_at = min(now, heartbeat.received_at + seconds)
        if not self.is_served:
            self._deadline.put_off(seconds)
