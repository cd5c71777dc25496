"""The states that a power cut may leave of a disk.

What was synced is there. Of the rest, any part may be: of a file's writes a prefix, all but one,
only one, or any of its 512-byte sectors; if the size grew but a sector was not written, it has
zeros, garbage, or stale bytes of some other file; of a directory's changes any subset. Files and
directories are independent of each other. The possibilities are enumerated exhaustively while they
are few, and drawn by seed when they are many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.nodes import UnsyncedDirectory, UnsyncedFile

SECTOR_BYTES = 512
"""A disk writes a sector as a whole or not at all."""

_EXHAUSTIVE = 4
"""Up to this many sectors, or changes of a directory, every subset is an outcome."""


class FileOutcome(NamedTuple):
    """A possible state of one file."""

    description: str
    content: bytes


class Survivors(NamedTuple):
    """A possible state of one directory: the places of the changes that survived."""

    description: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """A disk after a power cut; `description` says what survived."""

    files: MemoryFiles
    description: str


Fill = Callable[[int, int], bytes]
"""Returns the content of a sector that was not written, for its offset in the file and a size in
bytes.
"""


def crash_images(files: MemoryFiles, rng: random.Random, limit: int) -> Iterator[Image]:
    """Yield at most `limit` different images of a power cut now; all of them, if there are fewer.

    The first two are: everything survived, and nothing did.
    """
    unsynced_files, unsynced_directories = files.unsynced()
    stale = _stale_fill(files, rng)
    by_file = [file_outcomes(file, stale, rng) for file in unsynced_files]
    by_directory = [_directory_outcomes(directory, rng) for directory in unsynced_directories]
    choices: list[Sequence[FileOutcome | Survivors]] = [*by_file, *by_directory]
    seen: set[bytes] = set()
    for chosen in _combinations(choices, rng, limit):
        contents = {
            file.number: outcome.content
            for file, outcome in zip(unsynced_files, chosen, strict=False)
            if isinstance(outcome, FileOutcome)
        }
        kept = {
            directory.number: survivors.places
            for directory, survivors in zip(
                unsynced_directories, chosen[len(by_file) :], strict=True
            )
            if isinstance(survivors, Survivors)
        }
        image = files.power_cut(contents, kept)
        digest = image.digest()
        if digest not in seen:
            seen.add(digest)
            yield Image(image, "; ".join(part.description for part in chosen) or "all was synced")


def file_outcomes(file: UnsyncedFile, stale: Fill, rng: random.Random) -> list[FileOutcome]:
    """Return the possible states of a file: first all of it, then without everything unsynced."""
    outcomes: dict[bytes, str] = {}
    for description, content in _file_contents(file, stale, rng):
        outcomes.setdefault(content, description)
    name = file.path.rpartition("/")[2]
    return [FileOutcome(f"{name}: {text}", content) for content, text in outcomes.items()]


def _file_contents(
    file: UnsyncedFile, stale: Fill, rng: random.Random
) -> Iterator[tuple[str, bytes]]:
    synced, writes = file.synced, file.writes
    whole = b"".join([synced, *writes])
    yield "all", whole
    yield "nothing unsynced", synced
    size = len(synced)
    ends = [size := size + len(write) for write in writes]
    if len(writes) > 1:
        for count, end in enumerate(ends[:-1], 1):
            yield f"{count} of {len(ends)} writes", whole[:end]
        for place, (start, end) in enumerate(zip([len(synced), *ends], ends, strict=False), 1):
            without = whole[:start] + bytes(end - start) + whole[end:]
            yield f"all but write {place}, zeros there", without
            only = synced + bytes(start - len(synced)) + whole[start:end]
            yield f"only write {place}, zeros before it", only
    sectors = range(len(synced) // SECTOR_BYTES, (len(whole) - 1) // SECTOR_BYTES + 1)
    for sector in sectors[1:]:
        yield f"cut before sector {sector}", whole[: sector * SECTOR_BYTES]
    for _ in range(3):
        cut = rng.randint(len(synced), len(whole))
        yield f"cut at byte {cut}", whole[:cut]
    fills: list[tuple[str, Fill]] = [
        ("zeros", lambda _offset, size: bytes(size)),
        ("garbage", lambda _offset, size: rng.randbytes(size)),
        ("stale bytes", stale),
    ]
    for fill_name, fill in fills:
        yield f"size grown, {fill_name}", _with_sectors(synced, whole, (), fill)
        grown = whole[: rng.randint(len(synced), len(whole))]
        yield f"size grown to {len(grown)}, {fill_name}", _with_sectors(synced, grown, (), fill)
    for kept in _subsets(sectors, rng):
        some = list(fills) if len(sectors) <= 2 else [fills[0], rng.choice(fills[1:])]
        for fill_name, fill in some:
            listed = ",".join(map(str, kept))
            text = f"only sectors {listed} of {sectors.start}-{sectors.stop - 1}, {fill_name}"
            yield text, _with_sectors(synced, whole, kept, fill)


def _with_sectors(synced: bytes, whole: bytes, kept: Sequence[int], fill: Fill) -> bytes:
    """Return `whole`, with all bytes behind `synced` filled that are in no sector of `kept`."""
    parts = [synced]
    start = len(synced)
    while start < len(whole):
        sector = start // SECTOR_BYTES
        end = min(len(whole), (sector + 1) * SECTOR_BYTES)
        parts.append(whole[start:end] if sector in kept else fill(start, end - start))
        start = end
    return b"".join(parts)


def _stale_fill(files: MemoryFiles, rng: random.Random) -> Fill:
    """Return a fill of sectors from elsewhere on the disk, as reused blocks have them.

    Only of synced data: no other block of the disk has a sector that was never written.
    """
    pool: list[bytes] | None = None

    def fill(offset: int, size: int) -> bytes:
        nonlocal pool
        if pool is None:
            pool = [content for content in files.synced_contents() if len(content) >= SECTOR_BYTES]
        if not pool:
            return bytes(size)
        content = rng.choice(pool)
        start = rng.randrange(len(content) // SECTOR_BYTES) * SECTOR_BYTES + offset % SECTOR_BYTES
        return content[start : start + size].ljust(size, b"\0")

    return fill


def _directory_outcomes(directory: UnsyncedDirectory, rng: random.Random) -> list[Survivors]:
    places = range(len(directory.changes))
    name = directory.path.rpartition("/")[2] or "/"

    def survivors(kept: tuple[int, ...]) -> Survivors:
        listed = ", ".join(str(directory.changes[place]) for place in kept) or "no change"
        return Survivors(f"{name}: {listed}", kept)

    return [survivors(kept) for kept in ((*places,), (), *_subsets(places, rng))]


def _subsets(items: range, rng: random.Random) -> list[tuple[int, ...]]:
    """Return subsets of `items`, except none and all: each one, or the most telling ones and some
    others.
    """
    if len(items) <= _EXHAUSTIVE:
        sizes = range(1, len(items))
        return [kept for size in sizes for kept in itertools.combinations(items, size)]
    subsets: list[tuple[int, ...]] = [(item,) for item in items]
    subsets += [tuple(other for other in items if other != item) for item in items]
    subsets += [tuple(item for item in items if rng.random() < 0.5) for _ in items]
    return subsets


def _combinations(
    choices: Sequence[Sequence[FileOutcome | Survivors]], rng: random.Random, limit: int
) -> Iterator[tuple[FileOutcome | Survivors, ...]]:
    """Yield one of each of the choices: in every combination, or at most `limit` of them.

    If drawn: everything and nothing, then each single choice with all the rest surviving.
    """
    count = 1
    for outcomes in choices:
        count *= len(outcomes)
    if count <= limit:
        yield from itertools.product(*choices)
        return
    first = tuple(outcomes[0] for outcomes in choices)
    yield first
    yield tuple(outcomes[1] for outcomes in choices)
    single = [
        (*first[:place], outcome, *first[place + 1 :])
        for place, outcomes in enumerate(choices)
        for outcome in outcomes[1:]
    ]
    drawn = rng.sample(single, min(len(single), max(0, limit * 2 // 3)))
    yield from drawn
    for _ in range(limit - 2 - len(drawn)):
        yield tuple(rng.choice(outcomes) for outcomes in choices)
