"""The interface to the operating system: every file the store reads or writes goes through `Files`.

The catalog is the exception, because LMDB writes its own file (see `catalog`). Everything else
takes a `Files`, so that a test or a drill can hand in a disk that loses power, fills up or rots.
What is durable is part of the contract of each call, and the store relies on nothing beyond it:

- bytes of a file are durable once its `datasync` has returned;
- a directory entry (a new file, a rename, a removal) is durable once `sync_directory` of that
  directory has returned.

What is created on the real file system belongs to whom the store belongs, also if root creates it
(see `ownership`).

Past 600 lines because this is one contract: each call, and what the real file system does for it.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from amqpstore.system import ownership

_ONLY_LINUX = "amqpstore keeps its stores on Linux only; elsewhere run it in a container or WSL 2"

try:
    import fcntl
    import resource
except ImportError as missing:  # on Windows
    raise ImportError(f"{_ONLY_LINUX}: {sys.platform} has no {missing.name}") from missing

# Linux takes at most 1024 buffers (IOV_MAX) in one call.
_BUFFERS_A_CALL = 1024

# Of what one call writes to new pages, Linux makes units as large as it can: see below. The largest
# ones are made of memory that has not been used for long, and that costs most where a hypervisor
# has taken it back: 1.4 us a KiB in calls of 4 MiB, 0.3 us in these.
_MAX_BYTES_A_CALL = 1 << 20
_LARGE_READ_BYTES = 1 << 20
_SPARE_DESCRIPTORS = 8

# A file is filled a page a call. What one call writes to new pages, Linux keeps as one unit (a
# large folio: XFS from 5.18, ext4 from 6.16), and each small write later makes all of it dirty. So
# after calls of 256 KiB each small batch counts as a write of 256 KiB: in /proc/PID/io, in the
# limits of dirty memory beyond which the kernel slows writers down, and in XFS before 6.6 on the
# disk as well.
_PAGE_OF_ZEROS = bytes(mmap.PAGESIZE)


_FEW_FILES = 64
"""Publishers are refused while a file system has no more inodes than this: a checkpoint creates a
few files.
"""


class SpareDescriptors:
    """Unused descriptors of this process, to be closed when no other is left.

    Any thread may call it.
    """

    def __init__(self, most: int = _SPARE_DESCRIPTORS) -> None:
        self._most = most
        self._held: list[int] = []

    def fill(self) -> None:
        """Open missing ones, as far as the process may."""
        while len(self._held) < self._most:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def give_up(self, *, keep: int = 0) -> bool:
        """Close one, if there are more than `keep`. Returns whether there were."""
        if len(self._held) <= keep:
            return False
        try:
            descriptor = self._held.pop()
        except IndexError:  # another thread was faster
            return False
        os.close(descriptor)
        return True


SPARE = SpareDescriptors()


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise the limit of open files as far as possible. Returns the limits before and after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class FileType(enum.Enum):
    """The kind of thing that a name in a directory leads to. The value is text for people.

    A link counts as what it leads to; only one that leads nowhere, or in a circle, is of a type of
    its own, or any link where none may be. So is a file or a directory that this process may not
    read.
    """

    MISSING = "missing"
    FILE = "a file"
    DIRECTORY = "a directory"
    PIPE = "a pipe"
    SOCKET = "a socket"
    DEVICE = "a device"
    BROKEN_LINK = "a link that leads nowhere"
    LINK = "a link"
    FORBIDDEN = "something that this user may not read"

    @property
    def not_a_file(self) -> str:
        """The fault of such a thing in the place of a file, as text for people."""
        return f"it is {self.value}, not a regular file"


class NotAFileError(FileNotFoundError):
    """There is no file of this name, but something else has the name: a directory, a pipe, a link
    that leads nowhere. Whoever can do without the file can do without this one.
    """

    @classmethod
    def of(cls, path: str, found: FileType) -> NotAFileError:
        """Return the error for what a path leads to."""
        return cls(errno.ENOENT, found.not_a_file, path)


def name_file(error: OSError, path: str) -> None:
    """Have an error of a call that got no name say which file it is about. One that the system has
    not raised keeps its own text.
    """
    if error.filename is None and error.errno is not None:
        error.filename = path


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Have errors of the operating system in the block say which file they are about."""
    try:
        yield
    except OSError as error:
        name_file(error, path)
        raise


