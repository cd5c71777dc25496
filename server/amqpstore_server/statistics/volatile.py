"""Counts of the messages of each queue that are not in the log, and so end with the process: a file
beside the store says it, for the next start to count what was lost.

A process that stops writes it last. One that is killed has written it about a second before, so
that its counts are those of that moment; the file is not synced, and after a power cut it may be
missing, or an old one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec

from amqpstore.system import ownership
from amqpstore.system.clock import Clock
from amqpstore.system.durability import reason_of
from amqpstore.system.files import naming
from amqpstore_server.broker.broker import Broker
from amqpstore_server.config.small_files import read_small

FILE = "volatile-messages.json"

VolatileCounts = Mapping[tuple[str, str], int]
"""How many messages end with the process, by virtual host and queue, without those that are 0."""

_MAX_BYTES = 256 << 20
_LOOK_S = 0.5
"""How often it is looked whether the sampler has found something new."""

_log = logging.getLogger(__name__)


class LostMessages(msgspec.Struct, frozen=True):
    """The losses of the last process: virtual hosts, queues, and how many messages. `is_final` if
    it has stopped, and so knew; otherwise it is what was there at `time_ms`.
    """

    time_ms: int
    is_final: bool
    queues: list[tuple[str, str, int]]


class VolatileFile:
    """The file, in a data directory. It may be written from any thread."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._clock = clock
        self._directory = directory
        self._path = os.path.join(directory, FILE)
        self._lock = threading.Lock()
        self._size = 0
        self._written: VolatileCounts | None = {}
        self._has_failed = False

    def take(self) -> LostMessages | None:
        """Return what the last process has written, once: the file is removed. None if it has lost
        nothing, or nothing is known.
        """
        try:
            lost = msgspec.json.decode(read_small(self._path, _MAX_BYTES), type=LostMessages)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            extra = {"path": self._path, "reason": reason_of(error)}
            _log.warning("it is unknown which transient messages were lost", extra=extra)
            lost = None
        with contextlib.suppress(OSError):
            os.remove(self._path)
        return lost if lost and lost.queues else None

    def count_lost(self, broker: Broker) -> None:
        """Count the messages that were lost with the last process, and log their sums."""
        if lost := self.take():
            broker.note_lost_before(lost.queues)
            as_of = datetime.fromtimestamp(lost.time_ms / 1000, UTC).isoformat(timespec="seconds")
            # Who was killed could not say what there was in the end.
            departures = broker.services.statistics.departures
            departures.write(**({} if lost.is_final else {"as_of": as_of}))

    async def keep(
        self,
        counted: Callable[[], VolatileCounts],
        pause: Callable[[float], Awaitable[object]],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """Write what there is, until it is cancelled.

        Args: counted, returns the counts of the sampler's last pass; pause, waits for the seconds
        it is given; in_thread, calls a function beside the event loop, as a disk that hangs would
        hold up everybody.
        """
        while True:
            await pause(_LOOK_S)
            counts = counted()
            if not self.has(counts):
                await in_thread(partial(self.write, counts))

    def has(self, counts: VolatileCounts) -> bool:
        """Whether it says that already."""
        return counts == self._written

    def write(self, counts: VolatileCounts, *, is_final: bool = False) -> None:
        """Write what there is now. A disk that refuses is logged."""
        with self._lock:
            if not counts and self.has(counts):
                return  # There need not be a file.
            now_ms = self._clock.wall_ms()
            queues = [(vhost, queue, count) for (vhost, queue), count in counts.items()]
            try:
                self._overwrite(msgspec.json.encode(LostMessages(now_ms, is_final, queues)))
            except OSError as error:
                self._written = None
                if not self._has_failed:
                    extra = {"path": self._path, "reason": reason_of(error)}
                    _log.warning("counts of transient messages not written", extra=extra)
                self._has_failed = True
            else:
                self._written = counts
                self._has_failed = False

    def _overwrite(self, content: bytes) -> None:
        """Put new content in the place of the old, in one write, so that a process that is killed
        leaves one of them. Raises: OSError.
        """
        # Blanks, which mean nothing in JSON, instead of cutting off the rest of a longer one.
        content = content.ljust(self._size)
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if not self._size:
                ownership.give(descriptor, self._directory)
            self._size = len(content)
            with naming(self._path):
                os.pwrite(descriptor, content, 0)
        finally:
            os.close(descriptor)
