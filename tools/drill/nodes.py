"""What names on a simulated disk stand for: files and directories, each with its overlay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FileNode:
    """What a file's name stands for. `is_scratch`: its content means nothing after a crash."""

    __slots__ = ("is_locked", "is_scratch", "number", "synced", "unsynced")

    def __init__(self, number: int, synced: bytes = b"") -> None:
        self.number = number
        self.synced = synced
        self.unsynced: list[bytes] = []
        self.is_scratch = False
        self.is_locked = False

    @property
    def content(self) -> bytes:
        """What a process reads."""
        return b"".join([self.synced, *self.unsynced]) if self.unsynced else self.synced


class DirectoryNode:
    """What a directory's name stands for: entries as a process sees them, and as they are safe.

    `changes` leads from `durable` to `entries`.
    """

    __slots__ = ("changes", "durable", "entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.durable: dict[str, Node] = {}
        self.entries: dict[str, Node] = {}
        self.changes: list[EntryChange] = []

    def change(self, change: EntryChange) -> None:
        self.changes.append(change)
        apply_change(self.entries, change)


Node = FileNode | DirectoryNode


class EntryChange(NamedTuple):
    """`name` stands for `node` from now on (None: for nothing), and `old` for nothing."""

    name: str
    node: Node | None
    old: str | None = None

    def __str__(self) -> str:
        if self.old is not None:
            return f"{self.old} -> {self.name}"
        return f"{'-' if self.node is None else '+'}{self.name}"


@dataclass(frozen=True)
class UnsyncedFile:
    """A file with bytes that a power cut may take: the durable ones, and the writes since."""

    number: int
    path: str
    synced: bytes
    writes: tuple[bytes, ...]


@dataclass(frozen=True)
class UnsyncedDirectory:
    """A directory with entries that a power cut may take back."""

    number: int
    path: str
    changes: tuple[EntryChange, ...]


def apply_change(entries: dict[str, Node], change: EntryChange) -> None:
    """Do to a directory's entries what the change says."""
    if change.old is not None:
        entries.pop(change.old, None)
    if change.node is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.node
