"""A follower's proxy, and the leader's listener behind it, on loopback and in this process."""

import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from amqpstore_server.listening.listening import listen
from amqpstore_server.replication import proxied_clients, proxy
from amqpstore_server.replication.proxied_clients import ProxiedListeners, ProxiedSocket
from amqpstore_server.replication.proxy import KnownLeader, Proxy
from amqpstore_server.replication.proxy_header import ClientAddress, Scheme, encode_header

MUCH = 64 << 20
PATIENT_S = 60.0
FIRST = KnownLeader("first", "1", 1)
SECOND = KnownLeader("second", "2", 2)
HEADER = encode_header(ClientAddress("192.0.2.1", 1, "192.0.2.2", 2, "amqp"))


class Setting:
    """A follower's proxy, and a leader that takes what is passed on."""

    def __init__(self) -> None:
        self.leader: KnownLeader | None = FIRST
        self.listeners = ProxiedListeners()
        self.accepted = self.listeners.open("amqp")
        self.port = self.http_port = 0
        self.dialled: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))

    def connect(self, address: str) -> socket.socket:
        self.dialled.append(address)
        if address == "nowhere":
            raise ConnectionRefusedError
        ours = socket.create_connection(self._server.getsockname())
        theirs, _ = self._server.accept()
        # As in the leader: a thread reads the header.
        threading.Thread(target=self._let_in, args=(theirs,)).start()
        return ours

    def _let_in(self, connection: socket.socket) -> None:
        try:
            client = ProxiedSocket.of(connection)
        except (OSError, EOFError):
            return
        self.listeners.enter(client)

    async def client(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def pair(self) -> tuple[trio.SocketStream, ProxiedSocket]:
        """Return a client, and the leader's end of it."""
        client = await self.client()
        await client.send_all(b"hello")
        there = await self.accept()
        await received(there, 5)
        return client, there

    async def accept(self) -> ProxiedSocket:
        await trio.lowlevel.wait_readable(self.accepted)
        found, address = self.accepted.accept()
        assert isinstance(found, ProxiedSocket)
        assert address == found.getpeername()
        return found

    def close(self) -> None:
        self.accepted.close()
        self._server.close()


async def received(connection: ProxiedSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        await trio.lowlevel.wait_readable(connection)
        piece = connection.recv(size - len(found))
        if not piece:
            break
        found += piece
    return found


@asynccontextmanager
async def running() -> AsyncGenerator[Setting]:
    setting = Setting()
    proxy = Proxy(lambda: setting.leader, setting.connect)
    listener, of_http = await listen([("127.0.0.1", 0), ("127.0.0.1", 0)])
    setting.port, setting.http_port = (one.getsockname()[1] for one in (listener, of_http))
    with trio.fail_after(PATIENT_S):
        async with trio.open_nursery() as nursery:
            listeners: list[tuple[Scheme, socket.socket]] = [("amqp", listener), ("http", of_http)]
            nursery.start_soon(proxy.run, listeners)
            yield setting
            nursery.cancel_scope.cancel()
    setting.close()


Test = Callable[[Setting], Awaitable[Any]]


def proxied(test: Test) -> Callable[[], None]:
    """Make a test that runs with a proxy."""

    async def run() -> None:
        async with running() as setting:
            await test(setting)

    def wrapper() -> None:
        trio.run(run)

    wrapper.__doc__ = test.__doc__
    return wrapper


@proxied
async def test_a_client_is_passed_on_with_its_address(setting: Setting) -> None:
    client, there = await setting.pair()
    assert there.getpeername() == client.socket.getsockname()
    assert there.getsockname() == ("127.0.0.1", setting.port)
    there.send(b"answer")
    assert await client.receive_some() == b"answer"
    assert setting.dialled == ["first"]
    there.close()
    assert await client.receive_some() == b""
    await client.aclose()


@proxied
async def test_what_one_side_has_ended_the_other_one_still_answers(setting: Setting) -> None:
    client, there = await setting.pair()
    await client.send_eof()
    assert await received(there, 1) == b""
    there.send(b"last words")
    assert await client.receive_some() == b"last words"
    there.close()
    assert await client.receive_some() == b""
    await client.aclose()


@proxied
async def test_a_side_that_does_not_read_holds_the_other_one_back(setting: Setting) -> None:
    client, there = await setting.pair()
    await client.send_all(b"x" * 65_536)
    sent = 65_536
    with trio.move_on_after(1.0):
        while sent < MUCH:
            await client.send_all(b"x" * 65_536)
            sent += 65_536
    assert sent < MUCH
    assert len(await received(there, sent)) == sent
    there.close()
    await client.aclose()


@proxied
async def test_another_leader_ends_the_connections_to_the_former_one(setting: Setting) -> None:
    """A leader without its key in etcd may go on: only another leader ends it."""
    client, there = await setting.pair()
    setting.leader = None
    await trio.sleep(0.3)
    there.send(b"goes on")
    assert await client.receive_some() == b"goes on"
    setting.leader = SECOND
    assert await received(there, 1) == b""
    assert await client.receive_some() == b""
    there.close()
    await client.aclose()
    again, there = await setting.pair()
    assert setting.dialled == ["first", "second"]
    there.close()
    await again.aclose()


@proxied
async def test_without_a_leader_that_answers_nobody_is_let_in(setting: Setting) -> None:
    for leader in (None, FIRST._replace(address="nowhere")):
        setting.leader = leader
        client = await setting.client()
        assert await client.receive_some() == b""
        await client.aclose()


async def asked(setting: Setting, path: str) -> tuple[bytes, bytes]:
    """The status line and the body with which a follower answers itself."""
    client = await trio.open_tcp_stream("127.0.0.1", setting.http_port)
    await client.send_all(f"GET {path} HT".encode())
    await client.send_all(b"TP/1.1\r\nHost: a\r\n\r\n")
    answer = b""
    while piece := await client.receive_some():
        answer += piece
    await client.aclose()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body


@proxied
async def test_a_follower_answers_itself_whether_it_lives_and_is_ready(setting: Setting) -> None:
    """A follower without a leader answers too: otherwise each failover would have it restarted."""
    ok = (b"HTTP/1.1 200 OK", b'{"status": "ok"}')
    assert await asked(setting, "/health/live") == ok
    assert await asked(setting, "/health/ready?from=kubelet") == ok
    setting.leader = None
    assert await asked(setting, "/health/live") == ok
    status, body = await asked(setting, "/health/ready")
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert b"nobody leads" in body
    for path in ("/health/leader", "/api/overview"):
        status, body = await asked(setting, path)
        assert status == b"HTTP/1.1 503 Service Unavailable"
        assert b"nobody leads" in body
    assert setting.dialled == []


@proxied
async def test_other_requests_are_passed_on_whole(setting: Setting) -> None:
    accepted = setting.listeners.open("http")
    request = b"GET /health/leader HTTP/1.1\r\nHost: a\r\n\r\n"
    client = await trio.open_tcp_stream("127.0.0.1", setting.http_port)
    await client.send_all(request[:7])
    await client.send_all(request[7:])
    await trio.lowlevel.wait_readable(accepted)
    there, _ = accepted.accept()
    assert isinstance(there, ProxiedSocket)
    assert await received(there, len(request)) == request
    there.close()
    accepted.close()
    await client.aclose()


@proxied
async def test_who_no_longer_leads_takes_nobody(setting: Setting) -> None:
    client, there = await setting.pair()
    setting.accepted.close()
    other = await setting.client()
    assert await other.receive_some() == b""
    there.close()
    for one in (client, other):
        await one.aclose()


@proxied
async def test_only_so_many_clients_are_passed_on(setting: Setting) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "_MAX_CLIENTS", 1)
        client, there = await setting.pair()
        other = await setting.client()
        assert await other.receive_some() == b""
        there.close()
        for one in (client, other):
            await one.aclose()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def test_a_listener_that_is_closed_closes_who_waits() -> None:
    listeners = ProxiedListeners()
    listener = listeners.open("amqp")
    ours, theirs = tcp_pair()
    ours.sendall(HEADER)
    listeners.enter(ProxiedSocket.of(theirs))
    listener.close()
    assert ours.recv(1) == b""
    ours.close()


def test_who_comes_through_a_door_that_is_not_open_is_closed() -> None:
    ours, theirs = tcp_pair()
    ours.sendall(HEADER)
    ProxiedListeners().enter(ProxiedSocket.of(theirs))
    assert ours.recv(1) == b""
    ours.close()


def test_a_client_that_is_passed_on_may_leave_unread_for_a_limited_time() -> None:
    with socket.socket() as sock:
        proxied_clients.bear(sock)
        limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert limit_ms == proxied_clients.UNREAD_MS


@pytest.mark.trio
async def test_the_first_line_of_a_request_is_waited_for_for_a_limited_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"GET /heal")
        assert await proxy._first_line(ours) == b"GET /heal"
    assert trio.current_time() == pytest.approx(proxy._REQUEST_S)
