"""Files of a store that may have its messages, under whatever name they are found."""

from __future__ import annotations

import os
from dataclasses import dataclass

from amqpstore.evidence import FileKind, find_files
from amqpstore.system.filenames import (
    INDEX,
    KEPT,
    QUARANTINE,
    SEGMENTS,
    index_key,
    rejoin_number,
    repair_number,
    segment_name,
    segment_number,
)
from amqpstore.system.files import Files, FileType


@dataclass(frozen=True)
class StoreFiles:
    """The files to read, with names relative to the store's directory.

    `segments` have their number, `index` files their queue and number. Each file comes as what its
    name says, and as what its records say, if that is something else. `replaced` are the numbers of
    segments in whose places something other than a file is.
    """

    segments: list[tuple[int, str]]
    index: list[tuple[int, int, str]]
    replaced: frozenset[int]

    @classmethod
    def of(
        cls, files: Files, directory: str, store_id: bytes, *, is_catalog_lost: bool
    ) -> StoreFiles:
        """Look for the files of a store.

        Args: is_catalog_lost, so that nothing says which messages of old segments were acked.
        """

        def is_file(name: str) -> bool:
            return files.type_of(os.path.join(directory, name)) is FileType.FILE

        named = {
            (number, f"{SEGMENTS}/{name}")
            for name in files.list_directory(os.path.join(directory, SEGMENTS))
            if (number := segment_number(name))
        }
        segments = {(number, name) for number, name in named if is_file(name)}
        index = {
            (*key, f"{INDEX}/{name}")
            for name in files.list_directory(os.path.join(directory, INDEX))
            if (key := index_key(name)) and is_file(f"{INDEX}/{name}")
        }
        replaced = frozenset(number for number, _ in named - segments)
        for identified in find_files(files, directory, store_id):
            name = os.path.relpath(identified.path, directory)
            if not _may_be_needed(name, is_catalog_lost=is_catalog_lost):
                continue
            if identified.kind is FileKind.SEGMENT:
                segments.add((identified.number, name))
            else:
                index.add((identified.queue_id, identified.number, name))
        return cls(
            sorted(segments, key=lambda one: (one[0], not _is_segment(*one), one[1])),
            sorted(index, key=lambda one: (*one[:2], not _is_index(*one), one[2])),
            replaced,
        )


def _may_be_needed(name: str, *, is_catalog_lost: bool) -> bool:
    """Tell whether a file may have messages that no other has.

    What a repair or a follower replaced was given up on purpose. What a member keeps for others
    left the store; if it is read without a catalog, all of it would be delivered again.
    """
    folders = name.split("/")
    if folders[0] == QUARANTINE and (repair_number(folders[1]) or rejoin_number(folders[1])):
        return False
    return not (folders[0] == KEPT and is_catalog_lost)


def _is_segment(number: int, name: str) -> bool:
    return name == f"{SEGMENTS}/{segment_name(number)}"


def _is_index(queue_id: int, number: int, name: str) -> bool:
    return index_key(os.path.basename(name)) == (queue_id, number) and name.startswith(f"{INDEX}/")
