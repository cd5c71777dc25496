"""TLS over a pair of sockets: whatever the pieces, both sides get what the other has sent."""

import random
import socket
import ssl
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress

import pytest
import trio
import trustme
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.loop.tls import TlsError, TlsSocket

CA = trustme.CA()
SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
CA.issue_cert("localhost").configure_cert(SERVER)
SERVER.num_tickets = 0
CLIENT = ssl.create_default_context()
CA.configure_trust(CLIENT)


class Client:
    """The other end: bytes in memory, moved when the test says so."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = CLIENT.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.unsent = b""

    def send(self, most: int = 1 << 20) -> None:
        """Send at most `most` of the bytes that wait."""
        self.unsent += self._outgoing.read()
        if self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent[:most]) :]
            except BlockingIOError:
                return

    def receive(self, most: int = 1 << 20) -> bytes:
        """Return what can be decrypted of what has come."""
        with suppress(BlockingIOError):
            self._incoming.write(self.sock.recv(most))
        content = b""
        try:
            while part := self.tls.read(1 << 16):
                content += part
        except ssl.SSLWantReadError:
            pass
        return content


@contextmanager
def pair() -> Generator[tuple[TlsSocket, Client]]:
    """Return both ends, after the handshake."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        for one in (ours, theirs):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server, client = TlsSocket(ours, SERVER, ClientLog("peer:1")), Client(theirs)
        trio.run(_shake_hands, server, client)
        yield server, client


async def _shake_hands(server: TlsSocket, client: Client) -> None:
    async with trio.open_nursery() as nursery:
        deadline = trio.current_time() + 30
        nursery.start_soon(server.shake_hands, deadline, LoginChecks(), "host")
        await _client_shakes_hands(client)


async def _client_shakes_hands(client: Client) -> None:
    while True:
        try:
            client.tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            while client.unsent or client._outgoing.pending:
                client.send()
                await trio.sleep(0)
            await trio.lowlevel.wait_readable(client.sock)
            client._incoming.write(client.sock.recv(1 << 16))
    while client.unsent or client._outgoing.pending:
        client.send()
        await trio.sleep(0)


@given(
    st.lists(st.integers(0, 40_000), max_size=12),
    st.lists(st.integers(0, 40_000), max_size=12),
    st.integers(0, 1 << 32),
)
@example(out=[357, 38_221], back=[205, 297, 297, 433, 781, 3549, 5129, 6481, 15_593], seed=3556)
@settings(max_examples=40)
def test_all_pieces_arrive(out: list[int], back: list[int], seed: int) -> None:
    """Pieces go both ways at once, and each end has a buffer that is full most of the time."""
    rng = random.Random(seed)
    parts = [rng.randbytes(size) for size in out]
    expected = b"".join(parts)
    answer = b"".join(rng.randbytes(size) for size in back)
    with pair() as (server, client):
        unsent: list[bytes | memoryview] = [*parts]
        received = answered = b""
        if answer:
            client.tls.write(answer)
        while len(received) < len(expected) or len(answered) < len(answer):
            step = rng.choice(("send", "receive", "client sends", "client receives"))
            if step == "send" and unsent:
                try:
                    count = server.sendmsg(unsent)
                except BlockingIOError:
                    continue
                rest = memoryview(b"".join(unsent))[count:]
                cut = rng.randrange(len(rest) + 1)
                unsent = [one for one in (rest[:cut], rest[cut:]) if one]
            elif step == "receive":
                try:
                    answered += server.recv(rng.choice((1, 100, 100_000)))
                except BlockingIOError:
                    continue
            elif step == "client sends":
                client.send(rng.choice((1, 1000, 1 << 20)))
            else:
                received += client.receive(rng.choice((1, 1000, 1 << 20)))
        assert received == expected
        assert answered == answer
        if left := len(b"".join(unsent)):
            # A read has sent them, which the next call says.
            assert server.sendmsg(unsent) == left


def test_what_came_with_the_end_is_read_before_it() -> None:
    with pair() as (server, client):
        client.tls.write(b"last words")
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        client.send()
        with pytest.raises(BlockingIOError):
            server.recv(1000)  # what followed the handshake: nothing
        assert server.recv(1000) == b"last words"
        assert server.recv(1000) == b""


def test_the_client_is_told_of_the_end() -> None:
    with pair() as (server, client):
        server.shutdown(socket.SHUT_WR)
        client._incoming.write(client.sock.recv(1000))
        with pytest.raises(ssl.SSLZeroReturnError):
            client.tls.unwrap()
            client.tls.read(1)
        assert client.sock.recv(1) == b""


def test_bytes_that_are_not_of_tls_end_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with pair() as (server, client):
        client.sock.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(BlockingIOError):
            server.recv(1000)
        assert server.recv(1000) == b""
        assert server.recv(1000) == b""
    (record,) = caplog.records
    assert (record.message, record.__dict__["peer"]) == ("TLS failed", "peer:1")
    assert record.__dict__["connection"] > 0


@pytest.mark.trio
@pytest.mark.parametrize(("pauses", "expected"), [(1, "done"), (2, "it was not done in time")])
async def test_a_handshake_is_excused_once_if_the_broker_stood_still(
    mock_clock: trio.testing.MockClock, pauses: int, expected: str
) -> None:
    """Bytes that the client sends meanwhile lie in its socket."""
    ours, theirs = socket.socketpair()
    ended: list[str] = []
    with closing(ours), closing(theirs):
        for sock in (ours, theirs):
            sock.setblocking(False)
        server, client = TlsSocket(ours, SERVER, ClientLog("peer:1")), Client(theirs)

        async def shake_hands() -> None:
            try:
                await server.shake_hands(trio.current_time() + 5, LoginChecks(), "host")
                ended.append("done")
            except TlsError as error:
                ended.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake_hands)
            for _ in range(pauses):
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(60)
            await trio.testing.wait_all_tasks_blocked()
            if not ended:
                await _client_shakes_hands(client)
    assert ended == [expected]


@pytest.mark.trio
async def test_a_handshake_has_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.setblocking(False)
        server = TlsSocket(ours, SERVER, ClientLog("peer:1"))
        theirs.send(b"\x16\x03")
        with pytest.raises(TlsError, match="in time"):
            await server.shake_hands(trio.current_time() + 5, LoginChecks(), "host")
        assert trio.current_time() == pytest.approx(5, abs=0.1)
