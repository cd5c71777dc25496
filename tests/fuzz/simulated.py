"""Connections without sockets to the simulated broker."""

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from amqpstore import Options
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.clients.alarm_state import AlarmState, NoAlarm
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import decode_content_header
from amqpstore_server.protocol.events import ContentHeader
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.methods import Method, decode_method
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from tests.simulated_broker import OPTIONS, SimulatedBroker

USER = "guest"

_FRAME = struct.Struct(">BHI")
_CONTENT_METHODS = (methods.BasicDeliver, methods.BasicReturn, methods.BasicGetOk)


class Answer(NamedTuple):
    """A method of the server's, and the content that it carried."""

    channel: int
    method: Method
    header: ContentHeader | None = None
    body: bytes = b""


class SimulatedServer(SimulatedBroker):
    """A broker to which clients connect without sockets."""

    def __init__(
        self,
        vhosts: tuple[str, ...] = (DEFAULT_VHOST,),
        limits: Limits | None = None,
        options: Options = OPTIONS,
    ):
        self.limits = limits or Limits(max_message_bytes=100_000)
        self.clients: list[SimulatedClient] = []
        self.alarms: AlarmState = NoAlarm()
        super().__init__(options=options)
        for vhost in vhosts:
            self.broker.define(Defined([vhost]))
            self.broker.define_permissions(USER, vhost, ALL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.store.abandon()

    def restart(self) -> None:
        """Stop in order, and start over the same files. No client may be connected."""
        assert not self.clients
        self.settle()
        super().restart()
        self.settle()

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_ms() / 1000

    def pass_time(self, ms: int) -> None:
        """Let time pass, in one leap, and have done what is due."""
        super().pass_time(ms)
        for client in self.clients:
            client.connection.tick(self.now_s)
        self.settle()

    def sent(self) -> bool:
        return sum(client.take_output() | client.go_on() for client in self.clients) > 0


class SimulatedClient:
    """One connection to it. What the server sends is checked for its form, and kept."""

    def __init__(self, server: SimulatedServer) -> None:
        self.connection = AmqpConnection(
            server.broker,
            server.limits,
            peer="simulated",
            product=Product("amqpstore", "0"),
            may_impersonate=lambda _user: False,
            on_output=lambda: None,
            now=server.now_s,
            alarms=server.alarms,
        )
        self.server = server
        self.answers: list[Answer] = []
        self.has_foreign_header = False
        self._received = b""
        self._contents: dict[int, tuple[Answer, list[bytes]]] = {}
        server.clients.append(self)

    @classmethod
    def opened(
        cls,
        server: SimulatedServer,
        vhost: str = DEFAULT_VHOST,
        channels: int = 0,
        heartbeat_s: int = 0,
    ) -> Self:
        """Return a client with an open connection, and the channels 1 to `channels`."""
        client = cls(server)
        client.send(PROTOCOL_HEADER)
        client.ask(0, client.start_ok())
        limits = server.limits
        tune_ok = methods.ConnectionTuneOk(
            channel_max=limits.channel_max, frame_max=limits.frame_max, heartbeat=heartbeat_s
        )
        client.ask(0, tune_ok, methods.ConnectionOpen(virtual_host=vhost))
        for channel in range(1, channels + 1):
            client.ask(channel, methods.ChannelOpen())
        client.answers.clear()
        return client

    @staticmethod
    def start_ok(password: bytes = b"guest") -> methods.ConnectionStartOk:
        return methods.ConnectionStartOk(
            client_properties={"capabilities": {"consumer_cancel_notify": True}},
            mechanism="PLAIN",
            response=b"\0guest\0" + password,
            locale="en_US",
        )

    def send(self, octets: bytes) -> None:
        """One read of the server's, and all that comes of it."""
        self.connection.receive(octets, self.server.now_s)
        if self.connection.is_authenticating:
            login = self.connection.negotiated.login
            granted = (login.user, login.password) == (USER, b"guest")
            self.connection.logged_in(CheckedLogin(granted), self.server.now_s)
        self.server.settle()

    def ask(self, channel: int, *asked: Method) -> list[Answer]:
        """Send methods; what came of them."""
        before = len(self.answers)
        self.send(b"".join(method_frame(channel, method.encode()) for method in asked))
        return self.answers[before:]

    def lose(self) -> None:
        """The socket is gone."""
        self.connection.lost()
        self.server.clients.remove(self)
        self.server.settle()

    def go_on(self) -> bool:
        """Have input handled that waits for nothing but its turn. Returns whether there was any."""
        connection = self.connection
        if (
            connection.is_authenticating
            or connection.outbox.is_unread
            or connection.input.must_not_be_read
        ):
            return False
        is_waiting = connection.is_input_paused
        connection.go_on(self.server.now_s)
        return is_waiting

    def take_output(self) -> bool:
        """Take in what the server sent. Returns whether it was anything."""
        outbox = self.connection.outbox
        if not outbox.byte_count:
            return False
        was_writable = outbox.is_writable
        while outbox.byte_count:
            self._received += b"".join(outbox.next_buffers())
        if not was_writable:
            self.connection.writable()
        if self._received.startswith(b"AMQP"):
            assert self._received == PROTOCOL_HEADER
            self.has_foreign_header = True
            self._received = b""
        for frame_type, channel, payload in self._frames():
            self._frame(frame_type, channel, payload)
        assert not self._received, "the server sent half a frame"
        return True

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        offset = 0
        while len(self._received) - offset >= _FRAME.size:
            frame_type, channel, size = _FRAME.unpack_from(self._received, offset)
            end = offset + _FRAME.size + size
            assert end < len(self._received), "the server sent half a frame"
            assert self._received[end] == 0xCE
            assert size + 8 <= self.connection.negotiated.frame_max
            yield frame_type, channel, self._received[offset + _FRAME.size : end]
            offset = end + 1
        self._received = self._received[offset:]

    def _frame(self, frame_type: int, channel: int, payload: bytes) -> None:
        if frame_type == 8:
            assert (channel, payload) == (0, b"")
        elif frame_type == 1:
            assert channel not in self._contents, "a method in the middle of a content"
            method = decode_method(payload)
            if isinstance(method, _CONTENT_METHODS):
                self._contents[channel] = Answer(channel, method), []
            else:
                self.answers.append(Answer(channel, method))
        else:
            self._content_frame(frame_type, channel, payload)

    def _content_frame(self, frame_type: int, channel: int, payload: bytes) -> None:
        assert frame_type in (2, 3)
        answer, chunks = self._contents[channel]
        if frame_type == 2:
            assert answer.header is None
            answer = answer._replace(header=decode_content_header(payload))
        else:
            chunks.append(payload)
        assert answer.header is not None, "a content body before its header"
        self._contents[channel] = answer, chunks
        size = sum(map(len, chunks))
        assert size <= answer.header.body_size
        if size == answer.header.body_size:
            del self._contents[channel]
            self.answers.append(answer._replace(body=b"".join(chunks)))
