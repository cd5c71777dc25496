"""Frames of links arrive in order, and no thread waits for a peer that does not read."""

import queue
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from amqpstore_server.cluster.codec import PREFIX, encode, read_follower, read_leader
from amqpstore_server.cluster.frame_tags import TAG_BYTES, FrameTags
from amqpstore_server.cluster.frames import Ack, Beat, CaughtUp, Frame, Resign, StorePiece
from amqpstore_server.replication import links
from amqpstore_server.replication.links import MAX_CONTENT_BYTES, Link, Write, prepare
from tests.pairs import pair_of
from tests.waiting import wait_until

KEY = bytes(range(32))
WAIT_S = 60.0


class Heard:
    """Records of what happened on a link."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.progress: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.refusals: list[int] = []

    def progressed(self, link: int) -> None:
        self.progress.put(link)

    def received(self, link: int, frame: Frame) -> None:
        assert link in (1, 2)
        self.frames.put(frame)

    def refused(self, link: int) -> None:
        self.refusals.append(link)

    def disconnected(self, link: int, reason: str) -> None:
        assert link in (1, 2)
        self.ends.put(reason)


class Pair:
    """A link, and the socket at its other end."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.heard = Heard()
        self.link = Link(1, ours, read_follower(), self.heard)
        self.link.start()


@pytest.fixture
def pair() -> Generator[Pair]:
    one = Pair()
    yield one
    one.link.hang_up()
    one.peer.close()
    one.heard.ends.get(timeout=WAIT_S)


def test_frames_arrive_in_order_up_to_the_end(pair: Pair) -> None:
    """Frames of a job arrive so too, and those sent just before the link is hung up."""
    heard = Heard()
    other = Link(2, pair.peer, read_follower(), heard)
    other.start()
    frames = [Ack(1, number) for number in range(100)]

    def job(write: Write) -> None:
        for frame in frames[40:60]:
            write(frame)

    for frame in frames[:40]:
        pair.link.send(encode(frame))
    pair.link.work(job)
    for frame in frames[60:]:
        pair.link.send(encode(frame))
    pair.link.hang_up()
    assert [heard.frames.get(timeout=WAIT_S) for _ in frames] == frames
    heard.ends.get(timeout=WAIT_S)
    pair.link.send(encode(frames[0]))
    other.hang_up()


def test_a_large_frame_is_noticed_while_it_comes(pair: Pair) -> None:
    heard = Heard()
    other = Link(2, pair.peer, read_leader(1 << 20), heard)
    other.start()
    head, content = encode(StorePiece(1, "a", 0, 1, 1, bytes(1 << 20)))
    pair.link.send((head, content[:1000]))
    pair.link.send((b"", content[1000:100_000]))
    assert heard.progress.get(timeout=WAIT_S) == 2
    pair.link.send((b"", content[100_000:]))
    heard.frames.get(timeout=WAIT_S)
    other.hang_up()


def test_what_is_not_a_frame_ends_the_link(pair: Pair) -> None:
    pair.peer.sendall(bytes(range(100)))
    assert "is announced" in pair.heard.ends.get(timeout=WAIT_S)
    assert pair.heard.refusals == [1]
    pair.heard.ends.put("")


@pytest.mark.parametrize(
    "frame", [Ack(1, 2), StorePiece(1, "a", 0, 1, 1, bytes(100_000))], ids=["small", "large"]
)
def test_a_frame_is_sent_by_whoever_has_it(frame: Frame) -> None:
    """No other thread is woken for what the socket takes: here none runs."""
    ours, peer = socket.socketpair()
    with ours, peer:
        Link(1, ours, read_follower(), Heard()).send(encode(frame))
        expected = b"".join(encode(frame))
        assert received_by(peer, len(expected)) == expected


def received_by(peer: socket.socket, size: int) -> bytes:
    received = bytearray()
    peer.settimeout(WAIT_S)
    while len(received) < size and (more := peer.recv(1 << 20)):
        received += more
    return bytes(received)


@pytest.mark.parametrize("size", [60_000, 900_000])
def test_what_the_socket_does_not_take_at_once_follows_in_order(pair: Pair, size: int) -> None:
    """The thread that has a large frame sends a part of it, and the thread that writes the rest."""
    sent = [(b"%7d" % number, bytes([number]) * size) for number in range(50)]
    for one in sent:
        pair.link.send(one)
    expected = b"".join(head + content for head, content in sent)
    assert received_by(pair.peer, len(expected)) == expected


def test_a_frame_waits_for_the_thread_that_writes(pair: Pair) -> None:
    writes, may_go_on = threading.Event(), threading.Event()
    first, second = Ack(1, 1), Ack(1, 2)

    def job(write: Write) -> None:
        writes.set()
        may_go_on.wait(WAIT_S)
        write(first)

    pair.link.work(job)
    assert writes.wait(WAIT_S)
    pair.link.send(encode(second))
    may_go_on.set()
    expected = b"".join(encode(first) + encode(second))
    assert received_by(pair.peer, len(expected)) == expected


