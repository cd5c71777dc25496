"""A small blocking AMQP connection with one channel, for setup, teardown and the workers' start."""

import contextlib
import socket
import struct
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.errors import CommandLineError, ConnectError, PeerError

CHANNEL = 1
_DEFAULT_FRAME_MAX = 131_072  # bytes; used when the broker sets no limit
_CLIENT_PROPERTIES: dict[str, wire.TableItem] = {
    "product": "amqpstore-bench",
    "platform": "Python",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "authentication_failure_close": True,
    },
}


def receive(sock: socket.socket, most_bytes: int = 1 << 16) -> bytes:
    """Receive once. Raises: PeerError, when the broker has closed the socket; OSError."""
    octets = sock.recv(most_bytes)
    if not octets:
        raise PeerError("the broker closed the socket")
    return octets


@dataclass(frozen=True)
class Address:
    """The address of a broker, and the login."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse `amqp://user:password@host:port/vhost`, each part percent-encoded.

        Raises:
            UsageError: not such a URL.
        """
        parts = urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname:
            raise CommandLineError(
                f"--url must look like amqp://user:password@host:port/vhost: {url!r}"
            )
        try:
            port = parts.port or 5672
        except ValueError as error:
            raise CommandLineError(f"--url has no usable port: {error}") from None
        path = parts.path.removeprefix("/")
        return cls(
            host=parts.hostname,
            port=port,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(path) or "/",
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """An open connection with channel 1 open on it; every call waits for its answer.

    A worker takes over `socket` after setup, and passes what it read and did not use to `close`.
    """

    def __init__(self, address: Address, timeout_s: float = 10.0) -> None:
        """Connects, logs in and opens the channel.

        Raises:
            ConnectError: any of the three failed; the message says what to do.
        """
        self._received = bytearray()
        try:
            self.socket = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectError(
                f"cannot connect to {address}: {error.strerror or error}. "
                "Start the broker, or name another one with --url."
            ) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._log_in(address)
        except OSError as error:
            self.socket.close()
            raise ConnectError(
                f"{address} closed the connection or did not answer during the login: {error}. "
                f"Check that it is an AMQP 0-9-1 port and that the broker is running."
            ) from None
        except PeerError as error:
            self.socket.close()
            raise ConnectError(
                f"{address} did not let {address.user!r} into vhost {address.vhost!r}: "
                f"{str(error).rstrip('.')}. "
                "Check user, password and vhost of --url, and that it is an AMQP 0-9-1 port."
            ) from None

    def _log_in(self, address: Address) -> None:
        self.socket.sendall(wire.PROTOCOL_HEADER)
        start = self._wait_for(wire.CONNECTION_START)
        properties = wire.read_strings_of_table(start, 2)
        self.product = properties.get("product", "unknown")
        self.version = properties.get("version", "unknown")
        response = b"\0%b\0%b" % (address.user.encode(), address.password.encode())
        tune = self.call(
            wire.CONNECTION_START_OK,
            wire.table(_CLIENT_PROPERTIES)
            + wire.short_string("PLAIN")
            + wire.long_string(response)
            + wire.short_string("en_US"),
            wire.CONNECTION_TUNE,
            channel=0,
        )
        channel_max, frame_max, _heartbeat_s = struct.unpack(">HIH", tune)
        self.frame_max = frame_max or _DEFAULT_FRAME_MAX
        # No heartbeats: they would only interrupt a steady stream, and every run has a deadline.
        tune_ok = struct.pack(">HIH", channel_max, self.frame_max, 0)
        self.socket.sendall(wire.method(0, wire.CONNECTION_TUNE_OK, tune_ok))
        vhost = wire.short_string(address.vhost) + b"\0\0"
        self.call(wire.CONNECTION_OPEN, vhost, wire.CONNECTION_OPEN_OK, channel=0)
        self.call(wire.CHANNEL_OPEN, b"\0", wire.CHANNEL_OPEN_OK)

    def call(
        self,
        method_id: wire.MethodId,
        arguments: bytes,
        answer: wire.MethodId,
        *,
        channel: int = CHANNEL,
    ) -> bytes:
        """Send a method, waits for `answer`, returns the answer's encoded arguments.

        Raises:
            PeerError: the broker closed instead.
        """
        self.socket.sendall(wire.method(channel, method_id, arguments))
        return self._wait_for(answer)

    def _wait_for(self, answer: wire.MethodId) -> bytes:
        """Wait for a method; content and other methods before it are dropped."""
        while True:
            at = 0
            for frame in frames.whole_frames(self._received, 0, len(self._received)):
                at = frame.end
                if frames.method_of(self._received, frame) == answer:
                    arguments = frames.arguments_of(self._received, frame)
                    del self._received[:at]
                    return arguments
                frames.raise_if_fatal(self._received, frame)
            del self._received[:at]
            self._received += receive(self.socket)

    def declare_queue(self, name: str, arguments: dict[str, wire.TableItem]) -> None:
        """Declare a durable queue. The broker refuses if it exists with other arguments."""
        encoded = b"\0\0" + wire.short_string(name) + b"\x02" + wire.table(arguments)
        self.call(wire.QUEUE_DECLARE, encoded, wire.QUEUE_DECLARE_OK)

    def count_ready(self, name: str) -> int:
        """Return the number of ready messages in an existing queue, by a passive declare."""
        encoded = b"\0\0" + wire.short_string(name) + b"\x01" + wire.table({})
        declared = self.call(wire.QUEUE_DECLARE, encoded, wire.QUEUE_DECLARE_OK)
        return int.from_bytes(declared[-8:-4], "big")

    def purge_queue(self, name: str) -> None:
        """Drop every ready message of the queue."""
        self.call(wire.QUEUE_PURGE, b"\0\0" + wire.short_string(name) + b"\0", wire.QUEUE_PURGE_OK)

    def delete_queue(self, name: str) -> None:
        """Delete the queue with everything in it."""
        arguments = b"\0\0" + wire.short_string(name) + b"\0"
        self.call(wire.QUEUE_DELETE, arguments, wire.QUEUE_DELETE_OK)

    def declare_exchange(self, name: str, exchange_type: str) -> None:
        """Declare a durable exchange."""
        names = wire.short_string(name) + wire.short_string(exchange_type)
        arguments = b"\0\0" + names + b"\x02" + wire.table({})
        self.call(wire.EXCHANGE_DECLARE, arguments, wire.EXCHANGE_DECLARE_OK)

    def delete_exchange(self, name: str) -> None:
        """Delete the exchange with its bindings."""
        arguments = b"\0\0" + wire.short_string(name) + b"\0"
        self.call(wire.EXCHANGE_DELETE, arguments, wire.EXCHANGE_DELETE_OK)

    def bind_queue(self, queue: str, exchange: str, key: str = "") -> None:
        """Bind a queue to an exchange."""
        names = wire.short_string(queue) + wire.short_string(exchange) + wire.short_string(key)
        self.call(wire.QUEUE_BIND, b"\0\0" + names + b"\0" + wire.table({}), wire.QUEUE_BIND_OK)

    def select_confirms(self) -> None:
        """Put the channel in confirm mode."""
        self.call(wire.CONFIRM_SELECT, b"\0", wire.CONFIRM_SELECT_OK)

    def set_prefetch(self, messages: int) -> None:
        """Limit the unacked messages of each consumer started after this; 0 means no limit."""
        self.call(wire.BASIC_QOS, struct.pack(">IHB", 0, messages, 0), wire.BASIC_QOS_OK)

    def send_consume(self, queue: str, consumer_tag: str, *, auto_ack: bool) -> None:
        """Send basic.consume without waiting: deliveries follow at once, and are not lost."""
        names = wire.short_string(queue) + wire.short_string(consumer_tag)
        flags = b"\x0a" if auto_ack else b"\x08"  # no-ack 2, no-wait 8
        arguments = b"\0\0" + names + flags + wire.table({})
        self.socket.sendall(wire.method(CHANNEL, wire.BASIC_CONSUME, arguments))

    def close(self, unread: bytes = b"") -> None:
        """Close channel, then connection, each acknowledged; deliveries that still arrive are
        dropped.

        The broker has processed everything that was sent before when this returns.
        Args: unread, what the caller has read from the socket and not used.
        """
        self._received += unread
        self.socket.settimeout(10.0)
        reason = struct.pack(">H", 200) + wire.short_string("done") + b"\0\0\0\0"
        self.call(wire.CHANNEL_CLOSE, reason, wire.CHANNEL_CLOSE_OK)
        self.call(wire.CONNECTION_CLOSE, reason, wire.CONNECTION_CLOSE_OK, channel=0)
        self.socket.close()

    def abandon(self) -> None:
        """Close the socket without a closing handshake."""
        with contextlib.suppress(OSError):
            self.socket.close()
