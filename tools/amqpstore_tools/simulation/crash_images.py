"""The states that a power cut may leave of a disk.

What was synced is there. Of the rest, any part may be: of a file's writes a prefix, all but one,
only one, or any of its 512-byte sectors; one that was not written has what was synced there, and
where the size grew zeros, garbage, or stale bytes of some other file; a file that was cut is cut or
not, whatever else survived; of a directory's changes any subset. Files and
directories are independent of each other. The possibilities are enumerated exhaustively while they
are few, and drawn by seed when they are many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amqpstore.system.filenames import position_number
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.nodes import UnsyncedDirectory, UnsyncedFile, changed

SECTOR_BYTES = 512
"""A disk writes a sector as a whole or not at all."""

_EXHAUSTIVE = 4
"""Up to this many sectors, or changes of a directory, every subset is an outcome."""

_DRAWN_BYTES = 4 << 20
"""How many bytes all images of one file may take: of a large file fewer sectors are drawn."""


class FileOutcome(NamedTuple):
    """A possible state of one file."""

    description: str
    content: bytes


class Survivors(NamedTuple):
    """A possible state of one directory: the indexes of the changes that survived."""

    description: str
    indexes: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """A disk after a power cut; `description` says what survived."""

    files: MemoryFiles
    description: str


Fill = Callable[[int, int], bytes]
"""Returns the content of a sector that was not written, for its offset in the file and a size in
bytes.
"""


def crash_images(
    files: MemoryFiles, rng: random.Random, limit: int, *, notes_vary: bool = False
) -> Iterator[Image]:
    """Yield at most `limit` different images of a power cut now; all of them, if there are fewer.

    The first two are: everything survived, and nothing did. But notes of durable positions, which
    are never synced, are there in each image, unless `notes_vary`: they claim the most then.
    """
    unsynced_files, unsynced_directories = files.unsynced()
    always: dict[int, bytes] = {}
    if not notes_vary:
        notes = [file for file in unsynced_files if _is_note(file.path)]
        unsynced_files = [file for file in unsynced_files if not _is_note(file.path)]
        always = {file.number: changed(file.synced, file.changes) for file in notes}
    stale = _stale_fill(files, rng)
    by_file = [file_outcomes(file, stale, rng) for file in unsynced_files]
    by_directory = [
        _directory_outcomes(directory, rng, notes_vary=notes_vary)
        for directory in unsynced_directories
    ]
    choices: list[Sequence[FileOutcome | Survivors]] = [*by_file, *by_directory]
    seen: set[bytes] = set()
    for chosen in _combinations(choices, rng, limit):
        contents = {
            file.number: outcome.content
            for file, outcome in zip(unsynced_files, chosen, strict=False)
            if isinstance(outcome, FileOutcome)
        }
        kept = {
            directory.number: survivors.indexes
            for directory, survivors in zip(
                unsynced_directories, chosen[len(by_file) :], strict=True
            )
            if isinstance(survivors, Survivors)
        }
        image = files.power_cut(always | contents, kept)
        digest = image.digest()
        if digest not in seen:
            seen.add(digest)
            yield Image(image, "; ".join(part.description for part in chosen) or "all was synced")


def file_outcomes(file: UnsyncedFile, stale: Fill, rng: random.Random) -> list[FileOutcome]:
    """Return the possible states of a file: first all of it, then without everything unsynced."""
    outcomes: dict[bytes, str] = {}
    is_cut = any(one.content is None for one in file.changes)
    size = len(changed(file.synced, file.changes))
    for description, content in _file_contents(file, stale, rng):
        outcomes.setdefault(content, description)
        if is_cut:
            outcomes.setdefault(content[:size], f"{description}, cut at {size}")
    name = file.path.rpartition("/")[2]
    return [FileOutcome(f"{name}: {text}", content) for content, text in outcomes.items()]


def _file_contents(
    file: UnsyncedFile, stale: Fill, rng: random.Random
) -> Iterator[tuple[str, bytes]]:
    synced, changes = file.synced, file.changes
    whole = changed(synced, changes)
    yield "all", whole
    yield "nothing unsynced", synced
    if len(changes) > 1:
        for count in range(1, len(changes)):
            yield f"{count} of {len(changes)} changes", changed(synced, changes[:count])
        for index, change in enumerate(changes):
            without = changed(synced, (*changes[:index], *changes[index + 1 :]))
            text = f"all but change {index + 1}, zeros where the size grew"
            yield text, without.ljust(len(whole), b"\0")
            only = changed(synced, (change,))
            yield f"only change {index + 1}, zeros before it", only
    first = min((one.offset for one in changes if one.content is not None), default=len(whole))
    sectors: Sequence[int] = range(first // SECTOR_BYTES, -(-len(whole) // SECTOR_BYTES))
    most = max(_EXHAUSTIVE, _DRAWN_BYTES // max(len(whole), 1))
    if len(sectors) > most:
        sectors = sorted(rng.sample(sectors, most))
    for sector in sectors[1:]:
        cut = sector * SECTOR_BYTES
        yield f"cut before sector {sector}", whole[:cut] + synced[cut:]
    for _ in range(3):
        cut = rng.randint(first, len(whole))
        yield f"cut at byte {cut}", whole[:cut] + synced[cut:]
    fills: list[tuple[str, Fill]] = [
        ("zeros", lambda _offset, size: bytes(size)),
        ("garbage", lambda _offset, size: rng.randbytes(size)),
        ("stale bytes", stale),
    ]
    for fill_name, fill in fills if len(whole) > len(synced) else ():
        yield f"size grown, {fill_name}", _with_sectors(synced, whole, first, (), fill)
        grown = whole[: rng.randint(len(synced), len(whole))]
        text = f"size grown to {len(grown)}, {fill_name}"
        yield text, _with_sectors(synced, grown, first, (), fill)
    for kept in _subsets(sectors, rng):
        some = list(fills) if len(sectors) <= 2 else [fills[0], rng.choice(fills[1:])]
        for fill_name, fill in some:
            listed = ",".join(map(str, kept))
            text = f"only sectors {listed} of {sectors[0]}-{sectors[-1]}, {fill_name}"
            yield text, _with_sectors(synced, whole, first, kept, fill)


def _with_sectors(
    synced: bytes, whole: bytes, first: int, kept: Sequence[int], fill: Fill
) -> bytes:
    """Return `whole`, of which only the sectors of `kept` were written from `first` on: the others
    have what was synced there, and are filled behind that.
    """
    parts = [synced[:first]]
    start = first
    while start < len(whole):
        sector = start // SECTOR_BYTES
        end = min(len(whole), (sector + 1) * SECTOR_BYTES)
        if sector in kept:
            parts.append(whole[start:end])
        else:
            parts.append(synced[start:end])
            behind = max(start, min(len(synced), end))
            if behind < end:
                parts.append(fill(behind, end - behind))
        start = end
    return b"".join([*parts, synced[len(whole) :]])


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


def _is_note(path: str) -> bool:
    """Tell whether a file has notes of durable positions."""
    return position_number(path.rpartition("/")[2]) is not None


def _directory_outcomes(
    directory: UnsyncedDirectory, rng: random.Random, *, notes_vary: bool
) -> list[Survivors]:
    changes = directory.changes
    always = tuple(
        index for index, change in enumerate(changes) if not notes_vary and _is_note(change.name)
    )
    indexes = [index for index in range(len(changes)) if index not in always]
    name = directory.path.rpartition("/")[2] or "/"

    def survivors(kept: tuple[int, ...]) -> Survivors:
        kept = tuple(sorted({*kept, *always}))
        listed = ", ".join(str(changes[index]) for index in kept) or "no change"
        return Survivors(f"{name}: {listed}", kept)

    return [survivors(kept) for kept in ((*indexes,), (), *_subsets(indexes, rng))]


def _subsets(items: Sequence[int], rng: random.Random) -> list[tuple[int, ...]]:
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
    # What was written is what was there, if there is no second one.
    yield tuple(outcomes[min(1, len(outcomes) - 1)] for outcomes in choices)
    single = [
        (*first[:index], outcome, *first[index + 1 :])
        for index, outcomes in enumerate(choices)
        for outcome in outcomes[1:]
    ]
    drawn = rng.sample(single, min(len(single), max(0, limit * 2 // 3)))
    yield from drawn
    for _ in range(limit - 2 - len(drawn)):
        yield tuple(rng.choice(outcomes) for outcomes in choices)
