"""Members connect to each other, with certificates and without; other peers do not get through."""

import queue
import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trustme

from amqpstore_server.cluster.codec import encode, read_follower, read_leader
from amqpstore_server.cluster.frames import Ack, Definition, Frame
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.etcd.host_addresses import THREAD
from amqpstore_server.replication import listening
from amqpstore_server.replication.handshake import HandshakeError, PeerSession, Purpose
from amqpstore_server.replication.links import MAX_CONTENT_BYTES, Link, MemberSocket
from amqpstore_server.replication.listening import (
    MAX_UNPROVEN,
    MemberDialer,
    MemberListener,
    UnprovenConnections,
)
from amqpstore_server.replication.settings import (
    ClusterSettings,
    MemberCertificates,
    cluster_settings,
)
from tests.etcd_process import free_port
from tests.waiting import wait_until

SECRET = bytes(range(32))
WAIT_S = 60.0


class Connections:
    """Connections that a listener has let in."""

    def __init__(self) -> None:
        self.secret: bytes | None = SECRET
        self.sockets: queue.SimpleQueue[tuple[MemberSocket, PeerSession]] = queue.SimpleQueue()

    def accepted(self, sock: MemberSocket, session: PeerSession, peer: str) -> None:
        assert peer.startswith("127.0.0.1:")
        self.sockets.put((sock, session))


class Heard:
    """The frames of a link."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def received(self, link: int, frame: Frame) -> None:
        assert link == 1
        self.frames.put(frame)

    def progressed(self, link: int) -> None:
        pass

    def refused(self, link: int) -> None:
        raise AssertionError(link)

    def disconnected(self, link: int, reason: str) -> None:
        assert link == 1
        assert reason


def certificates(directory: Path, ca: trustme.CA, name: str) -> MemberCertificates:
    """A member's certificate, as files."""
    leaf = ca.issue_cert(name)
    of_ca, certificate, key = (directory / f"{one}.pem" for one in ("ca", name, f"{name}.key"))
    ca.cert_pem.write_to_path(of_ca)
    leaf.cert_chain_pems[0].write_to_path(certificate)
    leaf.private_key_pem.write_to_path(key)
    return MemberCertificates(str(certificate), str(key), str(of_ca))


