"""Connections between members: one TCP connection each, with a thread that reads and one that
writes.

Nothing waits for a peer: the thread that has a frame sends at once what the socket takes of it,
which wakes no other. All else is queued, up to a limit. A peer that leaves more unread loses its
connection, and catches up from the log when it has connected again.

So the thread that is about to write a batch sends it first. A thread for each follower would send
while that one writes, but it takes more of the processor to wake them, and to give each the
interpreter around each call, than to send the batch: with messages of 1 KiB, a fifth of all that a
leader of three does.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from amqpstore_server.cluster.codec import FrameReader, PeerFrameError, encode
from amqpstore_server.cluster.frame_tags import TAG_BYTES, FrameTags
from amqpstore_server.cluster.frames import Frame, FromFollower, FromLeader
from amqpstore_server.replication.tls_streams import TlsStream

_log = logging.getLogger(__name__)

MAX_CONTENT_BYTES = 1 << 30
"""The largest batch that a follower takes."""
_MAX_QUEUED_BYTES = 256 << 20
_READ_BYTES = 256 << 10
_PIECE_BYTES = 64 << 10
"""Sent at a time over TLS: each piece has to be accepted within the time limit. A larger frame is
left to the thread that writes: it takes long to encrypt, and others wait meanwhile.
"""
_SEND_TIMEOUT_S = 5.0
_PROGRESS_S = 0.2
"""How often it is told that a frame is on its way."""
_LAST_READ_S = 1.0
"""How long the peer has, once nothing more is sent to it, to end the connection as well."""
_USER_TIMEOUT_MS = 10_000
"""The time that TCP waits for acknowledgements of a machine that is gone."""

_TIMEVAL = struct.Struct("@ll")
"""The kernel's time limits: seconds and microseconds."""

MemberSocket: TypeAlias = socket.socket | TlsStream
Write: TypeAlias = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class _Rest:
    """The rest of a frame that was sent in part: nothing else may be sent before it."""

    buffers: tuple[memoryview, ...]
    size: int

    @classmethod
    def of(cls, encoded: tuple[bytes, bytes], sent: int) -> _Rest:
        """Return what is left of a frame, uncopied if it is large."""
        size = sum(map(len, encoded)) - sent
        if size <= _PIECE_BYTES:
            # OpenSSL wants the same bytes in one call again.
            return cls((memoryview(b"".join(encoded))[sent:],), size)
        head, content = encoded
        of_head = min(sent, len(head))
        return cls((memoryview(head)[of_head:], memoryview(content)[sent - of_head :]), size)


_Item: TypeAlias = tuple[bytes, bytes] | _Rest | Callable[[Write], None]
"""An item that waits to be sent: a frame, the rest of one, or a job that sends many."""


class LinkEvents(Protocol):
    """Is told of what happens on links, in their threads."""

    def received(self, link: int, frame: Frame) -> None: ...

    def progressed(self, link: int) -> None:
        """A part of a frame has come."""

    def refused(self, link: int) -> None:
        """Refuse what has come: it is not a frame, or not the one that the peer sent next."""

    def disconnected(self, link: int, reason: str) -> None: ...


