"""Lists the existing segments and index files of a store, each with its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from amqpstore.catalog import tables
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.filenames import (
    INDEX,
    QUARANTINE,
    SEGMENTS,
    index_key,
    index_path,
    segment_number,
    segment_path,
)
from amqpstore.system.files import Files
from amqpstore_tools.offline.segments import IndexImage, SegmentImage, SegmentState

Rows = Mapping[str, Mapping[str, Any]]
"""Tables of the catalog, by name."""


class Listing:
    """The files of the store in `directory`. Args: seed, of its checksums. All methods raise
    OSError.
    """

    def __init__(self, files: Files, directory: str, seed: int) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed

    def segment_files(self) -> Iterator[SegmentImage]:
        """Yield the segments in `segments/`, without the catalog."""
        return self._segments_in(SEGMENTS, SegmentState.SEALED)

    def quarantined(self) -> Iterator[SegmentImage]:
        """Yield the segments in `quarantine/`: the store no longer reads them."""
        return self._segments_in(QUARANTINE, SegmentState.QUARANTINED)

    def index_files(self) -> Iterator[IndexImage]:
        """Yield the index files in `index/`, without the catalog."""
        directory = f"{self._directory}/{INDEX}"
        for name in self._files.list_directory(directory):
            path = f"{directory}/{name}"
            if (key := index_key(name)) and (size := self._size(path)) is not None:
                yield IndexImage(self._files, path, *key, self._seed, size, None)

    def segments(self, recovered: Recovered, rows: Rows) -> Iterable[SegmentImage]:
        """Return all segments that exist or that the store knows.

        Args: rows, of `segments`, `ends` and `quarantine`.
        """
        accounts = {one.number: one for one in recovered.checkpoint_state.accounts}
        known = {segment.number: segment for segment in recovered.segments}
        gone = {*recovered.leftovers}
        gone |= {segment_path(self._directory, number) for number in recovered.quarantined}
        images = {image.number: image for image in self.segment_files()}
        ends = tables.SEGMENT_ENDS.read(rows.__getitem__)
        quarantine = tables.QUARANTINE.read(rows.__getitem__)
        for number in {*images, *known, *tables.SEGMENTS.read_keys(rows.__getitem__)}:
            image = images.setdefault(number, self._missing_segment(number))
            image.end = ends[number].end if number in ends else None
            if image.state is not SegmentState.MISSING:
                image.state = _state(image, gone, recovered.open_segment)
            if segment := known.get(number):
                if image.state is SegmentState.OPEN:
                    image.torn_at = segment.size
                image.first_id, image.end_id = segment.first_id, segment.end_id
                image.table_ids, image.table_offsets = segment.table_ids, segment.table_offsets
            image.account = accounts.get(number)
            if number in quarantine:
                image.damage = list(quarantine[number])
        return images.values()

    def known_index_files(self, recovered: Recovered) -> list[IndexImage]:
        """Return all index files that exist or that the catalog knows, by queue and number."""
        images = {(one.queue_id, one.number): one for one in self.index_files()}
        for queue in recovered.checkpoint_state.queues.values():
            for file in queue.files:
                key = queue.id, file.state.number
                path = index_path(self._directory, *key)
                missing = IndexImage(self._files, path, *key, self._seed, None, None)
                images.setdefault(key, missing).state = file.state
        return [images[key] for key in sorted(images)]

    def _segments_in(self, folder: str, state: SegmentState) -> Iterator[SegmentImage]:
        directory = f"{self._directory}/{folder}"
        for name in self._files.list_directory(directory):
            path = f"{directory}/{name}"
            if (number := segment_number(name)) and (size := self._size(path)) is not None:
                yield SegmentImage(self._files, path, number, self._seed, size, state)

    def _missing_segment(self, number: int) -> SegmentImage:
        path = segment_path(self._directory, number)
        return SegmentImage(self._files, path, number, self._seed, 0, SegmentState.MISSING)

    def _size(self, path: str) -> int | None:
        """Return the size of a file; None if something else has its name."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            return file.size()
        finally:
            file.close()


def _state(image: SegmentImage, gone: set[str], open_segment: int) -> SegmentState:
    if image.path in gone:
        return SegmentState.LEFT_OVER
    if image.is_compacted:
        return SegmentState.COMPACTED
    if image.number == open_segment:
        return SegmentState.OPEN
    return SegmentState.SEALED
