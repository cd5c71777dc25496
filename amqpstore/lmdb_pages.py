"""A look at every page of an LMDB file before LMDB maps it into memory.

LMDB trusts its file: it has no checksums, and a page that was cut off or overwritten can end the
process with SIGBUS or SIGSEGV. So all pages that can be reached are read the ordinary way first,
and every number in them that LMDB would follow is held against the file. What is then opened may
still hold wrong bytes in a key or a value, but following it kills nobody.

The layout is that of LMDB 0.9 (`lmdb.h` and `mdb.c`, "Page headers", "Node" and "Meta"), in the
byte order of the machine that wrote it, for 64-bit machines.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, NoReturn

from amqpstore.errors import DamageError
from amqpstore.files import File, OsFiles

_PAGE_HEADER = struct.Struct("=QHHHH")
"""page number, padding, flags, then where free space begins and ends (overflow: pages, u32)."""

_META = struct.Struct("=IIQQ48s48sQQ")
"""magic, version, address, map size, the free and the main database, last page, transaction."""

_DATABASE = struct.Struct("=IHHQQQQQ")
"""page size, flags, depth, branch, leaf and overflow pages, entries, root page."""

_NODE = struct.Struct("=HHHH")
"""low and high half of the data's size or the child's page, flags, size of the key."""

_PAGE = struct.Struct("=Q")

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_BIG_DATA, _SUB_DATABASE = 1, 2
_NO_PAGE = 2**64 - 1
_META_PAGES = 2


class _Database(NamedTuple):
    """Of a database's record what is followed."""

    depth: int
    entries: int
    root: int


def check_pages(path: str) -> None:
    """Look at the pages of the LMDB file at `path`. Raises: DamageError, OSError."""
    try:
        file = OsFiles().open(path)
    except FileNotFoundError:
        raise DamageError(path, 0, "the file is missing") from None
    try:
        _Walk(path, file).run()
    finally:
        file.close()


def last_transaction(path: str) -> int:
    """The number of the last commit in the LMDB file at `path`. Raises: DamageError, OSError."""
    file = OsFiles().open(path)
    try:
        return _Walk(path, file).last_transaction()
    finally:
        file.close()


