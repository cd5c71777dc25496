"""The operations on a simulated disk: each one that has an effect, one by one.

A file or directory is named by the number of its node, which stays the same through renames and is
counted from the creation of the disk, so that a history can be repeated on a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A new directory; its entry is not durable yet."""

    path: str

    def __str__(self) -> str:
        return f"make the directory {self.path}"


@dataclass(frozen=True, slots=True)
class Create:
    """A new, empty file; its entry is not durable yet."""

    path: str

    def __str__(self) -> str:
        return f"create {self.path}"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset of a file: one write, not durable yet."""

    path: str
    node: int
    offset: int
    content: bytes

    def __repr__(self) -> str:
        return f"Write({self.path!r}, {len(self.content)} bytes at {self.offset})"

    def __str__(self) -> str:
        return f"write {len(self.content):,} bytes at {self.offset:,} of {self.path}"


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file ends at an offset from now on; not durable yet."""

    path: str
    node: int
    offset: int

    def __str__(self) -> str:
        return f"end {self.path} at {self.offset:,}"


@dataclass(frozen=True, slots=True)
class DataSync:
    """All bytes of a file are durable."""

    path: str
    node: int

    def __str__(self) -> str:
        return f"sync {self.path}"


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A file's unsynced bytes will never be durable, though they can still be read."""

    path: str
    node: int

    def __str__(self) -> str:
        return f"a failing sync of {self.path}"


@dataclass(frozen=True, slots=True)
class DropCache:
    """A file is read from the disk from now on: bytes that the disk never got are gone."""

    path: str
    node: int

    def __str__(self) -> str:
        return f"drop the cache of {self.path}"


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name; the directories' entries are not durable yet."""

    old: str
    new: str

    def __str__(self) -> str:
        return f"rename {self.old} to {self.new}"


@dataclass(frozen=True, slots=True)
class HardLink:
    """One more name of a file; its entry is not durable yet."""

    old: str
    new: str

    def __str__(self) -> str:
        return f"link {self.old} to {self.new}"


@dataclass(frozen=True, slots=True)
class Remove:
    """An entry is removed; not durable yet."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """All entries of a directory are durable."""

    path: str

    def __str__(self) -> str:
        return f"sync the directory {self.path}"


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock was taken; its file was created if it was missing."""

    path: str
    # Differs each time that the same is done.
    holder: str = field(repr=False)

    def __str__(self) -> str:
        return f"lock {self.path}"


@dataclass(frozen=True, slots=True)
class CatalogCommit:
    """A catalog transaction: the content of its file is replaced, atomically and durably."""

    path: str
    node: int
    content: bytes

    def __repr__(self) -> str:
        return f"Commit({self.path!r})"

    def __str__(self) -> str:
        return f"commit to {self.path}"


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A catalog transaction that can be read, and that the disk never got."""

    path: str
    node: int
    content: bytes

    def __repr__(self) -> str:
        return f"LostCommit({self.path!r})"

    def __str__(self) -> str:
        return f"a commit to {self.path} that the disk loses"


Operation = (
    MakeDirectory
    | Create
    | Write
    | Truncate
    | DataSync
    | FailedSync
    | DropCache
    | Rename
    | HardLink
    | Remove
    | SyncDirectory
    | LockFile
    | CatalogCommit
    | LostCommit
)