class File(Protocol):
    """An open file: appended to by whoever created or recycled it, read by anyone.

    They may fill it ahead of use: zeros are then behind its `end`, which later appends overwrite,
    and its `size` includes them.
    """

    path: str

    @property
    def descriptor(self) -> int | None:
        """The kernel's descriptor; None if every call has to go through this object."""

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write all of `buffers` at the end. Not durable before `datasync`.

        Raises: OSError; then `end` says how much was written.
        """

    def fill(self, start: int, stop: int) -> None:
        """Write zeros from an offset behind the end to before another: the end stays where it is.
        Not durable before `datasync`.

        Raises: OSError; then it is unknown how many were written.
        """

    def truncate(self, size: int) -> None:
        """Cut off what is behind an offset, which is not before the end. Not durable before
        `datasync`.
        """

    def end(self) -> int:
        """Return where the next `append` writes: the sum of all that was appended."""

    def datasync(self) -> None:
        """Make every byte written so far, and the file's size, durable."""

    def drop_cache(self) -> None:
        """Make later reads come from the disk, not from memory.

        After a failed write Linux may keep bytes in memory that the disk never got, as if it had
        them: no later `datasync` writes them, nor fails. Unwritten bytes stay in memory: call
        `datasync` first.
        """

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the size of the file in bytes."""

    def close(self) -> None:
        """Close the descriptor. Says nothing about durability."""


class OwnLockError(BlockingIOError):
    """Raised when this process itself has the lock."""


class Lock(Protocol):
    """A lock held on a file until `release` or the end of the process."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system, reduced to what a store needs. Every call may raise OSError."""

    def make_directory(self, path: str) -> None:
        """Create `path` and its missing parents, unless they exist.

        Durable on return, down from the first parent that existed, and `path` in any case: the
        process that created it may have been killed before it was durable.
        """

    def list_directory(self, path: str) -> list[str]:
        """Return the names in `path`, sorted."""

    def exists(self, path: str) -> bool: ...

    def type_of(self, path: str) -> FileType:
        """Return what a path leads to, without opening it."""

    def size_of(self, path: str) -> int:
        """Return the size of a file, without opening it; 0 if there is none. Raises: OSError."""

    def is_link(self, path: str) -> bool:
        """Tell whether a path is a symbolic link, wherever it leads."""

    def create(self, path: str) -> File:
        """Create a new file to append to. Raises: FileExistsError."""

    def open(self, path: str) -> File:
        """Open an existing file, to read and to `datasync`. Never waits, whatever has the name.

        Raises: FileNotFoundError; NotAFileError, which is one; OSError.
        """

    def recycle(self, old: str, new: str) -> File:
        """Give a file that is not needed any more a new name, and open it to be written from its
        start: its `end` is 0, and behind that is what it had. A crash may leave both names.

        Raises: FileExistsError, if there is a file of the new name; BlockingIOError, if somebody
        has the old one open, or a third name leads to it: what they read must not change. After an
        error it has its old name or none.
        """

    def rename(self, old: str, new: str) -> None:
        """Atomically make `new` name what `old` named; a file that `new` named before is
        removed.
        """

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make every creation, rename and removal in `path` durable."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes may still be written on the disk of `path`: none, if hardly any
        file can be created there.
        """

    def allocate(self, path: str, size: int) -> None:
        """Create a file of `size` bytes whose disk space is allocated. Not durable.

        Raises: FileExistsError, OSError; there is no file then.
        """

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file `path`, created if missing, and write `holder` into it for others to read.

        Raises: BlockingIOError, with the present holder's text, when it is locked already;
        OwnLockError, by this process; NotAFileError.
        """


