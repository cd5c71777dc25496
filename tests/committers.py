"""Committers within trio, without the sockets of a broker."""

import contextlib
from collections.abc import Callable

import trio

from amqpstore import Store
from amqpstore.system.files import File
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.loop_limits import LOOP_LIMITS


class LaterDatasyncs:
    """Datasyncs of any file, which end when `ends` says so: until then nothing was synced."""

    def __init__(self, ends: Callable[[], bool] = lambda: True) -> None:
        self.started = 0
        self._ends = ends
        self._file: File | None = None
        self.signal: Callable[[], None] = lambda: None

    def start(self, file: File) -> bool:
        assert self._file is None
        self.started += 1
        self._file = file
        self.signal()
        return True

    def is_done(self, *, wait: bool = False) -> bool:
        assert self._file is not None
        if not (wait or self._ends()):
            self.signal()
            return False
        file, self._file = self._file, None
        file.datasync()
        return True

    def close(self) -> None:
        # A store that was abandoned has closed the file: whether it was synced, no caller learns.
        self._file = None


def committer_of(
    store: Store,
    *,
    datasyncs: LaterDatasyncs | None = None,
    housekeep_s: float = 0.02,
    watch_s: float = 1.0,
) -> Committer:
    """Begin a committer that completes its batches in the current run of trio."""
    token = trio.lowlevel.current_trio_token()

    def complete_soon() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(committer.complete_written)

    if datasyncs:
        datasyncs.signal = complete_soon
    committer = Committer(
        store,
        complete_soon,
        lambda: None,
        max_pending_bytes=LOOP_LIMITS.max_pending_bytes,
        datasyncs=datasyncs,
        housekeep_s=housekeep_s,
        watch_s=watch_s,
    )
    return committer