class Link:
    """One connection, `number`. Its threads run from `start` to its end.

    Args: reader, of what comes; tags, of what is sent; None without them. A frame gets its tag when
    it is certain that it goes next.
    """

    def __init__(
        self,
        number: int,
        sock: MemberSocket,
        reader: FrameReader[FromFollower] | FrameReader[FromLeader],
        events: LinkEvents,
        tags: FrameTags | None = None,
    ) -> None:
        self.number = number
        self._tags = tags
        self._socket = sock
        self._reader = reader
        self._events = events
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._urgent: tuple[bytes, bytes] | None = None
        """The newest beat that is not sent yet: it takes the place of an older one."""
        self._is_writing = False
        """Whether the writing thread has something in hand that is not sent yet."""
        self._is_ending = False
        self._is_hung_up = False
        """Whether what is received from now on is dropped."""
        self._has_read = threading.Event()
        """Set once nothing more is read."""
        self._threads = 2
        self._noted_at = 0.0
        _limit_waits(sock, _SEND_TIMEOUT_S)

    def start(self) -> None:
        """Begin to read and to write."""
        for run in (self._read, self._write):
            name = f"link {self.number} {run.__name__.strip('_')}s"
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()

    def _run(self, run: Callable[[], None]) -> None:
        run()
        with self._lock:
            self._threads -= 1
            is_last = not self._threads
        if is_last:
            self._socket.close()

    def send(self, encoded: tuple[bytes, bytes], *, is_urgent: bool = False) -> None:
        """Send a frame, as `encode` returns it, behind those before; never blocks.

        Args: is_urgent, it goes before all that waits, and a later one of its kind replaces it: a
        sign of life is none if it comes seconds late, behind what a follower catches up with.
        """
        with self._lock:
            if self._is_ending:
                return
            size = len(encoded[0]) + len(encoded[1])
            # OpenSSL encrypts under this lock, which the thread that writes batches needs.
            is_soon_sent = size <= _PIECE_BYTES or not isinstance(self._socket, TlsStream)
            # Frames have an order, and with tags a number. What the writing thread has taken out
            # of the queue goes first.
            if is_soon_sent and not self._queue and not self._is_writing:
                if self._tags is not None:
                    encoded = self._tagged(encoded)
                    size += TAG_BYTES
                sent = self._send_now(encoded)
                if sent == size:
                    return
                # Also if nothing was sent: it has the number of its tag.
                self._enqueue(_Rest.of(encoded, sent), size - sent)
            elif is_urgent:
                self._urgent = encoded
                self._wake.notify()
            else:
                self._enqueue(encoded, size)

    def _enqueue(self, item: tuple[bytes, bytes] | _Rest, size: int) -> None:
        self._queued_bytes += size
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            # A follower reads the log from its segments when it comes back, so what is dropped
            # here is not lost. Keeping it would let one slow peer take the leader's memory.
            self._queue.clear()
            self._is_ending = True
            _log.warning("a peer reads too slowly", extra={"link": self.number})
        self._queue.append(item)
        self._wake.notify()

    def _tagged(self, encoded: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Return the next frame with its tag, if there are tags."""
        head, content = encoded
        tags = self._tags
        return encoded if tags is None else (tags.next(head, content) + head, content)

    def _send_now(self, encoded: tuple[bytes, bytes]) -> int:
        """Send what the socket takes at once. Returns how many bytes: none of them after an error,
        which the writing thread will have as well.
        """
        sock = self._socket
        try:
            if isinstance(sock, TlsStream):
                return sock.send_now(b"".join(encoded))
            # Whatever time limit the socket has.
            return sock.sendmsg(encoded, (), socket.MSG_DONTWAIT)
        except OSError:
            return 0

    def work(self, job: Callable[[Write], None]) -> None:
        """Have the writing thread do something that sends much, behind what is queued."""
        with self._lock:
            if not self._is_ending:
                self._queue.append(job)
                self._wake.notify()

    def hang_up(self) -> None:
        """End the connection behind what was sent: all of it arrives, if the peer is there."""
        with self._lock:
            # What is queued still goes out: the last frame is often the reason, or the one that
            # says that this leader resigns.
            self._is_ending = self._is_hung_up = True
            self._wake.notify()

    def _write(self) -> None:
        failure = ""
        try:
            while (item := self._next()) is not None:
                self._send_item(item)
        except OSError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - it ends this link, and nothing else
            _log.exception("a link failed", extra={"link": self.number})
            failure = str(error)
        with self._lock:
            # From here on `send` must not write: its bytes would come behind a frame that was cut
            # off.
            self._is_ending = True
            self._queue.clear()
        # Bytes that arrive at a socket that is not read any more, or is closed with some unread,
        # are answered by a reset, which overtakes what was sent last: a follower that acks
        # meanwhile would not learn that its leader resigns. So both ends read to the end.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._has_read.wait(_LAST_READ_S)
        if failure:
            self._events.disconnected(self.number, failure)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _next(self) -> _Item | None:
        with self._lock:
            self._is_writing = False
            while not self._queue and not self._urgent and not self._is_ending:
                self._wake.wait()
            urgent = self._urgent
            # A beat inside a frame that was sent in part would be read as its content.
            is_cut = bool(self._queue) and isinstance(self._queue[0], _Rest)
            if urgent is not None and not is_cut:
                self._urgent = None
                self._is_writing = True
                return urgent
            if not self._queue:
                return None
            item = self._queue.popleft()
            self._is_writing = True
            if isinstance(item, tuple):
                self._queued_bytes -= len(item[0]) + len(item[1])
            elif isinstance(item, _Rest):
                self._queued_bytes -= item.size
            return item

    def _send_item(self, item: _Item) -> None:
        if isinstance(item, tuple):
            self._send(item)
        elif isinstance(item, _Rest):
            for buffer in item.buffers:
                self._send_all(buffer)
        else:
            item(self._send_of_job)

    def _send_of_job(self, frame: Frame) -> None:
        """Send one of the many frames of a job, behind a beat that waits."""
        with self._lock:
            urgent, self._urgent = self._urgent, None
        if urgent is not None:
            self._send(urgent)
        self._send(encode(frame))

    def _send(self, encoded: tuple[bytes, bytes]) -> None:
        head, content = self._tagged(encoded)
        if len(content) <= _PIECE_BYTES:
            self._send_all(head + content)
            return
        self._send_all(head)
        self._send_all(content)

    def _send_all(self, content: bytes | memoryview) -> None:
        """Send bytes, of which the peer has to accept some within each time limit."""
        sock = self._socket
        start = 0
        with memoryview(content) as view:
            while start < len(view):
                if isinstance(sock, TlsStream):
                    sock.sendall(view[start : start + _PIECE_BYTES])
                    start += _PIECE_BYTES
                else:
                    start += _sent(sock, view[start:])

    def _read(self) -> None:
        reason = "the peer has closed the connection"
        try:
            while received := self._received():
                # Acks that arrive after a leader has resigned must not commit anything for it.
                if not self._is_hung_up:
                    self.take(received)
        except PeerFrameError as error:
            extra = {"link": self.number, "reason": str(error)}
            _log.error("a peer sends what is not its next frame", extra=extra)
            reason = str(error)
            self._events.refused(self.number)
        except OSError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - it ends this link, and nothing else
            _log.exception("a link failed", extra={"link": self.number})
            reason = str(error)
        self._events.disconnected(self.number, reason)
        self._has_read.set()
        self.hang_up()

    def take(self, received: bytes) -> None:
        """Take what the peer has sent. Raises: PeerFrameError."""
        reader = self._reader
        reader.receive(received)
        while (frame := reader.next_frame()) is not None:
            self._events.received(self.number, frame)
        if reader.partial_bytes:
            # Also of a small frame: a narrow link takes seconds for it.
            self._note_progress()

    def _note_progress(self) -> None:
        now = time.monotonic()
        if now >= self._noted_at + _PROGRESS_S:
            self._noted_at = now
            self._events.progressed(self.number)

    def _received(self) -> bytes:
        while True:
            try:
                return self._socket.recv(_READ_BYTES)
            except (TimeoutError, BlockingIOError):
                with self._lock:
                    # The time limit is only how often this is looked at: a peer that says nothing
                    # for a while is judged by its beats.
                    if self._is_ending and not self._queue:
                        return b""


def _limit_waits(sock: MemberSocket, limit_s: float) -> None:
    """Let no call wait for longer: it raises TimeoutError, or BlockingIOError without TLS.

    There the kernel measures the time. Python would call `poll` before each call, and give the
    interpreter away twice for each ack that a leader reads: getting it back from the event loop
    costs both threads more than all that is done with the ack.
    """
    if isinstance(sock, TlsStream):
        sock.settimeout(limit_s)
        return
    sock.settimeout(None)
    seconds = int(limit_s)
    limit = _TIMEVAL.pack(seconds, int((limit_s - seconds) * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


def _sent(sock: socket.socket, content: memoryview) -> int:
    """Send bytes, and return how many the peer has taken. Raises: OSError, if it takes none."""
    try:
        return sock.send(content)
    except BlockingIOError:
        raise TimeoutError("the peer takes nothing") from None


def prepare(sock: socket.socket) -> None:
    """Set a connected socket up for frames."""
    # Without it a small frame waits until the peer has acknowledged the one before, and a confirm
    # waits for that ack.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Without it the kernel retransmits to a machine that is gone for a quarter of an hour, and all
    # of that counts as connected.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
