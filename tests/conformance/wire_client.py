"""A raw-socket AMQP 0-9-1 client for traffic that no proper client would send.

Every byte is put together here, from the specification's numbers and with nothing of the server
imported, so that an error in the server's codec cannot hide in the test's.
"""

import contextlib
import errno
import select
import socket
import struct
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = 0xCE
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
TIMEOUT_S = 60.0

# (class id, method id)
CONNECTION_START = (10, 10)
CONNECTION_START_OK = (10, 11)
CONNECTION_TUNE = (10, 30)
CONNECTION_TUNE_OK = (10, 31)
CONNECTION_OPEN = (10, 40)
CONNECTION_OPEN_OK = (10, 41)
CONNECTION_CLOSE = (10, 50)
CONNECTION_CLOSE_OK = (10, 51)
CONNECTION_BLOCKED = (10, 60)
CONNECTION_UNBLOCKED = (10, 61)
CONNECTION_UPDATE_SECRET = (10, 70)
CHANNEL_OPEN = (20, 10)
CHANNEL_OPEN_OK = (20, 11)
CHANNEL_FLOW = (20, 20)
CHANNEL_FLOW_OK = (20, 21)
CHANNEL_CLOSE = (20, 40)
CHANNEL_CLOSE_OK = (20, 41)
EXCHANGE_DECLARE = (40, 10)
EXCHANGE_DELETE = (40, 20)
EXCHANGE_DELETE_OK = (40, 21)
QUEUE_DECLARE = (50, 10)
QUEUE_DECLARE_OK = (50, 11)
QUEUE_BIND = (50, 20)
QUEUE_DELETE = (50, 40)
QUEUE_DELETE_OK = (50, 41)
BASIC_QOS = (60, 10)
BASIC_QOS_OK = (60, 11)
BASIC_CONSUME = (60, 20)
BASIC_CONSUME_OK = (60, 21)
BASIC_CANCEL = (60, 30)
BASIC_CANCEL_OK = (60, 31)
BASIC_PUBLISH = (60, 40)
BASIC_RETURN = (60, 50)
BASIC_DELIVER = (60, 60)
BASIC_GET = (60, 70)
BASIC_GET_OK = (60, 71)
BASIC_GET_EMPTY = (60, 72)
BASIC_ACK = (60, 80)
BASIC_REJECT = (60, 90)
BASIC_RECOVER = (60, 110)
BASIC_RECOVER_OK = (60, 111)
CONFIRM_SELECT = (85, 10)
CONFIRM_SELECT_OK = (85, 11)
TX_SELECT = (90, 10)
TX_SELECT_OK = (90, 11)
TX_COMMIT = (90, 20)
TX_COMMIT_OK = (90, 21)
TX_ROLLBACK = (90, 30)
TX_ROLLBACK_OK = (90, 31)

Method = tuple[int, int]


def short_string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack(">B", len(encoded)) + encoded


def long_string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(encoded)) + encoded


def table(*fields: bytes) -> bytes:
    """A field table out of `field`s."""
    return long_string(b"".join(fields))


def field(name: str, tag: bytes, value: bytes) -> bytes:
    return short_string(name) + tag + value


def frame(frame_type: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", frame_type, channel, len(payload)) + payload + bytes([end])


def method(channel: int, which: Method, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def header(
    channel: int, body_size: int, properties: bytes = b"\x00\x00", class_id: int = 60
) -> bytes:
    """A content header; `properties` are the flags and the values behind them."""
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, 0, body_size) + properties)


def body(channel: int, payload: bytes) -> bytes:
    return frame(BODY, channel, payload)


def heartbeat(channel: int = 0) -> bytes:
    return frame(HEARTBEAT, channel, b"")


