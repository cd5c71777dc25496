"""Standard streams that never wait for their reader.

A reader may stand still (a log driver, a stopped `tee`, a terminal after Ctrl-S), and a file may
be on a disk that is full or hangs. The broker serves clients all the same: what it writes is kept
in a bounded queue, a thread writes it, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

_MAX_QUEUED_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_PAUSE_S = 0.01
"""How long the thread pauses after it has written. Each time it runs it takes the interpreter from
the one that serves clients, and while these come and go, each of them has several lines.
"""
_FLUSH_S = 1.0
"""How long a flush waits, at the end of the process for example, if the reader stands still."""

_log = logging.getLogger(__name__)


def decouple() -> None:
    """Have stdout and stderr of this process written by threads, from now until it ends."""
    # Its thread may not run any more when the interpreter flushes the streams itself. Tracebacks of
    # errors that nothing has caught are written before.
    sys.stderr = DecoupledStream(sys.stderr.fileno(), _tell_lost)
    atexit.register(sys.stderr.flush)
    sys.stdout = DecoupledStream(sys.stdout.fileno(), lambda _count: None)
    atexit.register(sys.stdout.flush)


def _tell_lost(count: int) -> None:
    _log.warning("log lines lost", extra={"lines": count, "reason": "they could not be written"})


class DecoupledStream(io.TextIOBase):
    """A text stream whose `write` returns at once, whatever becomes of the text.

    Texts are whole lines: one that does not fit into the queue, or that the system refuses, is
    dropped, and counted.
    Args: descriptor, of the file that is written to, which stays open; tell_lost, called by the
    thread, once lines can be written again, with how many were lost before.
    """

    def __init__(self, descriptor: int, tell_lost: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._tell_lost = tell_lost
        self._changed = threading.Condition()
        self._texts: deque[bytes] = deque()
        self._queued_bytes = 0
        """The size of `_texts`, and of what is being written."""
        self._lost = 0
        self._flushes = 0
        """How many callers wait for what is queued to be written."""
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override] # TextIOBase declares a variable
        """The encoding of texts."""
        return "utf-8"

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._descriptor

    def isatty(self) -> bool:
        """Tell whether the file is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Tell that texts can be written."""
        return True

    def write(self, text: str) -> int:
        """Queue a text, or drop it if the queue is full. Returns its length in characters."""
        data = text.encode("utf-8", "backslashreplace")
        if sys.is_finalizing():
            self._write_last(data)
            return len(text)
        with self._changed:
            if self._queued_bytes + len(data) > _MAX_QUEUED_BYTES:
                self._lost += data.count(b"\n")
            else:
                self._texts.append(data)
                self._queued_bytes += len(data)
                self._start()
                if len(self._texts) == 1 or self._is_urgent():
                    self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Wait until what was queued is written or lost, but not for long."""
        if sys.is_finalizing():
            return  # the thread has ended wherever it was, perhaps with the lock
        with self._changed:
            self._flushes += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._queued_bytes, _FLUSH_S)
            self._flushes -= 1

    def _is_urgent(self) -> bool:
        """Tell whether what is queued is to be written at once."""
        return self._flushes > 0 or self._queued_bytes > _CHUNK_BYTES

    def _start(self) -> None:
        """Start the thread with the first text: a fork has none of its parent's threads."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        paused_until = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
                self._changed.wait_for(self._is_urgent, paused_until - time.monotonic())
                chunk = self._next_chunk()
            is_written = self._write(chunk)
            paused_until = time.monotonic() + _PAUSE_S
            with self._changed:
                self._queued_bytes -= len(chunk)
                if not is_written:
                    self._lost += chunk.count(b"\n")
                lost, self._lost = (self._lost, 0) if is_written else (0, self._lost)
                self._changed.notify_all()
            if lost:
                self._tell_lost(lost)

    def _next_chunk(self) -> bytes:
        """Take whole texts off the queue, at least one."""
        texts = [self._texts.popleft()]
        size = len(texts[0])
        while self._texts and size + len(self._texts[0]) <= _CHUNK_BYTES:
            texts.append(self._texts.popleft())
            size += len(texts[-1])
        return b"".join(texts)

    def _write_last(self, data: bytes) -> None:
        """Write what the interpreter says while it ends, if that does not wait for anybody."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with contextlib.suppress(OSError):
            if poll.poll(0):
                os.write(self._descriptor, data)

    def _write(self, chunk: bytes) -> bool:
        """Write a chunk, for as long as that takes. Returns whether the system took all of it."""
        rest = memoryview(chunk)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Another process that shares the file has made it non-blocking.
                _wait_for_room(self._descriptor)
            except OSError:
                if len(rest) < len(chunk):
                    # The next line does not begin at the end of half of one.
                    with contextlib.suppress(OSError):
                        os.write(self._descriptor, b"\n")
                return False
        return True


def _wait_for_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