class _Walk:
    def __init__(self, path: str, file: File) -> None:
        self._path = path
        self._file = file
        self._page_bytes = 4096
        self._last_page = 1
        self._seen: set[int] = set()

    def run(self) -> None:
        free, main = self._newest_meta()
        self._walk(free, is_free_list=True)
        self._walk(main)

    def last_transaction(self) -> int:
        """Of the newest meta page."""
        return int(max(fields[-1] for fields in self._metas()))

    def _newest_meta(self) -> tuple[_Database, _Database]:
        metas = self._metas()
        *_, free, main, self._last_page, _ = max(metas, key=lambda fields: fields[-1])
        return self._database(free), self._database(main)

    def _metas(self) -> list[tuple[Any, ...]]:
        """The fields of both meta pages."""
        metas = []
        for page in range(_META_PAGES):
            content = self._file.read(page * self._page_bytes, _PAGE_HEADER.size + _META.size)
            if len(content) < _PAGE_HEADER.size + _META.size:
                self._damaged(page, "the file ends within its meta pages")
            flags = _PAGE_HEADER.unpack_from(content)[2]
            fields = _META.unpack_from(content, _PAGE_HEADER.size)
            if not flags & _IS_META or fields[:2] != (_MAGIC, _VERSION):
                self._damaged(page, "this is no meta page")
            metas.append(fields)
            self._page_bytes = _DATABASE.unpack(fields[4])[0]
            if self._page_bytes not in (1 << bits for bits in range(9, 17)):
                self._damaged(page, f"a page cannot have {self._page_bytes} bytes")
        return metas

    def _database(self, record: bytes) -> _Database:
        _, _, depth, _, _, _, entries, root = _DATABASE.unpack(record)
        return _Database(depth, entries, root)

    def _walk(self, database: _Database, *, is_free_list: bool = False) -> None:
        """Every page of a database, and of those within it."""
        if database.root == _NO_PAGE:
            return
        level = [database.root]
        for _ in range(database.depth - 1):
            level = [child for page in level for child in self._children(page)]
        entries = 0
        for page in level:
            content = self._page(page, _LEAF)
            for offset in self._nodes(page, content):
                self._leaf_node(page, content, offset, is_free_list=is_free_list)
                entries += 1
        if entries != database.entries:
            reason = f"it leads to {entries} entries, and {database.entries} were written"
            self._damaged(database.root, reason)

    def _page(self, page: int, kind: int) -> bytes:
        """The content of a page that must be of this kind."""
        self._claim(page)
        # A number that is damaged may be larger than any offset.
        is_there = page * self._page_bytes < self._file.size()
        content = self._file.read(page * self._page_bytes, self._page_bytes) if is_there else b""
        if len(content) < self._page_bytes:
            self._damaged(page, "the file ends before it")
        number, _, flags, *_ = _PAGE_HEADER.unpack_from(content)
        if number != page or flags & 0xF != kind:
            self._damaged(page, f"it says that it is page {number} with flags {flags:#x}")
        return content

    def _claim(self, page: int) -> None:
        if not _META_PAGES <= page <= self._last_page:
            self._damaged(page, f"pages 2 to {self._last_page} are in use")
        if page in self._seen:
            self._damaged(page, "two pages lead to it")
        self._seen.add(page)

    def _nodes(self, page: int, content: bytes) -> list[int]:
        """Offsets of the nodes in a page."""
        *_, lower, upper = _PAGE_HEADER.unpack_from(content)
        if not _PAGE_HEADER.size <= lower <= upper <= len(content) or lower % 2:
            self._damaged(page, f"its free space is from {lower} to {upper}")
        count = (lower - _PAGE_HEADER.size) // 2
        offsets = list(struct.unpack_from(f"={count}H", content, _PAGE_HEADER.size))
        for offset in offsets:
            if not upper <= offset <= len(content) - _NODE.size:
                self._damaged(page, f"a node is at {offset}")
            *_, key_bytes = _NODE.unpack_from(content, offset)
            if offset + _NODE.size + key_bytes > len(content):
                self._damaged(page, f"the key at {offset} has {key_bytes} bytes")
        return offsets

    def _children(self, page: int) -> list[int]:
        content = self._page(page, _BRANCH)
        children = []
        for offset in self._nodes(page, content):
            low, high, higher, _ = _NODE.unpack_from(content, offset)
            children.append(low | high << 16 | higher << 32)
        return children

    def _leaf_node(self, page: int, content: bytes, offset: int, *, is_free_list: bool) -> None:
        low, high, flags, key_bytes = _NODE.unpack_from(content, offset)
        value_bytes = low | high << 16
        start = offset + _NODE.size + key_bytes
        if flags & _BIG_DATA:
            if start + _PAGE.size > len(content):
                self._damaged(page, f"the node at {offset} runs past its end")
            value = self._overflow(_PAGE.unpack_from(content, start)[0], value_bytes)
        else:
            if start + value_bytes > len(content):
                self._damaged(page, f"the node at {offset} runs past its end")
            value = content[start : start + value_bytes]
        if is_free_list:
            self._free_pages(page, value)
        elif flags & _SUB_DATABASE:
            if len(value) != _DATABASE.size:
                self._damaged(page, f"the database at {offset} has {len(value)} bytes")
            self._walk(self._database(value))

    def _overflow(self, page: int, value_bytes: int) -> bytes:
        """A value that has pages of its own."""
        first = self._page(page, _OVERFLOW)
        (pages,) = struct.unpack_from("=I", first, 12)
        if not value_bytes <= pages * self._page_bytes - _PAGE_HEADER.size:
            self._damaged(page, f"{value_bytes} bytes are said to be in {pages} pages")
        if (page + pages - 1) * self._page_bytes >= self._file.size():
            self._damaged(page, "the file ends within it")
        for following in range(page + 1, page + pages):
            self._claim(following)
        value = self._file.read(page * self._page_bytes + _PAGE_HEADER.size, value_bytes)
        if len(value) < value_bytes:
            self._damaged(page, "the file ends within it")
        return value

    def _free_pages(self, page: int, value: bytes) -> None:
        """A list of free pages: how many, and then each."""
        numbers = [number for (number,) in _PAGE.iter_unpack(value[: len(value) // 8 * 8])]
        if not numbers or numbers[0] > len(numbers) - 1:
            self._damaged(page, "a list of free pages is longer than its value")
        for number in numbers[1 : numbers[0] + 1]:
            if not _META_PAGES <= number <= self._last_page:
                self._damaged(page, f"page {number} is said to be free")

    def _damaged(self, page: int, reason: str) -> NoReturn:
        raise DamageError(self._path, page * self._page_bytes, f"page {page}: {reason}")