class OsFile:
    """A file of the operating system."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def append(self, buffers: Sequence[bytes]) -> None:
        try:
            for start in range(0, len(buffers), _BUFFERS_A_CALL):
                self._append_some(buffers[start : start + _BUFFERS_A_CALL])
        except OSError as error:
            name_file(error, self.path)
            raise

    def _append_some(self, some: Sequence[bytes]) -> None:
        size = sum(map(len, some))
        if size > _MAX_BYTES_A_CALL and len(some) > 1:
            half = len(some) // 2
            self._append_some(some[:half])
            self._append_some(some[half:])
        elif size > _MAX_BYTES_A_CALL:
            self._append_rest(some[0])
        # A write may end early without an error, on a disk that is getting full: the next one then
        # says why.
        elif (written := os.writev(self.descriptor, some)) < size:
            self._append_rest(b"".join(some)[written:])

    def _append_rest(self, rest: bytes) -> None:
        view = memoryview(rest)
        while view:
            written = os.write(self.descriptor, view[:_MAX_BYTES_A_CALL])
            # POSIX leaves open what 0 means here: trying again could go on for ever.
            if written == 0:
                raise OSError(errno.EIO, "write() wrote nothing", self.path)
            view = view[written:]

    def fill(self, start: int, stop: int) -> None:
        with naming(self.path):
            while start < stop:
                size = min(mmap.PAGESIZE - start % mmap.PAGESIZE, stop - start)
                # pwrite(2) leaves the descriptor's offset where it is: that is `end`.
                written = os.pwrite(self.descriptor, _PAGE_OF_ZEROS[:size], start)
                if written == 0:
                    raise OSError(errno.EIO, "pwrite() wrote nothing", self.path)
                start += written

    def truncate(self, size: int) -> None:
        with naming(self.path):
            os.ftruncate(self.descriptor, size)

    def end(self) -> int:
        # Reads have offsets of their own: the descriptor's is that of the last append's end.
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)

    def datasync(self) -> None:
        try:
            # It makes a new size durable as well, as reading the bytes back needs it; only times
            # are left out (fdatasync(2)).
            os.fdatasync(self.descriptor)
        except OSError as error:
            name_file(error, self.path)
            raise

    def drop_cache(self) -> None:
        with naming(self.path):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, offset: int, size: int) -> bytes:
        if size > _LARGE_READ_BYTES:
            # Memory for the whole size is allocated at once, and the size may come from a damaged
            # row.
            size = min(size, max(self.size() - offset, 0))
        try:
            return self._read(offset, size)
        except MemoryError:
            text = f"{size} bytes of it do not fit into memory"
            raise OSError(errno.ENOMEM, text, self.path) from None
        except OSError as error:
            name_file(error, self.path)
            raise

    def _read(self, offset: int, size: int) -> bytes:
        first = os.pread(self.descriptor, size, offset)
        if len(first) == size or not first:
            return first
        chunks = [first]
        got = len(first)
        # A read may return less at any place, and at most 2 GiB (read(2)): only an empty one is the
        # file's end.
        while got < size and (chunk := os.pread(self.descriptor, size - got, offset + got)):
            chunks.append(chunk)
            got += len(chunk)
        return b"".join(chunks)

    def size(self) -> int:
        with naming(self.path):
            return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        with naming(self.path):
            os.close(self.descriptor)  # a disk of the network may fail as late as here


def create_file(path: str) -> int:
    """Create a new file of a store, and return its descriptor, to read and write it.

    Raises: FileExistsError, OSError; there is no new file then.
    """
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o640)
    try:
        ownership.give(descriptor, os.path.dirname(path))
    except OSError:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


_TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFIFO: FileType.PIPE,
    stat.S_IFSOCK: FileType.SOCKET,
}

_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""Errors of opening what is not a file: sockets and devices cannot be opened, and links may lead
nowhere, or in a circle.
"""


def open_regular(path: str) -> int:
    """Open an existing regular file for reading, and return its descriptor.

    Raises: FileNotFoundError; NotAFileError, also for a pipe, which may never end; OSError.
    """
    try:
        # Without O_NONBLOCK this waits for somebody to write into a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        found = type_of(path)
        if found in (FileType.MISSING, FileType.FILE):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise NotAFileError.of(path, found) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFileError.of(path, _TYPES.get(stat.S_IFMT(mode), FileType.DEVICE))
    return descriptor


