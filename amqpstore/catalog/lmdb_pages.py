"""Checks every page of an LMDB file before LMDB maps it into memory.

LMDB trusts its file: it has no checksums, and a page that was truncated or overwritten can end the
process with SIGBUS or SIGSEGV. So all reachable pages are first read in the ordinary way, and every
number in them that LMDB would follow is checked: flags, the order of keys, which pages are free,
and which of the two states in the file is the newer one. The file that is then opened may still
have wrong bytes in a row, which `rows` detects; but following it cannot crash.

The layout is that of LMDB 0.9 (`lmdb.h` and `mdb.c`, "Page headers", "Node" and "Meta"), in the
byte order of the machine that wrote it, for 64-bit machines.
"""

from __future__ import annotations

import contextlib
import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from amqpstore.errors import DamageError
from amqpstore.system.files import File, NotAFileError, OsFiles

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
_INTEGER_KEYS = 8
_NO_PAGE = 2**64 - 1
_META_PAGES = 2

LookAtRow = Callable[[bytes, bytes, bytes, int], None]
"""Called with table, key and value of each row, and the offset of its page. Raises: DamageError."""


class _Kind(enum.Enum):
    """The kind of rows in a database: lists of free pages, tables, or rows of a table."""

    FREE = enum.auto()
    MAIN = enum.auto()
    TABLE = enum.auto()


class _Database(NamedTuple):
    """The fields of a database's record that are followed. `name` of a table."""

    kind: _Kind
    name: bytes
    flags: int
    depth: int
    entries: int
    root: int


class _Meta(NamedTuple):
    """One of the two states that the file keeps, before and after the last commit."""

    map_bytes: int
    free: _Database
    main: _Database
    last_page: int
    transaction: int


class _Span(NamedTuple):
    """A page, and the range of its keys: from `low` to before `end`; None is open."""

    page: int
    low: bytes | int | None = None
    end: bytes | int | None = None


def check_pages(path: str, look: LookAtRow | None = None) -> None:
    """Check the pages of the LMDB file at `path`. Raises: DamageError, OSError, as `look`."""
    try:
        file = OsFiles().open(path)
    except NotAFileError as error:
        raise DamageError(path, 0, error.strerror or "") from None
    except FileNotFoundError:
        raise DamageError(path, 0, "the file is missing") from None
    try:
        # Read with pread and not through a map: a file that is cut short meanwhile is an error
        # here, and SIGBUS there.
        _Walk(path, file, look).run()
    finally:
        file.close()


class ReadableState(NamedTuple):
    """The readable part of one of the two last commits. `tables` have their rows as stored, by key;
    `whole` are those that lack no row.
    """

    tables: dict[bytes, dict[bytes, bytes]]
    whole: set[bytes]


def readable_states(path: str) -> list[ReadableState]:
    """Read what is left of a damaged LMDB file: of each state that has a meta page, the last one
    first.

    Nothing is known to be right but the numbers that were followed: a row may have wrong bytes, and
    a page of the older state may have been written again.
    Raises: OSError.
    """
    file = OsFiles().open(path)
    try:
        return list(_Salvage(path, file).states())
    finally:
        file.close()


