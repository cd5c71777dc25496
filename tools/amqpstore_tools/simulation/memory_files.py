"""A disk in memory: a durable image under a volatile overlay, for files and for directories.

A process sees the overlay. A power cut certainly leaves the durable image: the bytes of a file that
`datasync` covered, the entries of a directory that `sync_directory` covered. Any part of the
difference, `unsynced`, may survive a power cut; `power_cut` returns the disk after a given part
survived. Copies share everything they do not change.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from amqpstore.system.files import FileType
from amqpstore_tools.simulation.nodes import (
    DIGEST_BYTES,
    DirectoryNode,
    EntryChange,
    FileChange,
    FileNode,
    Node,
    UnsyncedDirectory,
    UnsyncedFile,
)
from amqpstore_tools.simulation.operations import (
    CatalogCommit,
    Create,
    DataSync,
    DropCache,
    FailedSync,
    HardLink,
    LockFile,
    LostCommit,
    MakeDirectory,
    Operation,
    Remove,
    Rename,
    SyncDirectory,
    Truncate,
    Write,
)

_ROOT = 1
"""The number of the root directory, where all paths begin."""


class MemoryLock:
    """A lock on a file of a `MemoryFiles`. Release it once."""

    def __init__(self, locked: set[int], number: int) -> None:
        self._locked = locked
        self._number = number
        locked.add(number)

    def release(self) -> None:
        self._locked.discard(self._number)


class MemoryFile:
    """An open file of a `MemoryFiles`; it stays readable when its name is removed."""

    descriptor = None

    def __init__(self, files: MemoryFiles, path: str, number: int, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._number = number
        self._is_writable = writable
        self._is_open = True
        self._end = 0

    def append(self, buffers: Sequence[bytes]) -> None:
        self._check(writing=True)
        # All of one call is one write: it is torn at its sectors.
        if content := b"".join(buffers):
            try:
                self._files.write(self.path, self._number, self._end, content)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    # What fits was written: the size says how much, as nothing was there before.
                    self._end = min(self.size(), self._end + len(content))
                raise
            self._end += len(content)

    def fill(self, start: int, stop: int) -> None:
        self._check(writing=True)
        self._files.write(self.path, self._number, start, bytes(stop - start))

    def truncate(self, size: int) -> None:
        self._check(writing=True)
        if self.size() > size:
            self._files.truncate(self.path, self._number, size)

    def end(self) -> int:
        self._check(writing=True)
        return self._end

    def datasync(self) -> None:
        self._check()
        self._files.sync_file(self.path, self._number)

    def fail_sync(self) -> None:
        """Simulate a failed `datasync`: see `FileNode.lost`."""
        self._check()
        self._files.fail_sync(self.path, self._number)

    def drop_cache(self) -> None:
        self._check()
        self._files.drop_cache(self.path, self._number)

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        return self._files.numbered(self._number).content[offset : offset + size]

    def size(self) -> int:
        self._check()
        return len(self._files.numbered(self._number).content)

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
        """The most bytes of all files together: beyond it, ENOSPC."""
        self._nodes: dict[int, Node] = {_ROOT: DirectoryNode()}
        self._locked: set[int] = set()

    # The interface of `amqpstore.system.files.Files`.

    def make_directory(self, path: str) -> None:
        parent = posixpath.dirname(_normal(path))
        if not self._is_directory(path):
            self.make_directory(parent)
            self.make_unsynced_directory(path)
        self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path)[1].entries)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def type_of(self, path: str) -> FileType:
        if self._find(path) is None:
            return FileType.MISSING
        return FileType.DIRECTORY if self._is_directory(path) else FileType.FILE

    def size_of(self, path: str) -> int:
        number = self._find(path)
        return (
            0 if number is None or self._is_directory(path) else len(self.numbered(number).content)
        )

    def is_link(self, path: str) -> bool:  # noqa: ARG002 - as in Files
        return False

    def create(self, path: str) -> MemoryFile:
        number = self._add(path, FileNode())
        self._record(Create(path))
        return MemoryFile(self, path, number, writable=True)

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._file(path), writable=False)

    def recycle(self, old: str, new: str) -> MemoryFile:
        self.link(old, new)
        self.remove(old)
        return MemoryFile(self, new, self._file(new), writable=True)

    def rename(self, old: str, new: str) -> None:
        number = self._existing(old)
        source, target = self._parent(old), self._parent(new)
        if self._is_directory(old) or self._is_directory(new):
            # A store renames files only, so the rules for directories are not modelled.
            raise _error(errno.EISDIR, new)
        if source == target:
            self._change(source, EntryChange(_name(new), number, _name(old)))
        else:
            # The two directories become durable independently.
            self._change(target, EntryChange(_name(new), number))
            self._change(source, EntryChange(_name(old), None))
        self._record(Rename(old, new))

    def remove(self, path: str) -> None:
        self._file(path)
        self._change(self._parent(path), EntryChange(_name(path), None))
        self._record(Remove(path))

    def free_bytes(self, path: str) -> int:
        self._existing(path)
        if self.capacity_bytes is None:
            return 1 << 60
        return self.capacity_bytes - self._visible_bytes(_ROOT)

    def allocate(self, path: str, size: int) -> None:
        if size > self.free_bytes(posixpath.dirname(_normal(path))):
            raise _error(errno.ENOSPC, path)
        file = self.create(path)
        file.append([bytes(size)])
        file.close()

    def sync_directory(self, path: str) -> None:
        number, directory = self._directory(path)
        self._nodes[number] = directory.made_durable()
        self._record(SyncDirectory(path))

    def lock(self, path: str, holder: str) -> MemoryLock:
        number = self._find(path)
        if number is None:
            number = self._add(path, FileNode())
        elif self._file(path) in self._locked:
            present = self.numbered(number).content.decode("utf-8", "replace").strip()
            raise BlockingIOError(errno.EAGAIN, present or "an unknown process", path)
        self._nodes[number] = FileNode(holder.encode() + b"\n", is_scratch=True)
        lock = MemoryLock(self._locked, number)
        self._record(LockFile(path, holder))
        return lock

    # Beyond that interface: a second name, a catalog's changes to its own file, and replay of
    # histories.

    def make_unsynced_directory(self, path: str) -> None:
        """Create `path`, whose parent exists, and leave its entry to be synced by others."""
        self._add(path, DirectoryNode())
        self._record(MakeDirectory(path))

    def link(self, old: str, new: str) -> None:
        """Give a file one more name. Raises: FileExistsError."""
        number = self._file(old)
        self._link(number, new)
        self._record(HardLink(old, new))

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content of a file, atomically. Durable, except the file's entry."""
        self._replace(path, self._file(path), content)

    def replace_in_cache(self, path: str, content: bytes) -> None:
        """Replace what a process reads in a file, until the cache is dropped or the power is cut;
        the disk never gets it.
        """
        number = self._file(path)
        self._nodes[number] = self.numbered(number).hidden(content)
        self._record(LostCommit(path, number, content))

    def content(self, path: str) -> bytes:
        """Return the content of a file."""
        return self.numbered(self._file(path)).content

    def contents(self) -> list[bytes]:
        """Return the contents of the files of this disk, each once."""
        return [node.content for _, _, node in self._walk() if isinstance(node, FileNode)]

    def synced_contents(self) -> list[bytes]:
        """Return the durable contents of the files of this disk, each once."""
        return [node.synced for _, _, node in self._walk() if isinstance(node, FileNode)]

    def numbered(self, number: int) -> FileNode:
        """Return the file with this number, whatever name it has or had."""
        node = self._nodes[number]
        if not isinstance(node, FileNode):
            raise TypeError(f"node {number} is a directory")
        return node

    def write(self, path: str, number: int, offset: int, content: bytes) -> None:
        """Write to a file that was opened as `path`: as much as fits, and then ENOSPC.

        Bytes that the file has already need no space.
        """
        node = self.numbered(number)
        fits = max(len(node.content) + self.free_bytes("/") - offset, 0)
        self._nodes[number] = node.written(FileChange(offset, content[:fits]))
        self._record(Write(path, number, offset, content[:fits]))
        if len(content) > fits:
            raise _error(errno.ENOSPC, path)

    def truncate(self, path: str, number: int, offset: int) -> None:
        """Let a file that was opened as `path` end at an offset."""
        self._nodes[number] = self.numbered(number).written(FileChange(offset, None))
        self._record(Truncate(path, number, offset))

    def sync_file(self, path: str, number: int) -> None:
        """Make the bytes of a file durable that was opened as `path`."""
        self._nodes[number] = self.numbered(number).made_durable()
        self._record(DataSync(path, number))

    def fail_sync(self, path: str, number: int) -> None:
        """Fail to make the bytes of a file durable that was opened as `path`."""
        self._nodes[number] = self.numbered(number).lost()
        self._record(FailedSync(path, number))

    def drop_cache(self, path: str, number: int) -> None:
        """Let a file that was opened as `path` be read from the disk again."""
        node = self.numbered(number)
        if node.cached is not None:
            self._nodes[number] = node.without_cache()
            self._record(DropCache(path, number))

    def redo(self, operation: Operation) -> None:
        """Repeat an operation that was recorded on a disk in the same state as this."""
        match operation:
            case MakeDirectory(path):
                self.make_unsynced_directory(path)
            case Create(path):
                self.create(path)
            case Rename(old, new):
                self.rename(old, new)
            case HardLink(old, new):
                self.link(old, new)
            case Remove(path):
                self.remove(path)
            case SyncDirectory(path):
                self.sync_directory(path)
            case LockFile(path, holder):
                self.lock(path, holder).release()
            case _:
                self._redo_in_file(operation)

    def _redo_in_file(self, operation: Operation) -> None:
        """Repeat a change of the content of one file."""
        match operation:
            case Write(path, number, offset, content):
                self.write(path, number, offset, content)
            case Truncate(path, number, offset):
                self.truncate(path, number, offset)
            case DataSync(path, number):
                self.sync_file(path, number)
            case FailedSync(path, number):
                self.fail_sync(path, number)
            case DropCache(path, number):
                self.drop_cache(path, number)
            case CatalogCommit(path, number, content):
                self._replace(path, number, content)
            case LostCommit(path, _, content):
                self.replace_in_cache(path, content)

    # Crashes.

    def fork(self) -> MemoryFiles:
        """Return a copy in the same state, as a killed process leaves it: the next process sees
        what it wrote, unsynced data is as volatile as before, its locks are free.
        """
        copy = MemoryFiles()
        copy._nodes = dict(self._nodes)
        return copy

    def unsynced(self) -> tuple[list[UnsyncedFile], list[UnsyncedDirectory]]:
        """Return what a power cut may leave or take, in any part."""
        files: list[UnsyncedFile] = []
        directories: list[UnsyncedDirectory] = []
        for path, number, node in self._walk():
            if isinstance(node, DirectoryNode):
                if node.changes:
                    directories.append(UnsyncedDirectory(number, path, node.changes))
            elif node.unsynced and not node.is_scratch:
                files.append(UnsyncedFile(number, path, node.synced, node.unsynced))
        return files, directories

    def power_cut(
        self, contents: Mapping[int, bytes], kept: Mapping[int, Collection[int]]
    ) -> MemoryFiles:
        """Return the disk that a power cut leaves: all of it durable.

        Args: contents, of each unsynced file, by number; kept, of each unsynced directory the
        places of the changes that survived. For files and directories that are not named nothing
        unsynced survives.
        """
        copy = MemoryFiles()
        nodes = copy._nodes
        for number, node in self._nodes.items():
            if isinstance(node, DirectoryNode):
                nodes[number] = node.after_power_cut(tuple(kept.get(number, ())))
            elif number in contents:
                nodes[number] = FileNode(contents[number], is_scratch=node.is_scratch)
            else:
                nodes[number] = node.after_power_cut()
        return copy

    def digest(self) -> bytes:
        """Return a digest that is equal for disks with the same files, content, and unsynced
        part.
        """
        parts: list[bytes] = []
        for path, _, node in sorted(self._walk(), key=_path_of):
            parts.append(path.encode())
            if isinstance(node, FileNode):
                parts.append(node.digest)
            else:
                parts.append(
                    "/".join([*sorted(node.entries), "", *map(str, node.changes)]).encode()
                )
        return hashlib.blake2b(b"\0".join(parts), digest_size=DIGEST_BYTES).digest()

    def _walk(self) -> Iterator[tuple[str, int, Node]]:
        """Yield every node that a name leads to, now or in the durable image, with one of its
        paths.
        """
        seen: set[int] = {_ROOT}
        yield "/", _ROOT, self._nodes[_ROOT]
        waiting: list[tuple[str, int]] = [("/", _ROOT)]
        while waiting:
            prefix, number = waiting.pop()
            directory = self._nodes[number]
            if not isinstance(directory, DirectoryNode):
                continue
            for name, child in directory.named().items():
                if child in seen:
                    continue
                seen.add(child)
                node = self._nodes[child]
                path = prefix + name
                yield path, child, node
                if isinstance(node, DirectoryNode):
                    waiting.append((f"{path}/", child))

    # Paths and nodes.

    def _find(self, path: str) -> int | None:
        try:
            return self._existing(path)
        except OSError:
            return None

    def _existing(self, path: str) -> int:
        number = _ROOT
        for name in _names(path):
            node = self._nodes[number]
            if not isinstance(node, DirectoryNode):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                raise _error(errno.ENOENT, path)
            number = found
        return number

    def _is_directory(self, path: str) -> bool:
        number = self._find(path)
        return number is not None and isinstance(self._nodes[number], DirectoryNode)

    def _file(self, path: str) -> int:
        number = self._existing(path)
        if not isinstance(self._nodes[number], FileNode):
            raise _error(errno.EISDIR, path)
        return number

    def _directory(self, path: str) -> tuple[int, DirectoryNode]:
        number = self._existing(path)
        node = self._nodes[number]
        if not isinstance(node, DirectoryNode):
            raise _error(errno.ENOTDIR, path)
        return number, node

    def _parent(self, path: str) -> int:
        return self._directory(posixpath.dirname(_normal(path)))[0]

    def _change(self, parent: int, change: EntryChange) -> None:
        node = self._nodes[parent]
        if isinstance(node, DirectoryNode):
            self._nodes[parent] = node.changed(change)

    def _add(self, path: str, node: Node) -> int:
        """Create a node for a path that does not exist. Returns its number."""
        # Nodes without a name keep their number, so that it is not used again.
        number = len(self._nodes) + 1
        self._link(number, path)
        self._nodes[number] = node
        return number

    def _link(self, number: int, path: str) -> None:
        """Let a path that does not exist lead to a node."""
        parent = self._parent(path)
        if self._find(path) is not None:
            raise _error(errno.EEXIST, path)
        self._change(parent, EntryChange(_name(path), number))

    def _replace(self, path: str, number: int, content: bytes) -> None:
        self._nodes[number] = FileNode(content)
        self._record(CatalogCommit(path, number, content))

    def _visible_bytes(self, number: int) -> int:
        """Return the size of a file, or of the files below a directory, as a process sees them."""
        node = self._nodes[number]
        if isinstance(node, FileNode):
            return len(node.content)
        return sum(self._visible_bytes(child) for child in node.entries.values())

    def _record(self, operation: Operation) -> None:
        if self.record is not None:
            self.record(operation)


def _path_of(found: tuple[str, int, Node]) -> str:
    return found[0]


@functools.lru_cache(maxsize=10_000)
def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


@functools.lru_cache(maxsize=10_000)
def _names(path: str) -> tuple[str, ...]:
    return tuple(filter(None, _normal(path).split("/")))


@functools.lru_cache(maxsize=10_000)
def _name(path: str) -> str:
    return posixpath.basename(_normal(path))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