@pytest.fixture(params=["plain", "tls"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ClusterSettings:
    keys = {}
    if request.param == "tls":
        files = certificates(tmp_path, trustme.CA(), "a.example")
        keys = {f"cluster_{name}": value for name, value in asdict(files).items()}
    found = cluster_settings(
        Config(
            cluster_name="shop",
            cluster_etcd=["http://127.0.0.1:1"],
            cluster_replicate=f"127.0.0.1:{free_port()}",
            **keys,
        )
    )
    assert found is not None
    return found


@pytest.fixture
def connections(settings: ClusterSettings) -> Generator[Connections]:
    found = Connections()
    listener = MemberListener(settings, found)
    yield found
    listener.close()


def address(settings: ClusterSettings) -> str:
    return f"127.0.0.1:{settings.replicate[1]}"


@pytest.mark.parametrize("asked", [Purpose.STREAM, Purpose.TAGGED_STREAM])
def test_frames_pass_both_ways_at_once(
    settings: ClusterSettings, connections: Connections, asked: Purpose
) -> None:
    """Large frames go one way, many small ones the other way. Over TLS they need no tags."""
    ours, of_dialer = MemberDialer(settings).connect(address(settings), SECRET, asked)
    theirs, of_listener = connections.sockets.get(timeout=WAIT_S)
    has_tags = asked is Purpose.TAGGED_STREAM and settings.certificates is None
    expected = Purpose.TAGGED_STREAM if has_tags else Purpose.STREAM
    assert of_dialer.purpose is of_listener.purpose is expected
    assert [one is not None for one in (*of_dialer[1:], *of_listener[1:])] == [has_tags] * 4
    at_follower, at_leader = Heard(), Heard()
    reader = read_leader(MAX_CONTENT_BYTES, of_dialer.read)
    follower = Link(1, ours, reader, at_follower, of_dialer.sent)
    leader = Link(1, theirs, read_follower(of_listener.read), at_leader, of_listener.sent)
    for link in (follower, leader):
        link.start()
    large = [Definition(1, number, number, 0, bytes([number]) * 3_000_000) for number in range(5)]
    small = [Ack(1, number) for number in range(500)]
    for definition in large:
        leader.send(encode(definition))
    for ack in small:
        follower.send(encode(ack))
    assert [at_follower.frames.get(timeout=WAIT_S) for _ in large] == large
    assert [at_leader.frames.get(timeout=WAIT_S) for _ in small] == small
    leader.hang_up()
    follower.hang_up()


def test_another_secret_is_refused(settings: ClusterSettings, connections: Connections) -> None:
    with pytest.raises(HandshakeError, match="does not know the secret"):
        MemberDialer(settings).connect(address(settings), bytes(32), Purpose.STREAM)
    assert connections.sockets.empty()


def test_nobody_is_let_in_before_the_secret_is_known(
    settings: ClusterSettings, connections: Connections
) -> None:
    connections.secret = None
    with pytest.raises((HandshakeError, OSError)):
        MemberDialer(settings).connect(address(settings), SECRET, Purpose.STREAM)


@pytest.mark.parametrize("settings", ["tls"], indirect=True)
def test_a_certificate_of_another_ca_is_refused(
    settings: ClusterSettings, connections: Connections, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    others = certificates(tmp_path / "other", trustme.CA(), "b.example")
    assert settings.certificates is not None
    mixed = replace(others, ca=settings.certificates.ca)
    for shown in (others, mixed):
        stranger = MemberDialer(replace(settings, certificates=shown))
        with pytest.raises((ssl.SSLError, HandshakeError, ConnectionError)):
            stranger.connect(address(settings), SECRET, Purpose.STREAM)
    with pytest.raises((HandshakeError, OSError)):
        MemberDialer(replace(settings, certificates=None)).connect(
            address(settings), SECRET, Purpose.STREAM
        )
    assert connections.sockets.empty()


def test_an_address_that_is_taken_is_named(settings: ClusterSettings) -> None:
    with socket.create_server(settings.replicate), pytest.raises(ConfigError, match="cluster_repl"):
        MemberListener(settings, Connections())


def test_silent_strangers_keep_no_member_out(
    settings: ClusterSettings, connections: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers may come again at any time: the oldest of the address with the most is put out."""
    unproven = [socket.create_connection(settings.replicate) for _ in range(3 * MAX_UNPROVEN)]
    MemberDialer(settings).connect(address(settings), SECRET, Purpose.STREAM)[0].close()
    connections.sockets.get(timeout=WAIT_S)[0].close()
    assert [one.message for one in caplog.records].count(
        "connections that do not prove to be a member's are put out"
    ) == 1
    for one in unproven:
        one.close()


def test_the_crowd_goes_first() -> None:
    """A connection that was there before, from an address of its own, stays."""
    unproven = UnprovenConnections(3)
    pairs = [socket.socketpair() for _ in range(4)]
    for (ours, _), host in zip(
        pairs, ("10.0.0.1", "10.0.0.9", "10.0.0.9", "10.0.0.9"), strict=True
    ):
        unproven.enter(ours, host)
    assert unproven.put_out == 1
    (_, first), (_, second), *_ = pairs
    assert second.recv(1) == b""
    first.setblocking(False)
    with pytest.raises(BlockingIOError):
        first.recv(1)
    for pair in pairs:
        for one in pair:
            one.close()


def test_an_address_is_dialled_by_one_thread_at_a_time(
    settings: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dialling may take seconds, and is tried each second."""
    dialler, goes_on = MemberDialer(settings), threading.Event()
    attempts: list[str] = []

    def hang(address: str, _secret: bytes, _purpose: Purpose) -> NoReturn:
        attempts.append(address)
        goes_on.wait(WAIT_S)
        raise OSError("the name is not known")

    monkeypatch.setattr(dialler, "connect", hang)
    for _ in range(5):
        dialler.dial("nowhere:1", SECRET, lambda _, __: None, Purpose.STREAM)
    dialler.dial("elsewhere:1", SECRET, lambda _, __: None, Purpose.STREAM)
    goes_on.set()
    wait_until(lambda: not dialler._under_way)
    assert sorted(attempts) == ["elsewhere:1", "nowhere:1"]
    dialler.dial("nowhere:1", SECRET, lambda _, __: None, Purpose.STREAM)
    wait_until(lambda: len(attempts) == 3)


def test_the_name_of_a_member_is_looked_up_within_a_time_limit(
    settings: ClusterSettings, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was found last is used while the resolver does not answer."""
    goes_on, hangs, there = threading.Event(), threading.Event(), socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "b.example":
            return there(host, *arguments, **options)
        if hangs.is_set():
            goes_on.wait(WAIT_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(listening, "_LOOK_UP_S", 0.1)
    dialler, name = MemberDialer(settings), f"b.example:{settings.replicate[1]}"
    for _ in range(2):
        dialler.connect(name, SECRET, Purpose.STREAM)[0].close()
        connections.sockets.get(timeout=WAIT_S)[0].close()
        hangs.set()
    with pytest.raises(OSError, match="is not found within"):
        MemberDialer(settings).connect(name, SECRET, Purpose.STREAM)
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()


def test_an_address_of_a_member_that_does_not_answer_is_left_for_the_next(
    settings: ClusterSettings, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers at the first one, as on a machine that is off: its backlog is full."""
    silent, port = "127.0.0.2", settings.replicate[1]
    there = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "b.example":
            return there(host, *arguments, **options)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (one, 0)) for one in (silent, "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(listening, "_CONNECT_TIMEOUT_S", 0.1)
    with ExitStack() as stack:
        stack.enter_context(socket.create_server((silent, port), backlog=0))
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((silent, port))
        dialler = MemberDialer(settings)
        dialler.connect(f"b.example:{port}", SECRET, Purpose.STREAM)[0].close()
        connections.sockets.get(timeout=WAIT_S)[0].close()