def start_ok(
    mechanism: str = "PLAIN",
    response: bytes = b"\x00guest\x00guest",
    locale: str = "en_US",
    capabilities: tuple[str, ...] = (),
) -> bytes:
    properties = [field("product", b"S", long_string("wire client"))]
    if capabilities:
        claims = table(*(field(name, b"t", b"\x01") for name in capabilities))
        properties.append(field("capabilities", b"F", claims))
    client_properties = table(*properties)
    return method(
        0,
        CONNECTION_START_OK,
        client_properties + short_string(mechanism) + long_string(response) + short_string(locale),
    )


def tune_ok(channel_max: int, frame_max: int, heartbeat_s: int) -> bytes:
    return method(0, CONNECTION_TUNE_OK, struct.pack(">HIH", channel_max, frame_max, heartbeat_s))


def connection_open(virtual_host: str) -> bytes:
    return method(0, CONNECTION_OPEN, short_string(virtual_host) + b"\x00" + b"\x00")


def connection_close(reply_code: int = 200) -> bytes:
    return method(
        0, CONNECTION_CLOSE, struct.pack(">H", reply_code) + short_string("bye") + bytes(4)
    )


def channel_open(channel: int) -> bytes:
    return method(channel, CHANNEL_OPEN, b"\x00")


def channel_close(channel: int) -> bytes:
    return method(channel, CHANNEL_CLOSE, struct.pack(">H", 200) + short_string("bye") + bytes(4))


def queue_declare(channel: int, queue: str, bits: int = 0b100) -> bytes:
    """Bits from the lowest: passive, durable, exclusive, auto-delete, no-wait."""
    arguments = struct.pack(">H", 0) + short_string(queue) + bytes([bits]) + table()
    return method(channel, QUEUE_DECLARE, arguments)


def queue_bind(channel: int, queue: str, exchange: str, routing_key: str) -> bytes:
    names = short_string(queue) + short_string(exchange) + short_string(routing_key)
    return method(channel, QUEUE_BIND, bytes(2) + names + b"\x00" + table())


