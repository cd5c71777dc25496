"""Headers of the PROXY protocol: whom they name, and where they end."""

import contextlib
import errno
import ipaddress
import os
import socket
import struct

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore_server.listening import proxied_listening
from amqpstore_server.listening.proxied_listening import (
    HEADER_S,
    ProxyProtocolListener,
    _addresses,
    behind_headers,
)
from amqpstore_server.listening.proxy_protocol import (
    SIGNATURE,
    Addresses,
    ProxyHeaderError,
    missing_bytes,
    parsed,
)
from tests.attack.attacker import is_closed, reset

CLIENT = Addresses("203.0.113.7", 41_000, "10.0.0.1", 5672)
CLIENT_6 = Addresses("2001:db8::7", 65_535, "::1", 0)
LINE = b"PROXY TCP4 203.0.113.7 10.0.0.1 41000 5672\r\n"
LINE_6 = b"PROXY TCP6 2001:db8::7 ::1 65535 0\r\n"


def version_2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


BODY = b"\xcb\x00\x71\x07\x0a\x00\x00\x01\xa0\x28\x16\x28"
BODY_6 = (
    ipaddress.ip_address("2001:db8::7").packed
    + ipaddress.ip_address("::1").packed
    + b"\xff\xff\x00\x00"
)
FIELD = b"\x04\x00\x03abc"
MAPPED = ipaddress.ip_address("::ffff:203.0.113.7").packed + bytes(16) + BODY[8:]
HEADERS = {
    LINE: CLIENT,
    LINE_6: CLIENT_6,
    b"PROXY TCP6 ::ffff:203.0.113.7 ::ffff:10.0.0.1 41000 5672\r\n": CLIENT,
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n": None,
    b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n": None,
    version_2(0x21, 0x11, BODY): CLIENT,
    version_2(0x21, 0x11, BODY + FIELD): CLIENT,
    version_2(0x21, 0x21, BODY_6 + FIELD): CLIENT_6,
    version_2(0x21, 0x21, MAPPED): CLIENT._replace(to_host="::"),
    version_2(0x21, 0x00, b"whatever"): None,
    version_2(0x20, 0x00, b""): None,
    version_2(0x20, 0x11, BODY): None,
}


def read(content: bytes) -> tuple[Addresses | None, bytes]:
    """Read a header as from a socket; return whom it names, and what is left."""
    header = b""
    while count := missing_bytes(header):
        if not (piece := content[len(header) :][:count]):
            raise EOFError
        header += piece
    return parsed(header)[0], content[len(header) :]


@pytest.mark.parametrize("header", HEADERS)
def test_whom_a_header_names_and_nothing_behind_it(header: bytes) -> None:
    for behind in (b"", b"AMQP\0\0\x09\x01", b"\r\n", header):
        assert read(header + behind) == (HEADERS[header], behind)
    for size in range(len(header)):
        with pytest.raises(EOFError):
            read(header[:size])


@pytest.mark.parametrize(
    "content",
    [
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01",
        b"PROXX ",
        b"proxy TCP4 203.0.113.7 10.0.0.1 41000 5672\r\n",
        b"PROXY TCP4\n203.0.113.7 10.0.0.1 41000 5672\r\n",
        LINE.replace(b"\r\n", b"\n"),
        LINE.replace(b"TCP4", b"TCP6"),
        LINE.replace(b"TCP4", b"UDP4"),
        LINE.replace(b" 41000", b"  41000"),
        LINE.replace(b"41000", b"65536"),
        LINE.replace(b"41000", b"-1"),
        LINE.replace(b"41000", b"0000041000"),
        LINE.replace(b"41000", b"\xb2"),
        LINE.replace(b"203.0.113.7", b"203.0.113.256"),
        LINE.replace(b"203.0.113.7", b"localhost"),
        LINE.replace(b" 5672", b""),
        LINE.replace(b" 5672", b" 5672 1"),
        LINE_6.replace(b"::7", b"::7%eth0"),
        b"PROXY UNKNOWN " + b"x" * 93 + b"\r\n",
        version_2(0x21, 0x11, BODY[:-1]),
        version_2(0x21, 0x21, BODY),
        version_2(0x21, 0x12, BODY),
        version_2(0x21, 0x31, bytes(216)),
        version_2(0x22, 0x11, BODY),
        version_2(0x11, 0x11, BODY),
        version_2(0x21, 0x11, BODY + bytes(4085)),
        SIGNATURE[:-1] + b"\r" + version_2(0x21, 0x11, BODY)[12:],
    ],
)
def test_what_is_not_a_header_is_refused(content: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read(content)


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]),
    st.binary(max_size=150),
)
@example(b"PROXY ", b"\xff\r\n")
@example(b"PROXY ", b"\r\n")
def test_anything_is_read_or_refused(start: bytes, rest: bytes) -> None:
    try:
        found, _ = read(start + rest)
    except (ProxyHeaderError, EOFError):
        return
    if found is not None:
        ipaddress.ip_address(found.host)