def test_a_beat_goes_before_what_waits_and_between_the_frames_of_a_job(pair: Pair) -> None:
    """A catch-up takes as long as it takes: beats behind it would come when it is too late. Of
    several the newest one is enough.
    """
    writes, may_go_on = threading.Event(), threading.Event()
    caught_up = [Ack(1, number) for number in range(3)]
    beats, live = [Beat(1, number, 0) for number in range(2)], Ack(1, 9)

    def job(write: Write) -> None:
        write(caught_up[0])
        writes.set()
        may_go_on.wait(WAIT_S)
        for one in caught_up[1:]:
            write(one)

    pair.link.work(job)
    assert writes.wait(WAIT_S)
    pair.link.send(encode(live))
    for beat in beats:
        pair.link.send(encode(beat), is_urgent=True)
    may_go_on.set()
    frames: list[Frame] = [caught_up[0], beats[1], *caught_up[1:], live]
    expected = b"".join(b"".join(encode(one)) for one in frames)
    assert received_by(pair.peer, len(expected)) == expected


def test_a_beat_waits_for_the_rest_of_a_frame(pair: Pair) -> None:
    head, content = encode(StorePiece(1, "a", 0, 1, 1, bytes(60_000)))
    beat = encode(Beat(1, 1, 0))
    count = 50
    for _ in range(count):
        pair.link.send((head, content))
    pair.link.send(beat, is_urgent=True)
    reader = read_leader(1 << 20)
    reader.receive(received_by(pair.peer, count * (len(head) + len(content)) + sum(map(len, beat))))
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(frame)
    assert Beat(1, 1, 0) in frames[:-1]
    assert len(frames) == count + 1


def test_frames_get_their_tags_in_the_order_in_which_they_are_sent() -> None:
    """Some frames are taken by the socket at once, some in part or not at all; others are of a job,
    or are beats that overtake them.
    """
    ours, theirs = socket.socketpair()
    heard = Heard()
    sender = Link(1, ours, read_follower(), Heard(), FrameTags(KEY))
    receiver = Link(2, theirs, read_leader(1 << 20, FrameTags(KEY)), heard)
    piece = StorePiece(1, "a", 0, 1, 1, bytes(60_000))
    sender.start()

    def job(write: Write) -> None:
        for _ in range(100):
            write(piece)

    for number in range(100):
        sender.send(encode(piece))
        sender.send(encode(Beat(1, number, 0)), is_urgent=True)
        sender.send(encode(Resign(1)))
    sender.work(job)
    sender.send(encode(Beat(1, 100, 0)), is_urgent=True)
    sender.send(encode(CaughtUp(1, 1, 1)))
    receiver.start()
    frames: list[Frame] = []
    while not frames or not isinstance(frames[-1], CaughtUp):
        frames.append(heard.frames.get(timeout=WAIT_S))
    beats = [one.number for one in frames if isinstance(one, Beat)]
    assert beats == sorted(beats)
    assert beats[-1] == 100
    assert len(frames) - len(beats) == 301
    assert not heard.refusals
    sender.hang_up()
    receiver.hang_up()


def test_a_peer_that_does_not_read_loses_its_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender never waits for such a peer."""
    monkeypatch.setattr(links, "_MAX_QUEUED_BYTES", 1 << 20)
    for _ in range(100):
        pair.link.send((b"", bytes(1 << 16)))
    with pair.peer:
        pair.peer.settimeout(WAIT_S)
        wait_until(lambda: not pair.peer.recv(1 << 20))
    pair.heard.ends.get(timeout=WAIT_S)
    pair.heard.ends.put("")


class TcpPair:
    """A link over TCP, and the socket at its other end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        self.shut = threading.Event()
        """Set once nothing more is sent."""
        self.heard = Heard()
        self.link = Link(1, _Watched(ours, self.shut), read_leader(1 << 20), self.heard)


class _Watched(socket.socket):
    """A socket that tells when it is shut down."""

    def __init__(self, sock: socket.socket, shut: threading.Event) -> None:
        super().__init__(fileno=sock.detach())
        self._shut = shut

    def shutdown(self, how: int) -> None:
        try:
            super().shutdown(how)
        finally:
            self._shut.set()