def publish_method(
    channel: int,
    routing_key: str,
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    return method(
        channel,
        BASIC_PUBLISH,
        struct.pack(">H", 0)
        + short_string(exchange)
        + short_string(routing_key)
        + bytes([mandatory | immediate << 1]),
    )


def publish(channel: int, routing_key: str, payload: bytes, properties: bytes = b"\0\0") -> bytes:
    """A whole message to the default exchange, its body in one frame."""
    content = body(channel, payload) if payload else b""
    return (
        publish_method(channel, routing_key) + header(channel, len(payload), properties) + content
    )


def basic_get(channel: int, queue: str, no_ack: bool = True) -> bytes:
    return method(channel, BASIC_GET, struct.pack(">H", 0) + short_string(queue) + bytes([no_ack]))


def waiting_get(channel: int, queue: str, wait_ms: int, no_ack: bool = True) -> bytes:
    """basic.get with an extension of amqpstore's: a table behind its arguments."""
    wait = table(field("x-wait", b"I", struct.pack(">i", wait_ms)))
    plain = struct.pack(">H", 0) + short_string(queue) + bytes([no_ack])
    return method(channel, BASIC_GET, plain + wait)


def basic_consume(channel: int, queue: str, consumer_tag: str, no_ack: bool = True) -> bytes:
    arguments = struct.pack(">H", 0) + short_string(queue) + short_string(consumer_tag)
    return method(channel, BASIC_CONSUME, arguments + bytes([no_ack << 1]) + table())


def basic_cancel(channel: int, consumer_tag: str) -> bytes:
    return method(channel, BASIC_CANCEL, short_string(consumer_tag) + b"\x00")


def confirm_select(channel: int) -> bytes:
    return method(channel, CONFIRM_SELECT, b"\x00")


class Frame(NamedTuple):
    """A frame as read from the socket."""

    frame_type: int
    channel: int
    payload: bytes

    @property
    def is_heartbeat(self) -> bool:
        return self.frame_type == HEARTBEAT

    @property
    def method(self) -> Method | None:
        if self.frame_type != METHOD:
            return None
        class_id, method_id = struct.unpack_from(">HH", self.payload)
        return class_id, method_id

    @property
    def arguments(self) -> bytes:
        return self.payload[4:]


class Close(NamedTuple):
    """The arguments of a connection.close or a channel.close."""

    reply_code: int
    reply_text: str
    failing_method: Method

    @classmethod
    def decode(cls, arguments: bytes) -> Self:
        reply_code, length = struct.unpack_from(">HB", arguments)
        text = arguments[3 : 3 + length].decode()
        class_id, method_id = struct.unpack_from(">HH", arguments, 3 + length)
        return cls(reply_code, text, (class_id, method_id))


class Tune(NamedTuple):
    """The server's proposal."""

    channel_max: int
    frame_max: int
    heartbeat_s: int


class WireClient:
    """One TCP connection. Sends whatever bytes it is given and reads frames."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._received = b""
        self._socket = socket.create_connection(
            (parts.hostname or "127.0.0.1", parts.port or 5672), TIMEOUT_S
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._virtual_host = unquote(parts.path[1:]) or "/"
        self.tune = Tune(0, 0, 0)
        self.frame_max = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    @classmethod
    def greeted(cls, url: str) -> Self:
        """Connect, up to the server's connection.start."""
        client = cls(url)
        try:
            client.send(PROTOCOL_HEADER)
            client.expect(CONNECTION_START)
        except (AssertionError, OSError):
            client._socket.close()
            raise
        return client

    @classmethod
    def tuning(cls, url: str, capabilities: tuple[str, ...] = ()) -> Self:
        """Connect, up to the server's connection.tune."""
        client = cls.greeted(url)
        client.send(start_ok(capabilities=capabilities))
        arguments = client.expect(CONNECTION_TUNE).arguments
        client.tune = Tune(*struct.unpack(">HIH", arguments))
        return client

    @classmethod
    def connected(
        cls,
        url: str,
        channels: int = 0,
        heartbeat_s: int = 0,
        frame_max: int | None = None,
        channel_max: int | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> Self:
        """Connect, up to connection.open-ok, and open the channels 1 to `channels`."""
        client = cls.tuning(url, capabilities)
        client.frame_max = client.tune.frame_max if frame_max is None else frame_max
        if channel_max is None:
            channel_max = client.tune.channel_max
        client.send(tune_ok(channel_max, client.frame_max, heartbeat_s))
        client.send(connection_open(client._virtual_host))
        client.expect(CONNECTION_OPEN_OK)
        for channel in range(1, channels + 1):
            client.open_channel(channel)
        return client

    @property
    def socket(self) -> socket.socket:
        """The socket, for calls that are not about frames."""
        return self._socket

    def open_channel(self, channel: int) -> None:
        self.send(channel_open(channel))
        self.expect(CHANNEL_OPEN_OK, channel)

    def declare_queue(self, queue: str, channel: int = 1) -> None:
        """Declare an exclusive queue."""
        self.send(queue_declare(channel, queue))
        self.expect(QUEUE_DECLARE_OK, channel)

    def send(self, *parts: bytes) -> None:
        self._socket.sendall(b"".join(parts))

    def send_bytewise(self, stream: bytes) -> None:
        """One octet a write, and with Nagle's algorithm off one a packet."""
        for octet in stream:
            self._socket.sendall(bytes([octet]))

    def send_to_closing_peer(self, *parts: bytes) -> None:
        """Send as `send` does, where the peer may close, or have closed, before it has read
        everything.
        """
        try:
            self.send(*parts)
        except (BrokenPipeError, ConnectionResetError):
            return

    def abort(self) -> None:
        """Close with a reset, as when a process dies or a cable is cut."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def read_frame(self) -> Frame | None:
        """The next frame; None when the peer closed the socket.

        Raises: TimeoutError when neither comes; AssertionError for a frame without its end.
        """
        start = self._read_exactly(7)
        if not start:
            return None
        frame_type, channel, size = struct.unpack(">BHI", start)
        payload = self._read_exactly(size + 1)
        assert payload[-1:] == bytes([FRAME_END]), "a frame without its end"
        return Frame(frame_type, channel, payload[:-1])

    def next_frame(self) -> Frame:
        """The next frame that is not a heartbeat."""
        while True:
            received = self.read_frame()
            assert received is not None, "the server closed the socket"
            if not received.is_heartbeat:
                return received

    def expect(self, which: Method, channel: int = 0) -> Frame:
        received = self.next_frame()
        assert (received.method, received.channel) == (which, channel), received
        return received

    def expect_content(self, channel: int = 1) -> tuple[bytes, bytes]:
        """The properties, as flags and values, and the body of the content that comes next."""
        head = self.next_frame()
        assert (head.frame_type, head.channel) == (HEADER, channel), head
        (body_size,) = struct.unpack_from(">Q", head.payload, 4)
        received = b""
        while len(received) < body_size:
            part = self.next_frame()
            assert (part.frame_type, part.channel) == (BODY, channel), part
            received += part.payload
        assert len(received) == body_size
        return head.payload[12:], received

    def get(self, queue: str, channel: int = 1) -> tuple[bytes, bytes]:
        """Properties and body of the queue's first message."""
        self.send(basic_get(channel, queue))
        self.expect(BASIC_GET_OK, channel)
        return self.expect_content(channel)

    def has_frame(self, wait_s: float) -> bool:
        """Tell whether there is something to read, now or within that time."""
        if self._received:
            return True
        # Not select(): the process of a worker may have more than 1,024 descriptors.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def ready(self, queue: str, channel: int = 1) -> int:
        """Return how many messages wait in the queue, according to a passive declare."""
        self.send(queue_declare(channel, queue, bits=0b00001))
        arguments = self.expect(QUEUE_DECLARE_OK, channel).arguments
        (count,) = struct.unpack_from(">I", arguments, 1 + arguments[0])
        return int(count)

    def read_to_end(self) -> bytes:
        """All octets that come until the peer closes the socket."""
        while self._receive():
            pass
        rest, self._received = self._received, b""
        return rest

    def read_to_reset(self) -> None:
        """Read until the peer closes the socket, in order or not."""
        with contextlib.suppress(ConnectionResetError):
            self.read_to_end()

    def expect_closed(self) -> None:
        """The server closes the socket and sends nothing more before that."""
        assert self.read_to_end() == b""

    def expect_close_ok(self) -> None:
        """The answer to this client's connection.close, and then the end of the socket."""
        self.expect(CONNECTION_CLOSE_OK)
        self.finish()

    def finish(self) -> None:
        """Send nothing more; the server then closes, and sends nothing more either."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:  # the server has closed already
            assert error.errno == errno.ENOTCONN, error  # noqa: PT017
        self.expect_closed()

    def expect_connection_close(self, *reply_codes: int) -> Close:
        """The server closes the connection for this reason and, once told ok, the socket."""
        received = self.next_frame()
        assert (received.method, received.channel) == (CONNECTION_CLOSE, 0), received
        close = Close.decode(received.arguments)
        assert close.reply_code in reply_codes, close
        self.send_to_closing_peer(method(0, CONNECTION_CLOSE_OK))
        self.expect_closed()
        return close

    def expect_channel_close(self, channel: int, reply_code: int) -> Close:
        """The server closes the channel for this reason; close-ok is left to the test."""
        close = Close.decode(self.expect(CHANNEL_CLOSE, channel).arguments)
        assert close.reply_code == reply_code, close
        return close

    def expect_alive(self) -> None:
        """The connection still works: a fresh channel opens."""
        channel = self.tune.channel_max or 65535
        self.send(channel_open(channel))
        self.expect(CHANNEL_OPEN_OK, channel)

    def _read_exactly(self, size: int) -> bytes:
        """`size` octets; none when the socket closes before the first of them."""
        while len(self._received) < size:
            if not self._receive():
                assert not self._received, "the socket closed in the middle of a frame"
                return b""
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def _receive(self) -> bool:
        try:
            chunk = self._socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._received += chunk
        return bool(chunk)
