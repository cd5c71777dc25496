"""Segments of the log that are kept for members that are away, as hard links: the store may remove
its own name of one at any time, once nothing in it is live.

They cost disk space only once the store has removed its own. A crash may lose a link, as nothing
here is synced: then a member that is away for long needs a copy of the whole store. While one is
sent, as much of the log is kept as comes behind it, unless the disk gets full of it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import suppress

from amqpstore.system import ownership
from amqpstore.system.filenames import KEPT, kept_path, kept_segment, segment_path

_log = logging.getLogger(__name__)

_HELD_S = 60.0
"""The time for which a segment is held for a follower: it has to connect again when it has its
copy.
"""
_COPIES = "copies"


class KeptSegments:
    """The segments that are kept in a member's directory, at most `max_bytes`. For one thread at a
    time.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._held: dict[int, float] = {}
        """The time until which all from a number on are held, by the monotonic clock."""
        # What a crash has left of copies under way: their followers start again, and the links
        # would hold deleted segments on the disk for ever.
        shutil.rmtree(os.path.join(directory, KEPT, _COPIES), ignore_errors=True)
        self.ends: dict[int, int] = {}
        """The end of each segment, by number."""
        with suppress(FileNotFoundError):
            names = os.listdir(os.path.join(directory, KEPT))
            self.ends = dict(sorted(filter(None, map(kept_segment, names))))

    def paths(self) -> dict[int, str]:
        """Return their paths, by number."""
        return {one: kept_path(self._directory, one, end) for one, end in self.ends.items()}

    def has(self, number: int) -> bool:
        """Tell whether a segment is kept, and its file was not removed by hand."""
        end = self.ends.get(number)
        return end is not None and os.path.exists(kept_path(self._directory, number, end))

    def keep(self, number: int, end: int) -> None:
        """Keep a segment to which nothing more is appended; of all, the last ones that fit."""
        # A segment that a follower wrote anew has another end; the end is in the name, so neither
        # is taken for the other.
        if self.ends.get(number) == end:
            return
        path = kept_path(self._directory, number, end)
        try:
            ownership.make_directories(os.path.dirname(path))
            os.link(segment_path(self._directory, number), path)
        except FileExistsError:
            pass
        except OSError as error:
            # It is not needed as long as all members are there.
            extra = {"path": path, "reason": str(error)}
            _log.warning("a segment is not kept for members that are away", extra=extra)
            return
        self.ends[number] = end
        self._remove_surplus()

    def limit(self, max_bytes: int) -> None:
        """Keep at most so much from now on."""
        self._max_bytes = max_bytes
        self._remove_surplus()

    def _remove_surplus(self) -> None:
        # Segments are dropped from the oldest on: with a gap in the middle nothing before it would
        # be of use.
        while self.ends and sum(self.ends.values()) > self._most(min(self.ends)):
            self._remove(min(self.ends))

    def hold(self, number: int) -> None:
        """Keep segments from this number on for a minute, even if they are too many."""
        self._held[number] = time.monotonic() + _HELD_S

    def _most(self, number: int) -> int:
        """Return how many bytes may be kept, with this segment as the first one."""
        now = time.monotonic()
        self._held = {one: until for one, until in self._held.items() if until > now}
        # Segments before the first held one serve only members that are away, for whom the limit
        # is meant.
        if number < min(self._held, default=number + 1):
            return self._max_bytes
        found = os.statvfs(self._directory)
        # A copy that lasts an hour needs the log behind it. Beyond the limit it may use what is
        # free, and no more: the reserve for acks is not part of that.
        return max(self._max_bytes, found.f_bavail * found.f_frsize)

    def copies(self, name: str) -> str:
        """Return the path of a directory for what is pinned while a copy is sent."""
        return os.path.join(self._directory, KEPT, _COPIES, name)

    def forget_from(self, number: int) -> None:
        """Keep none from this number on: the log goes on in another way there."""
        # Otherwise a member that is away would be caught up with batches that the group does not
        # have.
        for one in [one for one in self.ends if one >= number]:
            self._remove(one)

    def _remove(self, number: int) -> None:
        # The name is forgotten first: if the unlink fails, the next start lists it again.
        path = kept_path(self._directory, number, self.ends.pop(number))
        with suppress(FileNotFoundError):
            os.unlink(path)
