"""The names in a data directory, and which of them the store knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from amqpstore.errors import NotAStoreError

MARKER = "STORE"
"""The marker: says that the directory is a store, its format version, and its id."""

NEW_MARKER = "STORE.new"
LOCK = "lock"
MEMBER = "MEMBER"
"""Says which member of a group the directory is of; a single node has none."""

NEW_MEMBER = "MEMBER.new"
REPLACEMENT = "REPLACEMENT"
"""Says that the files of a leader's store are here, and take the place of a follower's own."""

NEW_REPLACEMENT = "REPLACEMENT.new"
CATALOG = "catalog"
CATALOG_FILE = "data.mdb"
"""LMDB's own name for its file in the catalog's directory."""

CATALOG_LOCK = "lock.mdb"
"""LMDB's own name for its lock file, beside it."""

SEGMENTS = "segments"
INDEX = "index"
QUARANTINE = "quarantine"
RESERVE = "reserve"
TRANSIENT = "transient"
KEPT = "kept"
"""Segments that a member of a group keeps for others that are away."""

TRAILS = "trails"
"""The directory with notes of who published messages and who got them."""

FIRST_COMPACTED = 1 << 31
"""Numbers from here on are those of compacted segments."""

REPAIR_JOURNAL = "journal.json"
REPAIR_OLD = "old"
REPAIR_NEW = "new"
"""In the directory of a repair, whose name `repair_number` knows."""

DEFINITIONS = "definitions"
"""In the catalog's directory: a copy of the tables that only the catalog has."""

_OF_SYSTEM = frozenset(
    {
        # The file system, and its quotas; filers; macOS; Windows, through SMB.
        *("lost+found", ".snapshot", ".snapshots", ".zfs", ".glusterfs"),
        *("aquota.user", "aquota.group", "quota.user", "quota.group"),
        *("@eaDir", "#recycle", "#snapshot"),
        *(".DS_Store", ".fseventsd", ".Spotlight-V100", ".TemporaryItems", ".Trashes"),
        *("System Volume Information", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini"),
    }
)
_OF_SYSTEM_BEGINNINGS = (".nfs", ".fuse_hidden", "..", "._", ".Trash-")

_INDEX = re.compile(r"([0-9]{20})-([0-9]{10})\.index")
_SEGMENT = re.compile(r"([0-9]{10})\.segment")
_REPAIR = re.compile(r"repair-([0-9]{10})")
_REJOIN = re.compile(r"rejoin-([0-9]{10})")
_KEPT = re.compile(r"([0-9]{10})-([0-9]{1,19})\.segment")
_TRAIL = re.compile(r"([0-9]{10})\.trail")
_POSITION = re.compile(r"([0-9]{10})\.position")
_UNFINISHED = re.compile(r"([0-9]{10}\.segment|[0-9]{20}-[0-9]{10}\.index)\.new")
_SPARE = re.compile(r"[0-9]{10}\.spare")


def is_of_system(name: str) -> bool:
    """Tell whether a file system, or what mounts it, puts something of this name into directories.

    Such as what fsck finds, snapshots of a filer, the files that NFS and FUSE keep for processes
    that have them open, and the links of a volume of Kubernetes. A store neither reads nor counts
    these.
    """
    return name in _OF_SYSTEM or name.startswith(_OF_SYSTEM_BEGINNINGS)


def absolute_path(directory: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory that a caller names: files of a store are opened as
    long as it is open, whatever `os.chdir` does meanwhile.

    Raises: TypeError, ValueError, if it is not the path of a directory; NotAStoreError, if it is
    relative to a directory that was deleted.
    """
    path = os.fspath(directory)
    if not isinstance(path, str):
        raise TypeError(f"a directory must be a str or a path of text, not {directory!r}")
    if not path or "\0" in path:
        raise ValueError(f"a directory must have a name, without NUL, not {directory!r}")
    if path.startswith("file:"):
        raise ValueError(f"a directory must be a path, not a URL such as {path!r}")
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        reason = "its path begins at the current directory, which was deleted"
        raise NotAStoreError(path, reason) from None


def segment_name(number: int) -> str:
    """Return the file name of segment `number`."""
    return f"{number:010}.segment"


def segment_path(directory: str, number: int) -> str:
    """Return the path of segment `number` of the store in `directory`."""
    return os.path.join(directory, SEGMENTS, segment_name(number))


def quarantined_path(directory: str, number: int) -> str:
    """Return the path that segment `number` of the store in `directory` has in quarantine."""
    return os.path.join(directory, QUARANTINE, segment_name(number))


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for any other name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match and int(match[1]) else None


def segment_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the segments among file names, ascending."""
    return sorted(number for name in names if (number := segment_number(name)))


def is_compacted(number: int) -> bool:
    """Tell whether a segment was made by a compaction; the others are of the log."""
    return number >= FIRST_COMPACTED


def index_path(directory: str, queue_id: int, number: int) -> str:
    """Return the path of index file `number` of a queue of the store in `directory`."""
    return os.path.join(directory, INDEX, f"{queue_id:020}-{number:010}.index")


def index_key(name: str) -> tuple[int, int] | None:
    """Return queue id and number in an index file's name; None for any other name."""
    match = _INDEX.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def repair_path(directory: str, number: int) -> str:
    """Return where repair `number` keeps the files it replaced."""
    return os.path.join(directory, QUARANTINE, f"repair-{number:010}")


def repair_number(name: str) -> int | None:
    """Return the number in the name of a repair's directory; None for any other name."""
    match = _REPAIR.fullmatch(name)
    return int(match[1]) if match and int(match[1]) else None


def new_segment_path(directory: str, number: int) -> str:
    """Return the path of segment `number` while a follower writes it anew."""
    return f"{segment_path(directory, number)}.new"


def spare_path(directory: str, number: int) -> str:
    """Return the path of the spare segment that segment `number` was."""
    return os.path.join(directory, SEGMENTS, f"{number:010}.spare")


def is_spare(name: str) -> bool:
    """Tell whether a file is a spare segment. A start removes it."""
    return _SPARE.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Tell whether a file is a segment or an index file that a follower was receiving.

    A start removes it, unless the follower goes on with what it has received.
    """
    return _UNFINISHED.fullmatch(name) is not None


def rejoin_path(directory: str, number: int) -> str:
    """Return where a follower keeps what it discarded when it joined its leader that time."""
    return os.path.join(directory, QUARANTINE, f"rejoin-{number:010}")


def kept_path(directory: str, number: int, end: int) -> str:
    """Return the path of segment `number`, of `end` bytes, that a member keeps for others."""
    return os.path.join(directory, KEPT, f"{number:010}-{end}.segment")


def kept_segment(name: str) -> tuple[int, int] | None:
    """Return the number and the end in the name of such a segment; None for any other name."""
    match = _KEPT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def rejoin_number(name: str) -> int | None:
    """Return the number in the name of such a directory; None for any other name."""
    match = _REJOIN.fullmatch(name)
    return int(match[1]) if match and int(match[1]) else None


def trail_name(number: int) -> str:
    """Return the name of file `number` of client trails."""
    return f"{number:010}.trail"


def trail_number(name: str) -> int | None:
    """Return the number in the name of such a file; None for any other name."""
    match = _TRAIL.fullmatch(name)
    return int(match[1]) if match and int(match[1]) else None


def position_name(number: int) -> str:
    """Return the name of file `number` of durable positions."""
    return f"{number:010}.position"


def position_number(name: str) -> int | None:
    """Return the number in the name of such a file; None for any other name."""
    match = _POSITION.fullmatch(name)
    return int(match[1]) if match and int(match[1]) else None
