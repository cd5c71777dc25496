"""Compacted segments with messages that the catalog's last checkpoint did not know.

A compaction merges only what a checkpoint has covered. So a compacted segment that no row names is
left over from a compaction that a crash came behind, and all that is in it is elsewhere, too;
unless it has newer messages than that: then the catalog is an older one, and the file may be all
that is left of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from amqpstore.catalog.tables import DamageRow
from amqpstore.evidence.identification import FileKind, IdentifiedFile
from amqpstore.format.records import Kind, Record
from amqpstore.format.windows import scan_file
from amqpstore.system.filenames import is_compacted, quarantined_path, segment_path
from amqpstore.system.files import Files

IS_NEWER = "it has messages that the last checkpoint did not know: the catalog is an older one"


class NewerMessages(NamedTuple):
    """The messages of a segment that are newer than the catalog: ids `first_id` to `last_id`, in
    `size` bytes from `offset` on of the file `path`. If that cannot be read, `error` says why.
    """

    path: str
    first_id: int = 0
    last_id: int = 0
    offset: int = 0
    size: int = 0
    error: str = ""

    @property
    def end(self) -> int:
        """The offset behind them."""
        return self.offset + self.size

    @property
    def reason(self) -> str:
        """The fault of the file, as text for people."""
        return self.error or f"{IS_NEWER}. It is kept"

    @property
    def row(self) -> DamageRow:
        """The row in `quarantine` that notes this, for when the catalog has caught up with it."""
        return DamageRow(self.offset, self.size, IS_NEWER)


def find_newer(
    files: Files, directory: str, numbers: Iterable[int], seed: int, next_id: int
) -> dict[int, NewerMessages]:
    """Return what compacted ones of some segments have that is newer than the catalog, by number.

    Args: next_id, the first message that the last checkpoint did not know.
    """
    found = {}
    # Segments of the log behind the checkpoint are newer than the catalog by nature: recovery
    # reads them.
    for number in filter(is_compacted, numbers):
        path = segment_path(directory, number)
        if newer := _newer(files, path, number, seed, 0, next_id):
            found[number] = newer
    return found


def newer_in(files: Files, file: IdentifiedFile, seed: int, next_id: int) -> NewerMessages | None:
    """Return what a file has that is newer than the catalog, wherever it lies; None if it is not a
    compacted segment, or has nothing newer. Args: next_id, as of `find_newer`.
    """
    if file.kind is not FileKind.SEGMENT or not is_compacted(file.number):
        return None
    found = _newer(files, file.path, file.number, seed, 0, next_id)
    return None if found and found.error else found


def noted_newer(
    files: Files, directory: str, quarantine: Mapping[int, Iterable[DamageRow]], seed: int
) -> dict[int, NewerMessages]:
    """Return what is noted of segments that are still there, in `segments/` or in quarantine, by
    number. Args: quarantine, the rows of that table.
    """
    found = {}
    for number, rows in quarantine.items():
        for row in rows:
            if row.reason == IS_NEWER:
                for path in (segment_path(directory, number), quarantined_path(directory, number)):
                    if newer := _newer(files, path, number, seed, row.offset, 0):
                        found[number] = newer
    return found


def _newer(
    files: Files, path: str, number: int, seed: int, start: int, next_id: int
) -> NewerMessages | None:
    first = last = offset = end = 0
    try:
        file = files.open(path)
        try:
            for one in scan_file(file, file.size(), number, seed, start=start):
                if isinstance(one, Record) and one.kind == Kind.MESSAGE and one.number >= next_id:
                    if not first:
                        first, offset = one.number, one.offset
                    last, end = one.number, one.end
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        # The file may hold the only copy: it is kept, and not removed as left over.
        return NewerMessages(path, error=str(error))
    return NewerMessages(path, first, last, offset, end - offset) if first else None