def rows_on_pages(path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each row in a damaged LMDB file that lies on one page, of whatever
    table and commit, the oldest page first. Raises: OSError.
    """
    file = OsFiles().open(path)
    try:
        yield from _Salvage(path, file).rows_on_pages()
    finally:
        file.close()


def last_transaction(path: str) -> int:
    """Return the number of the last commit in the LMDB file at `path`. Raises: DamageError,
    OSError.
    """
    file = OsFiles().open(path)
    try:
        return _Walk(path, file).last_transaction()
    finally:
        file.close()


class _Walk:
    def __init__(self, path: str, file: File, look: LookAtRow | None = None) -> None:
        self._path = path
        self._file = file
        self._look = look
        self._page_bytes = 4096
        self._file_bytes = file.size()
        self._last_page = 1
        self._seen: set[int] = set()
        self._free: set[int] = set()

    def run(self) -> None:
        metas = self._metas()
        self._check_numbers(metas)
        # LMDB itself takes the meta page with the higher number, and looks no further.
        older, newest = sorted(metas, key=lambda meta: meta.transaction)
        self._walk_free(newest)
        self._walk(newest.main)
        # The next commit would write over a page that holds rows.
        if both := self._seen & self._free:
            self._damaged(min(both), "it is in use, but listed as free")
        # The older state's pages still exist: only the next commit reuses the pages that the last
        # one freed. Its list of free pages shows if it was actually the newest, with one bit of its
        # number flipped.
        self._seen.clear()
        self._free.clear()
        self._walk_free(older, is_needed=False)

    def last_transaction(self) -> int:
        """Return the transaction number of the newest meta page."""
        return max(meta.transaction for meta in self._metas())

    def _metas(self) -> list[_Meta]:
        """Return both meta pages."""
        return [self._meta(page) for page in range(_META_PAGES)]

    def _check_numbers(self, metas: list[_Meta]) -> None:
        # A commit writes to the meta page given by the last bit of its number. A new file has two
        # zeros. (Not checked for a catalog that is being written: commits pass between the two
        # reads.)
        numbers = [meta.transaction for meta in metas]
        if numbers != [0, 0] and (
            abs(numbers[0] - numbers[1]) != 1 or [number % 2 for number in numbers] != [0, 1]
        ):
            self._damaged(
                0, f"the last two commits claim the numbers {numbers[0]} and {numbers[1]}"
            )

    def _meta(self, page: int) -> _Meta:
        content = self._file.read(page * self._page_bytes, _PAGE_HEADER.size + _META.size)
        if len(content) < _PAGE_HEADER.size + _META.size:
            self._damaged(page, "the file ends within its meta pages")
        flags = _PAGE_HEADER.unpack_from(content)[2]
        magic, version, _, map_bytes, free, main, last_page, transaction = _META.unpack_from(
            content, _PAGE_HEADER.size
        )
        if not flags & _IS_META or (magic, version) != (_MAGIC, _VERSION):
            self._damaged(page, "this is not a meta page")
        page_bytes = _DATABASE.unpack(free)[0]
        # LMDB's page sizes: from 512 bytes to 64 KiB.
        if page_bytes not in (1 << bits for bits in range(9, 17)) or (
            page and page_bytes != self._page_bytes
        ):
            self._damaged(page, f"a page cannot have {page_bytes} bytes")
        self._page_bytes = page_bytes
        # LMDB maps that much; a page behind the map would be read outside of it.
        if not (last_page + 1) * page_bytes <= map_bytes:
            self._damaged(page, f"page {last_page} is not within {map_bytes} bytes")
        return _Meta(
            map_bytes,
            self._database(page, _Kind.FREE, b"", free),
            self._database(page, _Kind.MAIN, b"", main),
            last_page,
            transaction,
        )

    def _database(self, page: int, kind: _Kind, name: bytes, record: bytes) -> _Database:
        _, flags, depth, _, _, _, entries, root = _DATABASE.unpack(record)
        if flags != (_INTEGER_KEYS if kind is _Kind.FREE else 0):
            self._damaged(page, f"a database has flags {flags:#x}")
        return _Database(kind, name, flags, depth, entries, root)

    def _walk_free(self, meta: _Meta, *, is_needed: bool = True) -> None:
        """Check the lists of free pages. Every commit except the first leaves one under its own
        number.
        """
        self._last_page = meta.last_page
        try:
            last = self._walk(meta.free)
        except DamageError:
            if is_needed:
                raise
            return
        if (last or 1) != max(meta.transaction, 1):
            reason = f"commit {meta.transaction} is the last, but pages were freed by {last!r}"
            self._damaged(meta.transaction % _META_PAGES, reason)

    def _walk(self, database: _Database) -> bytes | int | None:
        """Check every page of a database, and of those within it. Returns its last key."""
        # By levels and not by recursion: a damaged depth would otherwise end in a RecursionError.
        level = [] if database.root == _NO_PAGE else [_Span(database.root)]
        for _ in range(database.depth - 1):
            level = [child for span in level for child in self._children(span, database)]
        entries = 0
        last = None
        for span in level:
            content = self._page(span.page, _LEAF)
            offsets = self._nodes(span.page, content)
            keys = self._keys(span, content, offsets, database)
            for offset, key in zip(offsets, keys, strict=True):
                self._leaf_node(span.page, content, offset, key, database)
            entries += len(offsets)
            last = keys[-1] if keys else last
        if entries != database.entries:
            reason = f"it leads to {entries} entries, but {database.entries} were written"
            self._damaged(database.root if level else 0, reason)
        return last

    def _page(self, page: int, kind: int) -> bytes:
        """Return the content of a page that must be of this kind."""
        self._claim(page)
        # A damaged number may be larger than any offset.
        is_there = page * self._page_bytes < self._file_bytes
        content = self._file.read(page * self._page_bytes, self._page_bytes) if is_there else b""
        if len(content) < self._page_bytes:
            self._damaged(page, "the file ends before it")
        number, _, flags, *_ = _PAGE_HEADER.unpack_from(content)
        # Other flags are for pages in memory, and never on disk.
        if number != page or flags != kind:
            self._damaged(page, f"it says that it is page {number} with flags {flags:#x}")
        return content

    def _claim(self, page: int) -> None:
        if not _META_PAGES <= page <= self._last_page:
            self._damaged(page, f"pages 2 to {self._last_page} are in use")
        if page in self._seen:
            self._damaged(page, "two pages lead to it")
        self._seen.add(page)

    def _nodes(self, page: int, content: bytes) -> list[int]:
        """Return the offsets of the nodes in a page."""
        *_, lower, upper = _PAGE_HEADER.unpack_from(content)
        if not _PAGE_HEADER.size <= lower <= upper <= len(content) or lower % 2:
            self._damaged(page, f"its free space runs from {lower} to {upper}")
        count = (lower - _PAGE_HEADER.size) // 2
        offsets = list(struct.unpack_from(f"={count}H", content, _PAGE_HEADER.size))
        is_branch = _PAGE_HEADER.unpack_from(content)[2] & _BRANCH
        ends = {}
        for offset in offsets:
            if not upper <= offset <= len(content) - _NODE.size:
                self._damaged(page, f"a node is at {offset}")
            low, high, flags, key_bytes = _NODE.unpack_from(content, offset)
            end = offset + _NODE.size + key_bytes
            if end > len(content):
                self._damaged(page, f"the key at {offset} has {key_bytes} bytes")
            if not is_branch:
                end += _PAGE.size if flags & _BIG_DATA else low | high << 16
            ends[offset] = end + end % 2
        # LMDB moves nodes by their sizes: with a gap between two, a commit would damage others. A
        # gap before the first is between two as soon as there is one more.
        following = upper
        # The nodes of a page lie side by side, but in any order.
        for offset in sorted(ends):
            if offset != following:
                self._damaged(page, f"no node ends where that at {offset} begins")
            following = ends[offset]
        if following != len(content) or len(ends) != count:
            self._damaged(page, f"its nodes end at {following}")
        return offsets

    def _keys(
        self, span: _Span, content: bytes, offsets: Sequence[int], database: _Database
    ) -> list[Any]:
        """Return the keys of a page, which ascend, and are between those that led to it.

        LMDB searches by this order: without it, a row could exist twice.
        """
        # The first key of a branch page is ignored: it leads to all lower keys. It may be empty.
        is_branch = _PAGE_HEADER.unpack_from(content)[2] & _BRANCH
        keys: list[Any] = []
        for offset in offsets:
            *_, key_bytes = _NODE.unpack_from(content, offset)
            start = offset + _NODE.size
            key: bytes | int = content[start : start + key_bytes]
            if database.kind is _Kind.FREE and not (is_branch and not keys and not key_bytes):
                if key_bytes != _PAGE.size:
                    self._damaged(span.page, f"the key at {offset} has {key_bytes} bytes")
                (key,) = _PAGE.unpack_from(content, start)
            keys.append(key)
        bounds = [span.low, *keys[1 if is_branch else 0 :], span.end]
        known = [one for one in bounds if one is not None]
        for index, (bound, following) in enumerate(pairwise(known)):
            is_low = index == 0 and span.low is not None and not is_branch
            if following < bound or (following == bound and not is_low):
                self._damaged(span.page, "its keys are not in ascending order")
        return keys

    def _children(self, span: _Span, database: _Database) -> list[_Span]:
        content = self._page(span.page, _BRANCH)
        offsets = self._nodes(span.page, content)
        keys = self._keys(span, content, offsets, database)
        lows = [span.low, *keys[1:], span.end]
        children = []
        for index, offset in enumerate(offsets):
            low, high, higher, _ = _NODE.unpack_from(content, offset)
            page = low | high << 16 | higher << 32
            children.append(_Span(page, lows[index], lows[index + 1]))
        return children

    def _leaf_node(
        self, page: int, content: bytes, offset: int, key: bytes, database: _Database
    ) -> None:
        (flags,) = _NODE.unpack_from(content, offset)[2:3]
        if flags & ~_BIG_DATA != (_SUB_DATABASE if database.kind is _Kind.MAIN else 0):
            self._damaged(page, f"the node at {offset} has flags {flags:#x}")
        value = self._value(page, content, offset)
        if database.kind is _Kind.FREE:
            self._free_pages(page, value)
        elif database.kind is _Kind.MAIN:
            if len(value) != _DATABASE.size:
                self._damaged(page, f"the database at {offset} has {len(value)} bytes")
            self._walk(self._database(page, _Kind.TABLE, key, value))
        elif self._look:
            self._look(database.name, key, value, page * self._page_bytes)

    def _value(self, page: int, content: bytes, offset: int) -> bytes:
        """Return the value of a node. Raises: DamageError."""
        low, high, flags, key_bytes = _NODE.unpack_from(content, offset)
        value_bytes = low | high << 16
        start = offset + _NODE.size + key_bytes
        if flags & _BIG_DATA:
            if start + _PAGE.size > len(content):
                self._damaged(page, f"the node at {offset} runs past its end")
            return self._overflow(_PAGE.unpack_from(content, start)[0], value_bytes)
        if start + value_bytes > len(content):
            self._damaged(page, f"the node at {offset} runs past its end")
        return content[start : start + value_bytes]

    def _overflow(self, page: int, value_bytes: int) -> bytes:
        """Return a value that has pages of its own."""
        first = self._page(page, _OVERFLOW)
        (pages,) = struct.unpack_from("=I", first, 12)
        if not value_bytes <= pages * self._page_bytes - _PAGE_HEADER.size:
            self._damaged(page, f"a value of {value_bytes} bytes claims {pages} pages")
        if (page + pages - 1) * self._page_bytes >= self._file_bytes:
            self._damaged(page, "the file ends within it")
        for following in range(page + 1, page + pages):
            self._claim(following)
        value = self._file.read(page * self._page_bytes + _PAGE_HEADER.size, value_bytes)
        if len(value) < value_bytes:
            self._damaged(page, "the file ends within it")
        return value

    def _free_pages(self, page: int, value: bytes) -> None:
        """Check a list of free pages: how many, and then each, the highest first.

        `mdb_freelist_save` may reserve more than it needs, but then cuts each list to what it
        writes. So a list is exactly as long as it says; a commit that took pages from another one
        would fail, or lose pages for good.
        """
        numbers = [number for (number,) in _PAGE.iter_unpack(value[: len(value) // 8 * 8])]
        if not numbers or len(value) != _PAGE.size * (1 + numbers[0]):
            self._damaged(page, f"a list of free pages with {len(value)} bytes has a wrong count")
        for number in numbers[1:]:
            if not _META_PAGES <= number <= self._last_page or number in self._free:
                self._damaged(page, f"page {number} is listed as free")
            self._free.add(number)

    def _damaged(self, page: int, reason: str) -> NoReturn:
        raise DamageError(self._path, page * self._page_bytes, f"page {page}: {reason}")


class _Salvage(_Walk):
    """Reads around damaged pages."""

    def states(self) -> Iterator[ReadableState]:
        """Yield what can be read of each state."""
        metas = []
        for page in range(_META_PAGES):
            with contextlib.suppress(DamageError):
                metas.append(self._meta(page))
        for meta in sorted(metas, key=lambda one: -one.transaction):
            self._seen.clear()
            self._last_page = meta.last_page
            state = ReadableState({}, set())
            for name, record in self._rows(meta.main)[0].items():
                with contextlib.suppress(DamageError):
                    of = self._database(0, _Kind.TABLE, name, record)
                    state.tables[name], is_all = self._rows(of)
                    if is_all:
                        state.whole.add(name)
            yield state

    def rows_on_pages(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of all leaf pages, those of older commits too."""
        self._last_page = self._file_bytes // self._page_bytes
        for page in range(_META_PAGES, self._last_page):
            self._seen.clear()
            with contextlib.suppress(DamageError):
                yield from self._leaf(_Span(page), _Database(_Kind.TABLE, b"", 0, 1, 0, page))[0]

    def _rows(self, database: _Database) -> tuple[dict[bytes, bytes], bool]:
        """Return the rows of a database that can be read, and whether those are all."""
        rows: dict[bytes, bytes] = {}
        is_whole = True
        level = [] if database.root == _NO_PAGE else [_Span(database.root)]
        for _ in range(database.depth - 1):
            children = []
            for span in level:
                try:
                    children += self._children(span, database)
                except DamageError:
                    is_whole = False
            level = children
        for span in level:
            try:
                leaf_rows, is_all = self._leaf(span, database)
            except DamageError:
                is_whole = False
            else:
                rows.update(leaf_rows)
                is_whole &= is_all
        return rows, is_whole and len(rows) == database.entries

    def _leaf(self, span: _Span, database: _Database) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the rows of a page, and whether all of them can be read. Raises: DamageError."""
        rows = []
        content = self._page(span.page, _LEAF)
        offsets = self._nodes(span.page, content)
        keys = self._keys(span, content, offsets, database)
        for offset, key in zip(offsets, keys, strict=True):
            with contextlib.suppress(DamageError):
                rows.append((key, self._value(span.page, content, offset)))
        return rows, len(rows) == len(offsets)
