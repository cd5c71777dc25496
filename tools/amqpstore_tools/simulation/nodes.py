"""Files and directories on a simulated disk, each with its overlay.

Nodes are values: a change makes a new one, so that copies of a disk share unchanged nodes.
Directories name their entries by number; the disk knows the node of each number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

DIGEST_BYTES = 16


class FileChange(NamedTuple):
    """`content` is at `offset` of a file from now on; if it is None, the file ends there."""

    offset: int
    content: bytes | None


def changed(content: bytes, changes: Iterable[FileChange]) -> bytes:
    """Return the content of a file after some changes. A hole reads as zeros."""
    after = bytearray(content)
    for offset, new in changes:
        if new is None:
            del after[offset:]
        else:
            after.extend(bytes(max(offset - len(after), 0)))
            after[offset : offset + len(new)] = new
    return bytes(after)


class FileNode:
    """A file: its durable bytes, and the changes since.

    `is_scratch`: its content means nothing after a crash. `cached`: what a process reads, if a
    failed sync left something in memory that the disk never gets.
    """

    __slots__ = ("_content", "_digest", "cached", "is_scratch", "synced", "unsynced")

    def __init__(
        self,
        synced: bytes = b"",
        unsynced: tuple[FileChange, ...] = (),
        *,
        is_scratch: bool = False,
        cached: bytes | None = None,
    ) -> None:
        self.synced = synced
        self.unsynced = unsynced
        self.is_scratch = is_scratch
        self.cached = cached
        self._content = cached if unsynced or cached is not None else synced
        self._digest = b""

    @property
    def content(self) -> bytes:
        """The content as a process reads it."""
        if self._content is None:
            self._content = changed(self.synced, self.unsynced)
        return self._content

    @property
    def digest(self) -> bytes:
        """A digest that is equal for files of the same content, and the same unsynced part."""
        if not self._digest:
            state = hashlib.blake2b(digest_size=DIGEST_BYTES)
            if self.is_scratch:
                state.update(b"scratch")
            else:
                kinds = [(one.offset, one.content and len(one.content)) for one in self.unsynced]
                state.update(repr([len(self.synced), *kinds, self.cached is None]).encode())
                state.update(self.synced)
                for one in self.unsynced:
                    state.update(one.content or b"")
                state.update(self.cached or b"")
            self._digest = state.digest()
        return self._digest

    def written(self, change: FileChange) -> FileNode:
        """Return the file after one more change."""
        cached = None if self.cached is None else changed(self.cached, [change])
        unsynced = (*self.unsynced, change)
        return FileNode(self.synced, unsynced, is_scratch=self.is_scratch, cached=cached)

    def made_durable(self) -> FileNode:
        """Return the file once all of it is durable, except what is only in the cache."""
        if not self.unsynced:
            return self
        synced = changed(self.synced, self.unsynced)
        return FileNode(synced, is_scratch=self.is_scratch, cached=self.cached)

    def lost(self) -> FileNode:
        """Return the file after a failed sync.

        Unsynced bytes can be read, and never become durable: Linux marks pages that it could not
        write as written. It is unknown which size of the file the disk has.
        """
        if not self.unsynced:
            return self
        before, after = len(self.synced), len(changed(self.synced, self.unsynced))
        resized: tuple[FileChange, ...] = ()
        if after > before:
            resized = (FileChange(before, bytes(after - before)),)
        elif after < before:
            resized = (FileChange(after, None),)
        return FileNode(self.synced, resized, is_scratch=self.is_scratch, cached=self.content)

    def hidden(self, content: bytes) -> FileNode:
        """Return the file with `content` as what a process reads."""
        return FileNode(self.synced, self.unsynced, is_scratch=self.is_scratch, cached=content)

    def without_cache(self) -> FileNode:
        """Return the file as it is on the disk, or on its way there."""
        return FileNode(self.synced, self.unsynced, is_scratch=self.is_scratch)

    def after_power_cut(self) -> FileNode:
        """Return the file without anything that was not durable."""
        if not self.unsynced and self.cached is None:
            return self
        return FileNode(self.synced, is_scratch=self.is_scratch)


class EntryChange(NamedTuple):
    """`name` refers to node `number` from now on (None: to nothing), and `old` to nothing."""

    name: str
    number: int | None
    old: str | None = None

    def __str__(self) -> str:
        if self.old is not None:
            return f"{self.old} -> {self.name}"
        return f"{'-' if self.number is None else '+'}{self.name}"


class DirectoryNode:
    """A directory: entries as a process sees them, and as they are durable.

    Entries are numbers of nodes by name; `changes` lead from `durable` to `entries`.
    """

    __slots__ = ("changes", "durable", "entries")

    def __init__(
        self,
        durable: dict[str, int] | None = None,
        entries: dict[str, int] | None = None,
        changes: tuple[EntryChange, ...] = (),
    ) -> None:
        self.durable = {} if durable is None else durable
        self.entries = self.durable if entries is None else entries
        self.changes = changes

    def changed(self, change: EntryChange) -> DirectoryNode:
        """Return the directory after one more change."""
        entries = dict(self.entries)
        _apply(entries, change)
        return DirectoryNode(self.durable, entries, (*self.changes, change))

    def made_durable(self) -> DirectoryNode:
        """Return the directory once all entries are durable."""
        return DirectoryNode(self.entries) if self.changes else self

    def after_power_cut(self, kept: tuple[int, ...] = ()) -> DirectoryNode:
        """Return the directory with only durable entries, and the changes at the places `kept`."""
        if not self.changes:
            return self
        durable = dict(self.durable)
        for index in sorted(kept):
            _apply(durable, self.changes[index])
        return DirectoryNode(durable)

    def named(self) -> dict[str, int]:
        """Return every entry that exists, did, or may exist again."""
        if not self.changes:
            return self.entries
        changed = {one.name: one.number for one in self.changes if one.number is not None}
        return {**self.durable, **changed, **self.entries}


Node = FileNode | DirectoryNode


@dataclass(frozen=True)
class UnsyncedFile:
    """A file with bytes that a power cut may lose: the durable ones, and the changes since."""

    number: int
    path: str
    synced: bytes
    changes: tuple[FileChange, ...]


@dataclass(frozen=True)
class UnsyncedDirectory:
    """A directory with entries that a power cut may undo."""

    number: int
    path: str
    changes: tuple[EntryChange, ...]


def _apply(entries: dict[str, int], change: EntryChange) -> None:
    """Apply a change to a directory's entries."""
    if change.old is not None:
        entries.pop(change.old, None)
    if change.number is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.number
