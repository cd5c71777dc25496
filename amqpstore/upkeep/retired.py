"""Files that the store no longer uses: they are closed and removed later, in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqpstore.log.segments import Segment
from amqpstore.system.files import File


class RetiredFiles:
    """Files to be closed, and removals to be made, which can take a while."""

    def __init__(self) -> None:
        self._detached: list[File] = []
        self._removals: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._detached or self._removals)

    def detach(self, segments: Sequence[Segment]) -> None:
        """Close the files of segments that nothing reads any more, if they are open."""
        self._detached += [file for segment in segments if (file := segment.detach())]

    def remove(self, removal: Callable[[], None]) -> None:
        """Have a file removed. The removal may fail: the next start removes what has no row."""
        self._removals.append(removal)

    def take(self) -> Callable[[], None]:
        """Return a function that closes and removes all files noted so far."""
        detached, self._detached = self._detached, []
        removals, self._removals = self._removals, []

        def clean_up() -> None:
            for file in detached:
                file.close()
            for remove in removals:
                remove()

        return clean_up

    def close(self) -> None:
        """Close the files. The next start removes what was to be removed."""
        for file in self._detached:
            file.close()
