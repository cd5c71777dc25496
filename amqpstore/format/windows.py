"""The records of a file that is not in memory as a whole."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from amqpstore.format.records import HEADER, MAGIC, Gap, Record, scan
from amqpstore.system.files import File

WINDOW_BYTES = 4 << 20
"""The bytes of a segment that are in memory at a time, unless a record is longer."""

_PAGE_BYTES = 4096


def read_around(file: File, offset: int, size: int) -> bytes:
    """Read as `file.read` does, with zeros for pages of 4096 bytes that the disk cannot read (EIO).

    Raises: OSError, any other.
    """
    try:
        return file.read(offset, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    # One page that cannot be read fails the whole read: so each is read by itself.
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
        for item in scan(content, number, seed, 0, last):
            if isinstance(item, Record):
                last[item.kind] = item.number
                yield item._replace(
                    offset=base + item.offset,
                    payload_offset=base + item.payload_offset,
                    end=base + item.end,
                )
            elif not is_last and _may_go_on(content, item):
                break
            else:
                yield Gap(base + item.offset, base + item.end, item.reason)
            done = item.end
        base += done
        window = window_bytes if done else 2 * window


def _may_go_on(content: bytes, gap: Gap) -> bool:
    """Tell whether more of the file could show that a gap is a record, or ends elsewhere."""
    if gap.end == len(content):
        return True
    magic, *_, length, _, _ = HEADER.unpack_from(content, gap.offset)
    return bool(magic == MAGIC and gap.offset + HEADER.size + length > len(content))
