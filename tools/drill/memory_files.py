"""A disk in memory: a durable image under a volatile overlay, for files and for directories.

What a process sees is the overlay. What a power cut is sure to leave is the durable image: of a
file the bytes that `datasync` covered, of a directory the entries that `sync_directory` covered.
The difference, `unsynced`, is what a power cut may leave or take in any part; `power_cut` makes
the disk that is left when a given part of it survived.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tools.drill.nodes import (
    DirectoryNode,
    EntryChange,
    FileNode,
    Node,
    UnsyncedDirectory,
    UnsyncedFile,
    apply_change,
)
from tools.drill.operations import (
    Append,
    Commit,
    Create,
    DataSync,
    LockFile,
    MakeDirectory,
    Operation,
    Remove,
    Rename,
    SyncDirectory,
)


class MemoryLock:
    """A lock on a file of a `MemoryFiles`. Release it once."""

    def __init__(self, node: FileNode) -> None:
        self._node = node
        node.is_locked = True

    def release(self) -> None:
        self._node.is_locked = False


class MemoryFile:
    """An open file of a `MemoryFiles`; it stays readable when its name is removed."""

    def __init__(self, files: MemoryFiles, path: str, node: FileNode, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._node = node
        self._is_writable = writable
        self._is_open = True

    def append(self, buffers: Sequence[bytes]) -> None:
        self._check(writing=True)
        # All of one call is one write: what is torn within it are its sectors.
        if content := b"".join(buffers):
            self._files.write(self.path, self._node, content)

    def datasync(self) -> None:
        self._check()
        self._files.sync_file(self.path, self._node)

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        return self._node.content[offset : offset + size]

    def size(self) -> int:
        self._check()
        return len(self._node.content)

    def close(self) -> None:
        self._check()
        self._is_open = False

    def _check(self, *, writing: bool = False) -> None:
        if not self._is_open or (writing and not self._is_writable):
            raise _error(errno.EBADF, self.path)


class MemoryFiles:
    """A file system in memory, whose root exists. `record` is called with each operation done."""

    def __init__(self, record: Callable[[Operation], None] | None = None) -> None:
        self.record = record
        self.capacity_bytes: int | None = None
        """How much all files may have together: then ENOSPC."""
        self._root = DirectoryNode(1)
        self._nodes: dict[int, Node] = {1: self._root}

    # The interface of `amqpstore.files.Files`.

    def make_directory(self, path: str) -> None:
        parent = posixpath.dirname(_normal(path))
        if not isinstance(self._find(path), DirectoryNode):
            self.make_directory(parent)
            self.make_unsynced_directory(path)
        self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def create(self, path: str) -> MemoryFile:
        parent = self._parent_of_new(path)
        node = FileNode(len(self._nodes) + 1)
        self._add(parent, path, node)
        self._record(Create(path))
        return MemoryFile(self, path, node, writable=True)

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._file(path), writable=False)

    def rename(self, old: str, new: str) -> None:
        node = self._existing(old)
        source, target = self._parent(old), self._parent(new)
        present = self._find(new)
        if isinstance(present, DirectoryNode) or isinstance(node, DirectoryNode):
            # A store renames files only, so no rule of the others is modelled.
            raise _error(errno.EISDIR, new)
        if source is target:
            source.change(EntryChange(_name(new), node, _name(old)))
        else:
            # Two directories become durable each for itself.
            target.change(EntryChange(_name(new), node))
            source.change(EntryChange(_name(old), None))
        self._record(Rename(old, new))

    def remove(self, path: str) -> None:
        self._file(path)
        self._parent(path).change(EntryChange(_name(path), None))
        self._record(Remove(path))

    def free_bytes(self, path: str) -> int:
        self._directory(path)
        if self.capacity_bytes is None:
            return 1 << 60
        return self.capacity_bytes - _visible_bytes(self._root)

    def allocate(self, path: str, size: int) -> None:
        if size > self.free_bytes(posixpath.dirname(_normal(path))):
            raise _error(errno.ENOSPC, path)
        file = self.create(path)
        file.append([bytes(size)])
        file.close()

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        directory.durable = dict(directory.entries)
        directory.changes = []
        self._record(SyncDirectory(path))

    def lock(self, path: str, holder: str) -> MemoryLock:
        if self._find(path) is None:
            node = FileNode(len(self._nodes) + 1)
            self._add(self._parent_of_new(path), path, node)
        else:
            node = self._file(path)
        if node.is_locked:
            present = node.content.decode("utf-8", "replace").strip()
            raise BlockingIOError(errno.EAGAIN, present or "an unknown process", path)
        node.is_scratch = True
        node.synced, node.unsynced = holder.encode() + b"\n", []
        lock = MemoryLock(node)
        self._record(LockFile(path, holder))
        return lock

    # Beyond that interface: what a catalog does to its own file, and histories done again.

    def make_unsynced_directory(self, path: str) -> None:
        """Create `path`, whose parent exists, and leave its entry to be synced by others."""
        self._add(self._parent_of_new(path), path, DirectoryNode(len(self._nodes) + 1))
        self._record(MakeDirectory(path))

    def replace(self, path: str, content: bytes) -> None:
        """Make `content` all that is in a file, atomically. Durable, but for the file's entry."""
        self._replace(path, self._file(path), content)

    def content(self, path: str) -> bytes:
        """All that is in a file."""
        return self._file(path).content

    def contents(self) -> list[bytes]:
        """What is in the files of this disk, each once."""
        return [node.content for _, node in self._walk() if isinstance(node, FileNode)]

    def synced_contents(self) -> list[bytes]:
        """What is durable of the files of this disk, each once."""
        return [node.synced for _, node in self._walk() if isinstance(node, FileNode)]

    def write(self, path: str, node: FileNode, content: bytes) -> None:
        """Append to a file that was opened as `path`; what fits, and then ENOSPC."""
        free = self.free_bytes("/")
        node.unsynced.append(content[:free])
        self._record(Append(path, node.number, content[:free]))
        if len(content) > free:
            raise _error(errno.ENOSPC, path)

    def sync_file(self, path: str, node: FileNode) -> None:
        """Make the bytes of a file durable that was opened as `path`."""
        node.synced, node.unsynced = node.content, []
        self._record(DataSync(path, node.number))

    def redo(self, operation: Operation) -> None:
        """Do an operation that was recorded on a disk in the same state as this."""
        match operation:
            case MakeDirectory(path):
                self.make_unsynced_directory(path)
            case Create(path):
                self.create(path)
            case Append(path, number, content):
                self.write(path, self._numbered(number), content)
            case DataSync(path, number):
                self.sync_file(path, self._numbered(number))
            case Rename(old, new):
                self.rename(old, new)
            case Remove(path):
                self.remove(path)
            case SyncDirectory(path):
                self.sync_directory(path)
            case LockFile(path, holder):
                self.lock(path, holder).release()
            case Commit(path, number, content):
                self._replace(path, self._numbered(number), content)

    # Crashes.

    def fork(self) -> MemoryFiles:
        """A copy in the same state, as a killed process leaves it: what it wrote is seen by the
        next one, what it did not sync is as volatile as before, its locks are free."""
        return self._copy({}, {})

    def unsynced(self) -> tuple[list[UnsyncedFile], list[UnsyncedDirectory]]:
        """What a power cut may leave or take, in any part."""
        files: list[UnsyncedFile] = []
        directories: list[UnsyncedDirectory] = []
        for path, node in self._walk():
            if isinstance(node, DirectoryNode):
                if node.changes:
                    changes = tuple(node.changes)
                    directories.append(UnsyncedDirectory(node.number, path, changes))
            elif node.unsynced and not node.is_scratch:
                writes = tuple(node.unsynced)
                files.append(UnsyncedFile(node.number, path, node.synced, writes))
        return files, directories

    def power_cut(
        self, contents: Mapping[int, bytes], kept: Mapping[int, Collection[int]]
    ) -> MemoryFiles:
        """The disk that a power cut leaves: all of it durable.

        Args: contents, of each unsynced file, by number; kept, of each unsynced directory the
        places of the changes that survived. Of what is not named nothing unsynced survived.
        """
        return self._copy(contents, kept, is_power_cut=True)

    def digest(self) -> bytes:
        """Equal for disks with the same files, of the same content, and the same unsynced part."""
        state = hashlib.blake2b(digest_size=16)
        for path, node in sorted(self._walk(), key=lambda found: found[0]):
            if isinstance(node, DirectoryNode):
                listed = (*sorted(node.entries), None, *map(str, node.changes))
                state.update(repr((path, listed)).encode())
            elif node.is_scratch:
                state.update(repr((path, "scratch")).encode())
            else:
                sizes = [len(node.synced), *map(len, node.unsynced)]
                state.update(repr((path, sizes)).encode())
                state.update(node.content)
        return state.digest()

    def _copy(
        self,
        contents: Mapping[int, bytes],
        kept: Mapping[int, Collection[int]],
        *,
        is_power_cut: bool = False,
    ) -> MemoryFiles:
        made: dict[int, Node] = {}

        def of(node: Node) -> Node:
            known = made.get(node.number)
            if known is not None:
                return known
            if isinstance(node, FileNode):
                file = made[node.number] = FileNode(node.number, node.synced)
                file.is_scratch = node.is_scratch
                if is_power_cut:
                    file.synced = contents.get(node.number, node.synced)
                else:
                    file.unsynced = list(node.unsynced)
                return file
            directory = made[node.number] = DirectoryNode(node.number)
            durable = dict(node.durable)
            if is_power_cut:
                places = kept.get(node.number, ())
                for change in (node.changes[place] for place in sorted(places)):
                    apply_change(durable, change)
                directory.durable = {name: of(child) for name, child in durable.items()}
                directory.entries = dict(directory.durable)
            else:
                directory.durable = {name: of(child) for name, child in durable.items()}
                directory.entries = {name: of(child) for name, child in node.entries.items()}
                directory.changes = [
                    change._replace(node=change.node and of(change.node)) for change in node.changes
                ]
            return directory

        copy = MemoryFiles()
        root = of(self._root)
        if isinstance(root, DirectoryNode):
            copy._root = root
        # Nodes that nothing leads to any more keep their number, so that it is not used again.
        copy._nodes = {number: of(node) for number, node in self._nodes.items()}
        return copy

    def _walk(self) -> Iterator[tuple[str, Node]]:
        """Every node that a name leads to, now or in what is durable, with one of its paths."""
        seen: set[int] = set()
        waiting: list[tuple[str, Node]] = [("/", self._root)]
        while waiting:
            path, node = waiting.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            yield path, node
            if isinstance(node, DirectoryNode):
                named = {
                    **node.durable,
                    **{change.name: change.node for change in node.changes if change.node},
                    **node.entries,
                }
                prefix = path.rstrip("/")
                waiting.extend((f"{prefix}/{name}", named[name]) for name in named)

    # Paths and nodes.

    def _find(self, path: str) -> Node | None:
        try:
            return self._existing(path)
        except OSError:
            return None

    def _existing(self, path: str) -> Node:
        node: Node = self._root
        for name in filter(None, _normal(path).split("/")):
            if not isinstance(node, DirectoryNode):
                raise _error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _file(self, path: str) -> FileNode:
        node = self._existing(path)
        if not isinstance(node, FileNode):
            raise _error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._existing(path)
        if not isinstance(node, DirectoryNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> DirectoryNode:
        return self._directory(posixpath.dirname(_normal(path)))

    def _parent_of_new(self, path: str) -> DirectoryNode:
        parent = self._parent(path)
        if self._find(path) is not None:
            raise _error(errno.EEXIST, path)
        return parent

    def _add(self, parent: DirectoryNode, path: str, node: Node) -> None:
        self._nodes[node.number] = node
        parent.change(EntryChange(_name(path), node))

    def _numbered(self, number: int) -> FileNode:
        node = self._nodes[number]
        if not isinstance(node, FileNode):
            raise TypeError(f"node {number} is a directory")
        return node

    def _replace(self, path: str, node: FileNode, content: bytes) -> None:
        node.synced, node.unsynced = content, []
        self._record(Commit(path, node.number, content))

    def _record(self, operation: Operation) -> None:
        if self.record is not None:
            self.record(operation)


def _visible_bytes(directory: DirectoryNode) -> int:
    """What the files below a directory have together, as a process sees it."""
    return sum(
        _visible_bytes(node) if isinstance(node, DirectoryNode) else len(node.content)
        for node in directory.entries.values()
    )


@functools.lru_cache(maxsize=10_000)
def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def _name(path: str) -> str:
    return posixpath.basename(_normal(path))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