def type_of(path: str) -> FileType:
    """Return what a path leads to, without opening it. Raises: OSError."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno == errno.EACCES:
            return FileType.FORBIDDEN
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return FileType.BROKEN_LINK if os.path.islink(path) else FileType.MISSING
    found = _TYPES.get(stat.S_IFMT(mode), FileType.DEVICE)
    needed = os.R_OK | os.X_OK if found is FileType.DIRECTORY else os.R_OK
    # By default access(2) asks for the real user, but opening asks for the effective one.
    if found in (FileType.FILE, FileType.DIRECTORY) and not os.access(
        path, needed, effective_ids=True
    ):
        return FileType.FORBIDDEN
    return found


def _open_alone(path: str) -> int:
    """Open a file to be written to, and return its descriptor.

    Raises: BlockingIOError, if another process has it open, or it has another name; OSError.
    """
    # Linux before 5.3 also takes a name by which it was found before for somebody: so it is opened
    # under the only one that it has now.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_nlink != 1:
            raise BlockingIOError(errno.EBUSY, "it has another name", path)
        # The kernel gives this lease only to the one who has the file open alone.
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        ownership.give(descriptor, os.path.dirname(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open_lock(path: str) -> int:
    """Open the file of a lock, or create it, and return its descriptor. Raises: NotAFileError,
    OSError.
    """
    # Not where a link leads to: root writes into this file, in a directory of another user.
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o640)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFileError(errno.ENOENT, "it is a link, not a regular file", path) from None
        if error.errno not in (errno.EISDIR, *_NO_FILE) or not os.path.lexists(path):
            raise
        raise NotAFileError.of(path, type_of(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFileError.of(path, _TYPES.get(stat.S_IFMT(mode), FileType.DEVICE))
    return descriptor


class OsLock:
    """An flock(2): the kernel drops it when the process ends, however it ends.

    A forked process has a copy of the descriptor, which would keep the lock: so only the process
    that took it unlocks it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self._file = _file_id(descriptor)
        _LOCKED[self._file] = self._process

    def release(self) -> None:
        if os.getpid() == self._process:
            _LOCKED.pop(self._file, None)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


_LOCKED: dict[tuple[int, int], int] = {}
"""The files that are locked, as device and inode, and the process that has locked them: this one,
or in a fork the one before. A process id in the file itself may be that of another container.
"""


def _file_id(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def is_locked_here(descriptor: int) -> bool:
    """Tell whether this process has locked a file by `OsFiles.lock`."""
    return _LOCKED.get(_file_id(descriptor)) == os.getpid()


class OsFiles:
    """The real file system. Raises: OSError, where nothing written to it could be made durable."""

    def __init__(self) -> None:
        if not hasattr(os, "fdatasync"):
            raise OSError(errno.ENOTSUP, f"{_ONLY_LINUX}: {sys.platform} has no fdatasync")

    def make_directory(self, path: str) -> None:
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(path):
            try:
                os.mkdir(path, 0o750)
            except (FileNotFoundError, NotADirectoryError):
                if os.path.isdir(parent):  # where the system makes directories itself, as in /proc
                    raise
                self.make_directory(parent)
                os.mkdir(path, 0o750)
            ownership.give_directory(path)
        self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def type_of(self, path: str) -> FileType:
        return type_of(path)

    def size_of(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def create(self, path: str) -> File:
        return OsFile(path, create_file(path))

    def open(self, path: str) -> File:
        return OsFile(path, open_regular(path))

    def recycle(self, old: str, new: str) -> File:
        # A rename would replace a file of the new name; a link never does.
        os.link(old, new)
        try:
            # From here on it cannot be opened under the old name.
            os.unlink(old)
            return OsFile(new, _open_alone(new))
        except (OSError, MemoryError):
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with naming(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        # Some file systems do not limit how many files there are, and say that it is 0.
        if found.f_files and found.f_favail < _FEW_FILES:
            return 0
        # Without the blocks that only root may use: ext4 keeps a twentieth for it by default.
        return found.f_bavail * found.f_frsize

    def allocate(self, path: str, size: int) -> None:
        descriptor = create_file(path)
        try:
            # Not `truncate`: a file with a hole has a size, but keeps no space free.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.unlink(path)
            name_file(error, path)
            raise
        finally:
            os.close(descriptor)

    def lock(self, path: str, holder: str) -> Lock:
        descriptor = _open_lock(path)
        try:
            ownership.give(descriptor, os.path.dirname(path))
            # Not fcntl(2)'s kind of lock: the process would lose that by closing any other
            # descriptor of the file, and could take it twice.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            present = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            kind = OwnLockError if is_locked_here(descriptor) else BlockingIOError
            os.close(descriptor)
            raise kind(error.errno, present or "an unknown process", path) from None
        except OSError as error:
            os.close(descriptor)
            name_file(error, path)
            raise
        # The text is for people: a full disk must not prevent a store from being opened.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode() + b"\n", 0)
        return OsLock(descriptor)
