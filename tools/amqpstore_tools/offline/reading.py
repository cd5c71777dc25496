"""Files that can only be read, and records of a file that is not in memory as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from amqpstore.files import File, Lock, OsFile, OsFiles, open_regular
from amqpstore.records import HEADER, MAGIC, Gap, Record, scan

WINDOW_BYTES = 4 << 20
"""The bytes of a segment that are in memory at a time, unless a record is longer."""

_PAGE_BYTES = 4096


class ReadOnlyFile(OsFile):
    """A file that can only be read. Its `datasync` does nothing: nothing was written."""

    def append(self, _buffers: Sequence[bytes]) -> NoReturn:
        _refuse(self.path)

    def fill(self, _count: int) -> NoReturn:
        _refuse(self.path)

    def trim(self) -> NoReturn:
        _refuse(self.path)

    def datasync(self) -> None:
        """Do nothing: nothing was written."""

    def link(self, path: str) -> None:
        """Give the file another name, even if it has lost its own by now.

        Raises: FileNotFoundError, if it has no name left at all; OSError, if it cannot have another
        one.
        """
        descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Python follows the link in /proc only if it gets a directory descriptor.
            os.link(str(self.descriptor), path, src_dir_fd=descriptors, follow_symlinks=True)
        finally:
            os.close(descriptors)


class ReadOnlyFiles(OsFiles):
    """The real file system, read-only. A directory that does not exist is empty."""

    def open(self, path: str) -> File:
        return ReadOnlyFile(path, open_regular(path))

    def list_directory(self, path: str) -> list[str]:
        try:
            return super().list_directory(path)
        except FileNotFoundError:
            # A copy may lack the directories that were empty.
            return []

    def sync_directory(self, path: str) -> None:
        """Do nothing: nothing was written."""

    def make_directory(self, path: str) -> None:
        _refuse(path)

    def create(self, path: str) -> File:
        _refuse(path)

    def rename(self, old: str, new: str) -> None:  # noqa: ARG002 - as in Files
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def allocate(self, path: str, size: int) -> None:  # noqa: ARG002 - as in Files
        _refuse(path)

    def lock(self, path: str, holder: str) -> Lock:  # noqa: ARG002 - as in Files
        _refuse(path)


def read_around(file: File, offset: int, size: int) -> bytes:
    """Read as `file.read` does, with zeros for pages of 4096 bytes that the disk cannot read (EIO).

    Raises: OSError, any other.
    """
    try:
        return file.read(offset, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pages = []
    for start in range(offset, offset + size, _PAGE_BYTES):
        wanted = min(_PAGE_BYTES, offset + size - start)
        try:
            page = file.read(start, wanted)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            page = bytes(wanted)
        pages.append(page)
        if len(page) < wanted:
            break
    return b"".join(pages)


def scan_file(
    file: File,
    size: int,
    number: int,
    seed: int,
    *,
    start: int = 0,
    last_numbers: Mapping[int, int] | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Record | Gap]:
    """Yield what `records.scan` finds in the first `size` bytes of a file, read window by window.

    A window grows if a record, or a gap, is longer.
    Raises: OSError, except EIO: see `read_around`.
    """
    last = dict(last_numbers or {})
    base = start
    window = window_bytes
    while base < size:
        content = read_around(file, base, min(window, size - base))
        is_last = base + len(content) >= size or len(content) < window
        if not content:
            yield Gap(base, size, "the file ends before it")
            return
        done = 0
        for found in scan(content, number, seed, 0, last):
            if isinstance(found, Record):
                last[found.kind] = found.number
                yield found._replace(
                    offset=base + found.offset,
                    payload_offset=base + found.payload_offset,
                    end=base + found.end,
                )
            elif not is_last and _may_go_on(content, found):
                break
            else:
                yield Gap(base + found.offset, base + found.end, found.reason)
            done = found.end
        base += done
        window = window_bytes if done else 2 * window


def _may_go_on(content: bytes, gap: Gap) -> bool:
    """Tell whether more of the file could show that a gap is a record, or ends elsewhere."""
    if gap.end == len(content):
        return True
    magic, *_, length, _, _ = HEADER.unpack_from(content, gap.offset)
    return bool(magic == MAGIC and gap.offset + HEADER.size + length > len(content))


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "this store is open for reading only", path)