async def client_of(content: bytes, host: str) -> Addresses:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(content)
        return await _addresses(ours, host, 41_000)


@pytest.mark.trio
async def test_loopback_is_believed_from_loopback_only() -> None:
    """Otherwise any client that reaches the port could log in as guest."""
    for claimed in (b"127.0.0.1", b"127.9.9.9"):
        line = LINE.replace(b"203.0.113.7", claimed)
        assert (await client_of(line, "127.0.0.1")).host == claimed.decode()
        with pytest.raises(ProxyHeaderError, match="from another one"):
            await client_of(line, "192.0.2.1")
    assert await client_of(LINE, "192.0.2.1") == CLIENT


class Left(socket.socket):
    """A socket whose peer has reset the connection, after what it sent was received."""

    def getpeername(self) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


@pytest.mark.trio
async def test_a_proxy_that_looks_and_leaves_is_no_fault() -> None:
    """HAProxy's health checks end with a reset, with a header before it or without."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        proxy = socket.create_connection(address)
        host, port = proxy.getsockname()
        with Left(fileno=listener.accept()[0].detach()) as left:
            left.setblocking(False)
            proxy.sendall(version_2(0x20, 0, b""))
            await trio.lowlevel.wait_readable(left)
            assert await _addresses(left, host, port) == (host, port, *address)
            reset(proxy)
            with pytest.raises(EOFError):
                await _addresses(left, host, port)


@pytest.mark.trio
async def test_who_sends_no_header_in_time_is_closed(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ProxyProtocolListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        behind = behind_headers(listener, nursery)
        with behind, socket.create_connection(listener.getsockname()) as slow:
            slow.sendall(LINE[:20])
            slow.setblocking(False)
            while not is_closed(slow):
                mock_clock.jump(HEADER_S / 10)
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert trio.current_time() >= HEADER_S
        nursery.cancel_scope.cancel()
    assert [one.getMessage() for one in caplog.records] == ["no header of the PROXY protocol"]


@pytest.mark.trio
async def test_a_header_that_lay_in_the_socket_while_the_broker_stood_still_is_read(
    mock_clock: trio.testing.MockClock,
) -> None:
    listener = ProxyProtocolListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        behind = behind_headers(listener, nursery)
        with behind, socket.create_connection(listener.getsockname()) as proxy:
            proxy.sendall(LINE[:20])
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(10 * HEADER_S)
            await trio.testing.wait_all_tasks_blocked(0.01)
            proxy.sendall(LINE[20:])
            await trio.testing.wait_all_tasks_blocked(0.05)
            client, peer = behind.accept()
            client.close()
            assert peer == (CLIENT.host, CLIENT.port)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_no_more_headers_are_read_at_a_time_than_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxied_listening, "MAX_UNREAD", 2)
    listener = ProxyProtocolListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        with behind_headers(listener, nursery) as behind, contextlib.ExitStack() as proxies:
            first, *_, last = [
                proxies.enter_context(socket.create_connection(listener.getsockname()))
                for _ in range(3)
            ]
            last.sendall(LINE)
            await trio.testing.wait_all_tasks_blocked(0.05)
            with pytest.raises(BlockingIOError):
                behind.accept()
            first.close()
            await trio.lowlevel.wait_readable(behind)
            client, address = behind.accept()
            client.close()
            assert address == CLIENT[:2]
        nursery.cancel_scope.cancel()