def test_what_was_sent_last_arrives_although_the_peer_goes_on_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader resigns while its followers ack: a reset would take the place of what it said."""
    monkeypatch.setattr(links, "_LAST_READ_S", WAIT_S)
    tcp = TcpPair()
    sent = encode(StorePiece(1, "a", 0, 1, 1, bytes(1 << 20)))
    with tcp.peer as peer:
        tcp.link.start()
        tcp.link.send(sent)
        tcp.link.send(encode(Resign(1)))
        tcp.link.hang_up()
        expected = b"".join(sent + encode(Resign(1)))
        received = b""
        while len(received) < len(expected):
            peer.sendall(b"".join(encode(Ack(1, 1))))
            received += received_by(peer, 1 << 16 if not received else len(expected))
        assert received == expected
        assert tcp.shut.wait(WAIT_S)
        for _ in range(2):
            peer.sendall(b"".join(encode(Ack(1, 1))))
        assert peer.recv(1) == b""
    tcp.heard.ends.get(timeout=WAIT_S)
    # The acks were no longer wanted.
    assert tcp.heard.frames.empty()


def test_what_has_come_is_taken_although_the_peer_has_closed_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader resigns, and its process ends: an ack that can no longer be sent must not keep its
    follower from hearing of it.
    """
    monkeypatch.setattr(links, "_LAST_READ_S", WAIT_S)
    tcp = TcpPair()
    goes_on = threading.Event()
    happened: queue.SimpleQueue[str] = queue.SimpleQueue()

    def received(_link: int, frame: Frame) -> None:
        goes_on.wait(WAIT_S)
        happened.put(type(frame).__name__)

    monkeypatch.setattr(tcp.heard, "received", received)
    monkeypatch.setattr(tcp.heard, "disconnected", lambda *_: happened.put("disconnected"))
    tcp.link.start()
    for frame in (Beat(1, 1, 0), Beat(1, 2, 0), Resign(1)):
        tcp.peer.sendall(b"".join(encode(frame)))
    tcp.link.send(encode(Ack(1, 1)))
    wait_until(lambda: len(tcp.peer.recv(1 << 10, socket.MSG_PEEK)) > 0)
    tcp.peer.close()
    while not tcp.shut.is_set():
        tcp.link.send(encode(Ack(1, 2)))
    goes_on.set()
    heard = [happened.get(timeout=WAIT_S) for _ in range(4)]
    assert heard == ["Beat", "Beat", "Resign", "disconnected"]


def test_a_job_that_fails_ends_the_link(pair: Pair) -> None:
    def job(_write: Write) -> None:
        raise OSError("the segment is gone")

    pair.link.work(job)
    assert pair.heard.ends.get(timeout=WAIT_S) == "the segment is gone"
    pair.heard.ends.put("")


@pytest.mark.parametrize("more", [0, 1])
def test_a_leader_sends_no_more_content_than_a_follower_takes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    """Announced content is refused before it comes, and before memory for it is taken."""
    with pair_of(tmp_path) as members:
        lengths = PREFIX.pack(10, MAX_CONTENT_BYTES + more, 0)
        members.leader.socket.sendall(bytes(TAG_BYTES) + lengths)
        if not more:
            assert members.follower.read()
            assert members.follower.controller._links
            return
        members.follower.link._read()
        assert not members.follower.controller._links
        assert members.follower.controller.refused_frames == 1
        (refused,) = [vars(one) for one in caplog.records if one.levelname == "ERROR"]
        assert "is announced with" in refused["reason"]


def test_a_peer_that_takes_nothing_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SEND_TIMEOUT_S", 0.05)
    pair = Pair()
    with pair.peer:
        pair.link.send((b"", bytes(16 << 20)))
        ends = [pair.heard.ends.get(timeout=WAIT_S) for _ in ("reads", "writes")]
    assert "the peer takes nothing" in ends


class _Counted(socket.socket):
    """A socket that counts how often it was read from."""

    reads = 0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self.reads += 1
        return super().recv(size, flags)


def test_a_peer_that_has_nothing_to_say_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel limits each wait, so that a frame is read in one call."""
    monkeypatch.setattr(links, "_SEND_TIMEOUT_S", 0.05)
    sock, peer = socket.socketpair()
    ours = _Counted(fileno=sock.detach())
    heard = Heard()
    link = Link(1, ours, read_follower(), heard)
    assert ours.gettimeout() is None
    with peer:
        link.start()
        wait_until(lambda: ours.reads > 3, "reads without a frame")
        peer.sendall(b"".join(encode(Ack(1, 2))))
        assert heard.frames.get(timeout=WAIT_S) == Ack(1, 2)
        link.hang_up()
        peer.shutdown(socket.SHUT_WR)
        assert heard.ends.get(timeout=WAIT_S) == "the peer has closed the connection"


def test_a_peer_that_does_not_end_its_side_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_SEND_TIMEOUT_S", 10 * WAIT_S)
    monkeypatch.setattr(links, "_LAST_READ_S", 0.05)
    pair = Pair()
    with pair.peer:
        pair.link.hang_up()
        assert pair.peer.recv(1) == b""

        def is_closed() -> bool:
            try:
                pair.peer.sendall(b"".join(encode(Ack(1, 1))))
            except BrokenPipeError:
                return True
            return False

        wait_until(is_closed, "the end of the link")


def test_the_machine_of_a_peer_has_some_seconds_to_acknowledge() -> None:
    with socket.socket() as sock:
        prepare(sock)
        limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert limit_ms == links._USER_TIMEOUT_MS
