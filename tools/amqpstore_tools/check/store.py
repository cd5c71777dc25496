"""A store that is checked, before its segments are read: marker, catalog, names, and the list of
files to read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, DamageRow, StoreRows
from amqpstore.errors import DamageError, NotAStoreError
from amqpstore.evidence import Shortfall, find_misplaced, find_unneeded, find_wrong_kinds
from amqpstore.evidence.identification import FileKind
from amqpstore.evidence.newer_entries import find_newer_entries
from amqpstore.evidence.newer_segments import IS_NEWER, find_newer, newer_in, noted_newer
from amqpstore.evidence.passed_over import PassedOver
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.evidence.put_back import PutBack, find_put_back
from amqpstore.format.compression import Decompressor, body_size
from amqpstore.format.records import FORMAT_VERSION, HEADER, checksum_seed
from amqpstore.identity import identity, marker
from amqpstore.identity.expected_segments import ExpectedSegments
from amqpstore.identity.marker import Marker
from amqpstore.system import filenames
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    KEPT,
    LOCK,
    MARKER,
    MEMBER,
    NEW_MARKER,
    NEW_MEMBER,
    NEW_REPLACEMENT,
    QUARANTINE,
    REPAIR_JOURNAL,
    REPLACEMENT,
    RESERVE,
    SEGMENTS,
    TRAILS,
    TRANSIENT,
    index_key,
    is_of_system,
    is_spare,
    is_unfinished,
    quarantined_path,
    rejoin_number,
    repair_number,
    segment_number,
    segment_numbers,
)
from amqpstore.system.files import Files
from amqpstore_tools.check.catalog import FILE, read_catalog
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.history import LogHistory
from amqpstore_tools.check.reading import StoreFile
from amqpstore_tools.check.segments import copied_from, segment_name
from amqpstore_tools.copying.manifest import MANIFEST
from amqpstore_tools.offline.foreign_files import find_foreign
from amqpstore_tools.offline.locations import require_directory
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.queues import name_of
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.snapshot import Snapshot

_OURS = {
    MARKER,
    NEW_MARKER,
    LOCK,
    MEMBER,
    NEW_MEMBER,
    REPLACEMENT,
    NEW_REPLACEMENT,
    CATALOG,
    SEGMENTS,
    INDEX,
    QUARANTINE,
    RESERVE,
    TRANSIENT,
    KEPT,
    TRAILS,
    "admin.sock",
    "reports",
    MANIFEST,
}


@dataclass
class Checked:
    """The result of a check: what was found, and how much was checked in how much time.

    `queues` are those of the broker: one with priorities is several stored queues.
    """

    findings: Findings = field(default_factory=Findings)
    queues: int = 0
    messages: int = 0
    segments: int = 0
    segment_bytes: int = 0
    index_files: int = 0
    prepared: int = 0
    is_compared: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    store_id: bytes | None = None
    format_version: int = FORMAT_VERSION
    rows: Rows | None = None
    """The sound rows of the catalog; None if it cannot be used."""
    shortfall: Shortfall = field(default_factory=Shortfall)
    """Durable batches and messages that are missing in the log."""
    damaged_rows: set[tuple[str, str]] = field(default_factory=set)
    """Table and key of the damaged rows; the key is empty if the whole table is damaged."""

    @property
    def is_damaged(self) -> bool:
        """Whether anything was found that is not normal after a crash or a repair."""
        return bool(self.findings.of_harm())


class ReadableStore(NamedTuple):
    """A store whose files can be read: `catalog` is the directory of its catalog. If it `is_live`,
    both are those of a snapshot.
    """

    directory: str
    files: Files
    catalog: str
    is_live: bool = False

    @classmethod
    def stopped(cls, directory: str) -> Self:
        """Return a store that the caller keeps brokers out of."""
        return cls(directory, ReadOnlyFiles(), os.path.join(directory, CATALOG))


@contextlib.contextmanager
def opened(directory: str, *, live: bool, is_locked: bool = False) -> Iterator[ReadableStore]:
    """Open the files to check; brokers are kept out meanwhile.

    Args and raises: as `engine.check`.
    """
    require_directory(directory)
    if not live:
        with contextlib.nullcontext() if is_locked else shared_lock(directory):
            yield ReadableStore.stopped(directory)
        return
    snapshot = Snapshot(directory, needs_catalog=False)
    try:
        yield ReadableStore(directory, snapshot.files, snapshot.catalog_path, is_live=True)
    finally:
        snapshot.close()


class SegmentJob(NamedTuple):
    """A segment to read: see `SegmentReader.read`. `size` is that of its file."""

    number: int
    size: int
    end: int | None
    least: int
    is_open: bool


class PreparedStore:
    """The facts about a store that are known before its segments are read."""

    def __init__(self, store: ReadableStore, tell: Progress) -> None:
        self._directory, self._files, self._catalog, self._is_live = store
        self._tell = tell
        self._out = Checked()
        self._findings = self._out.findings
        self._rows: Rows | None = None
        self._left_over: set[int] = set()
        self._wrong_kinds: set[str] = set()
        self._replaced: set[int] = set()

    def prepare(self) -> None:
        """Check the marker, the catalog and names.

        Raises: NotAStoreError, UnfinishedRepairError, FormatVersionError, OSError.
        """
        # Some files would be of before the repair, and some of after it.
        marker.refuse_unfinished_repair(ReadOnlyFiles(), self._directory)
        self._find_wrong_kinds()
        marked = self._read_marker()
        self._numbers = self._list_segments()
        if marked is None and not self._numbers and not list(self._findings):
            raise NotAStoreError(self._directory, f"it has neither a file {MARKER} nor a segment")
        if marked is None and not list(self._findings):
            self._findings.add("marker-missing", MARKER, "the file is missing")
        self._tell("the catalog", 0, 0)
        catalog = read_catalog(
            self._catalog, self._findings, plain=marked is None or marked.is_plain
        )
        rows = catalog.rows if catalog else None
        self._damaged_rows = catalog.damaged if catalog else set()
        if rows:
            self._findings.names |= {
                queue_id: queue_name(definition)
                for queue_id, definition in tables.QUEUES.read(rows.__getitem__).items()
            }
        if marked:
            self._out.format_version = marked.version
        elif catalog:
            # Only the marker says so, and that is lost.
            self._out.format_version = 1 if catalog.is_plain else FORMAT_VERSION
        self._store_id = self._identify(marked, rows)
        if rows and StoreRows.read(rows.__getitem__).store_id not in (None, self._store_id):
            rows = None  # It belongs to another store.
        self._rows = rows
        self._expected = self._expect(rows)
        self._out.store_id, self._out.rows = self._store_id, rows
        self._out.damaged_rows = self._damaged_rows
        self._find_foreign()
        self._check_names()

    # The marker, and which store it is.

    def _read_marker(self) -> Marker | None:
        """Raises: FormatVersionError."""
        try:
            # It is never overwritten, so it is read in place.
            return marker.read(ReadOnlyFiles(), self._directory)
        except DamageError as error:
            self._findings.add("marker-damaged", MARKER, error.reason, error.offset)
            return None

    @property
    def _seed(self) -> int:
        return checksum_seed(self._store_id or b"")

    def _identify(self, marked: Marker | None, rows: Rows | None) -> bytes | None:
        """Find the store's id, and report files of another one."""
        in_marker = marked.store_id.bytes if marked else None
        in_catalog = StoreRows.read(rows.__getitem__).store_id if rows else None
        if rows and in_catalog is None:
            self._findings.add("row-damaged", FILE, "table store has no row 'store_id'")
        store_id = identity.find_store_id(
            self._files, self._directory, in_marker=in_marker, in_catalog=in_catalog
        )
        for file, found in ((MARKER, in_marker), (FILE, in_catalog)):
            if found and store_id and found != store_id:
                text = f"it belongs to another store, {found.hex()}: this one is {store_id.hex()}"
                self._findings.add("store-id-differs", file, text)
        return store_id

    # Names.

    def _list(self, name: str) -> list[str]:
        return self._files.list_directory(f"{self._directory}/{name}")

    def _find_wrong_kinds(self) -> None:
        """Find directories, pipes and the like in the place of files: those files are missing."""
        for found in find_wrong_kinds(self._files, self._directory):
            self._findings.add("file-wrong-kind", found.name, found.reason)
            self._wrong_kinds.add(found.name)

    def _find_foreign(self) -> None:
        """Find what a broker that runs as the owner of the store may not open."""
        for found in find_foreign(self._files, self._directory):
            self._findings.add("file-foreign", found.name, found.reason)

    def _right_kinds(self, directory: str) -> list[str]:
        """Return the names in a directory of the store without those of the wrong kind."""
        wrong = self._wrong_kinds
        return [name for name in self._list(directory) if f"{directory}/{name}" not in wrong]

    def _list_segments(self) -> list[int]:
        """Return the numbers of the segments that are files; the others are `_replaced`."""
        numbers = segment_numbers(self._list(SEGMENTS))
        self._replaced = {one for one in numbers if segment_name(one) in self._wrong_kinds}
        return [one for one in numbers if one not in self._replaced]

    def _check_names(self) -> None:
        misplaced = set()
        if self._store_id and not self._is_live:
            for found in find_misplaced(self._files, self._directory, self._store_id, self._rows):
                self._findings.add("file-misplaced", found.name, found.reason)
                misplaced.add(found.name)
        self._check_top(misplaced)
        for directory in (SEGMENTS, QUARANTINE, INDEX):
            for name in self._right_kinds(directory):
                self._check_name(directory, name, misplaced)
        if self._rows is not None:
            if passed := PassedOver.read(self._rows.__getitem__):
                self._findings.add("passed-over", FILE, passed.text)
            self._check_quarantine(self._rows)
            self._check_unrowed(self._rows)

    def _check_name(self, directory: str, name: str, misplaced: Collection[str]) -> None:
        findings = self._findings
        path = f"{directory}/{name}"
        if directory == QUARANTINE and repair_number(name):
            findings.add("repair-kept", path, self._why_kept(name))
        elif directory == QUARANTINE and rejoin_number(name):
            text = "what a follower discarded, as nobody had committed it, is kept here"
            findings.add("rejoin-kept", path, text)
        elif directory == QUARANTINE and index_key(name) and path not in misplaced:
            text = "a start has copied it here, as it has more than a row of the catalog says"
            findings.add("quarantined", path, text)
        elif directory == SEGMENTS and is_spare(name):
            text = f"a spare segment: {self._what_a_start_does()}"
            findings.add("file-left-over", path, text)
        elif is_unfinished(name):
            if not self._is_live:
                findings.add("file-left-over", path, "an unfinished copy of a file")
        elif (
            (index_key if directory == INDEX else segment_number)(name) is None
            and not is_of_system(name)
            and path not in misplaced
        ):
            text = "a store has no file of this name: it is left alone"
            findings.add("file-unknown", path, text)

    def _what_a_start_does(self, does: str = "removes it") -> str:
        """Return what becomes of a file that is left over, as text for people."""
        if self._rows is not None and PassedOver.read(self._rows.__getitem__):
            return "it is kept until a repair, as starts have passed over something"
        return f"the next start {does}"

    def _why_kept(self, repair: str) -> str:
        """Return what the directory of a repair is for."""
        if os.path.exists(os.path.join(self._directory, QUARANTINE, repair, REPAIR_JOURNAL)):
            return "files that a repair replaced are kept here for an undo"
        return "a repair stopped before it had changed anything: the next one removes this"

    def _check_top(self, misplaced: set[str]) -> None:
        findings = self._findings
        for name in ReadOnlyFiles().list_directory(self._directory):
            if name not in _OURS and not is_of_system(name) and name not in misplaced:
                findings.add("file-unknown", name, "a store has no file or directory of this name")
        new_marker = os.path.join(self._directory, NEW_MARKER)
        if not self._is_live and os.path.isfile(new_marker):
            findings.add("file-left-over", NEW_MARKER, "an unfinished marker")
        if os.path.exists(os.path.join(self._directory, REPLACEMENT)):
            text = "its leader's store is to take the place of this one: start this member first"
            findings.add("file-left-over", REPLACEMENT, text)

    def _check_quarantine(self, rows: Rows) -> None:
        moved = segment_numbers(self._right_kinds(QUARANTINE))
        noted = tables.QUARANTINE.read(rows.__getitem__)
        newer = noted_newer(self._files, self._directory, noted, self._seed)
        for number in moved:
            if number in newer:
                self._findings.add("catalog-old", quarantined_path("", number), IS_NEWER)
                continue
            places = len(noted.get(number, ()))
            text = f"segment {number} was moved here, complete: {places} places in it are damaged"
            self._findings.add(
                "quarantined", f"{QUARANTINE}/{filenames.segment_name(number)}", text
            )
        for number in noted:
            if number not in moved and number not in self._numbers:
                text = f"segment {number} should be in {QUARANTINE}/, but is not there"
                self._findings.add("quarantine-missing", FILE, text)

    def _check_unrowed(self, rows: Rows) -> None:
        """Check segments without a row: the next start removes them, or moves them away."""
        quarantined = tables.QUARANTINE.read(rows.__getitem__)
        position = StoreRows.read(rows.__getitem__).position or START
        newer = set() if self._is_live else self._newer(quarantined, position.message_id)
        left_over = [
            (number, f"{self._directory}/{segment_name(number)}")
            for number in self._expected.left_over
        ]
        put_back = {one.number: one for one in self._put_back(rows, left_over)}
        for number in self._expected.left_over:
            if tables.SEGMENTS.key(number) in self._damaged_accounts:
                continue
            self._left_over.add(number)
            if of := self._copied_from(number):
                text = f"it is a copy of segment {of}: its content is ignored"
                self._findings.add("segment-copied", segment_name(number), text, 0)
                continue
            if number in newer:
                self._findings.add("catalog-old", segment_name(number), IS_NEWER)
                continue
            if number in put_back:
                self._add_put_back(segment_name(number), put_back[number])
                continue
            does = "moves it to quarantine" if number in quarantined else "removes it"
            text = f"nothing in it is live: {self._what_a_start_does(does)}"
            self._findings.add("file-left-over", segment_name(number), text)

    def _check_other_index(self, rows: Rows, known: PresentNumbers) -> None:
        """Check index files without a row, and whatever is under another name. Args: known, the
        messages that the catalog or the log has seen.
        """
        for name in self._right_kinds(INDEX):
            found = index_key(name)
            key = tables.INDEX.key(IndexKey(*found)) if found else ""
            if (
                found
                and key not in rows["index"]
                and ("index", key) not in self._damaged_rows
                and not self._check_newer(f"{INDEX}/{name}", IndexKey(*found), 0, known)
            ):
                text = f"no row names it: {self._what_a_start_does()}"
                self._findings.add("file-left-over", f"{INDEX}/{name}", text, queue_id=found[0])
        if self._store_id is not None and not self._is_live:
            self._check_unneeded(self._store_id, rows, known)

    def _check_unneeded(self, store_id: bytes, rows: Rows, known: PresentNumbers) -> None:
        """Check files under other names that neither the catalog nor the log names, as they may be
        newer than these.
        """
        next_id = (StoreRows.read(rows.__getitem__).position or START).message_id
        quarantine = tables.QUARANTINE.read(rows.__getitem__)
        for one in find_unneeded(self._files, self._directory, store_id, rows):
            name = os.path.relpath(one.path, self._directory)
            if one.kind is FileKind.INDEX:
                self._check_newer(name, IndexKey(one.queue_id, one.number), 0, known)
            elif any(row.reason == IS_NEWER for row in quarantine.get(one.number, ())):
                continue  # A start has noted it: see `_check_quarantine`.
            elif newer_in(self._files, one, self._seed, next_id):
                self._findings.add("catalog-old", name, IS_NEWER)
            for segment in self._put_back(rows, [(one.number, one.path)]):
                self._add_put_back(name, segment)

    def _put_back(self, rows: Rows, segments: Iterable[tuple[int, str]]) -> Iterator[PutBack]:
        given_up = PassedOver.given_up(rows.__getitem__)
        return find_put_back(self._files, self._directory, segments, self._seed, given_up)

    def _add_put_back(self, name: str, segment: PutBack) -> None:
        self._findings.add("segment-put-back", name, segment.reason, segment.offset)

    def _check_newer(self, name: str, key: IndexKey, start: int, known: PresentNumbers) -> bool:
        """Report what an index file has behind `start` that nothing else has seen."""
        if self._is_live:
            return False
        path = f"{self._directory}/{name}"
        found = find_newer_entries(self._files, path, key, self._seed, start, known)
        if found is None:
            return False
        self._findings.add(
            "catalog-old",
            name,
            found.text,
            found.offset,
            queue_id=key.queue_id,
            message_id=found.first_id,
            sequence=found.sequence,
            messages=found.messages,
        )
        return True

    def _newer(self, quarantine: Mapping[int, Iterable[DamageRow]], next_id: int) -> set[int]:
        """Return the segments without a row that are newer than the catalog."""
        where = self._files, self._directory
        found = find_newer(*where, self._expected.left_over, self._seed, next_id)
        found |= noted_newer(*where, quarantine, self._seed)
        return {number for number, newer in found.items() if not newer.error}

    def _copied_from(self, number: int) -> int:
        """Return the number of the segment that a file is a copy of; 0 if it is not a copy."""
        try:
            file = StoreFile(self._files, self._directory, segment_name(number), self._findings)
        except FileNotFoundError:
            return 0
        try:
            return copied_from(file.read(0, HEADER.size), number)
        finally:
            file.close()

    # Segments.

    @staticmethod
    def _position(rows: Rows) -> tuple[int, int]:
        position = StoreRows.read(rows.__getitem__).position or START
        return position.segment, position.offset

    def _expect(self, rows: Rows | None) -> ExpectedSegments:
        """Find which segments should exist; without a catalog, those that do."""
        if rows is None:
            return ExpectedSegments.of(self._numbers, 0, (), ())
        return ExpectedSegments.of(
            self._numbers,
            self._position(rows)[0],
            tables.SEGMENTS.read_keys(rows.__getitem__),
            # A segment in whose place something else is has existed.
            tables.SEGMENT_ENDS.read_keys(rows.__getitem__) | self._replaced,
        )

    def _segment_jobs(self) -> list[SegmentJob]:
        """Return the segments that should exist, and those that do, in the order of their
        numbers.
        """
        numbers = set(self._numbers) - self._left_over
        if self._rows is not None:
            for missing in self._expected.missing():
                if missing.others:
                    name = segment_name(missing.number)
                    self._findings.add("segment-missing", name, missing.reason)
                else:
                    numbers.add(missing.number)
        log = self._expected.log
        jobs = []
        for number in sorted(numbers):
            end, least = self._ends(self._rows, number)
            # A broker may have closed the store after the instant of the snapshot's files.
            is_last = self._is_live and log[-1:] == [number]
            is_open = is_last or number == self._expected.open
            jobs.append(SegmentJob(number, self._size(number), end, least, is_open))
        return jobs

    def _ends(self, rows: Rows | None, number: int) -> tuple[int | None, int]:
        """Return a segment's recorded end, if any, and its least size."""
        if rows is None:
            return None, 0
        noted = tables.SEGMENT_ENDS.get(rows.__getitem__, number)
        end = noted.end if noted else None
        start, offset = self._position(rows)
        row = tables.SEGMENTS.get(rows.__getitem__, number)
        least = row.end_bytes if row else 0
        # The last checkpoint has seen the log up to its position.
        return end, max(least, offset) if number == start else least

    def _size(self, number: int) -> int:
        try:
            file = self._files.open(os.path.join(self._directory, segment_name(number)))
        except OSError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    @property
    def _damaged_accounts(self) -> set[str]:
        return {key for table, key in self._damaged_rows if table == "segments"}

    def _check_queues(self, rows: Rows, history: LogHistory) -> None:
        findings = self._findings
        heads = tables.NEXT_SEQUENCES.read(rows.__getitem__)
        for (queue_id, number), state in tables.INDEX.read(rows.__getitem__).items():
            key = tables.INDEX.key(IndexKey(queue_id, number))
            if queue_id not in heads:
                text = f"table index, row {key!r}: queue {queue_id} has no row in heads"
                findings.add("row-orphaned", FILE, text, queue_id=queue_id)
            elif state.end > (head := heads[queue_id].next_sequence):
                text = f"queue {queue_id}: sequence {state.end - 1} is in {INDEX}/{key}.index,"
                text = f"{text} but {head} is noted as the next one"
                findings.add("head-too-low", FILE, text, queue_id=queue_id)
        known = [*heads, *tables.QUEUES.read_keys(rows.__getitem__), history.highest_queue_id]
        highest = max(known, default=0)
        following = StoreRows.read(rows.__getitem__).next_queue_id or 1
        if highest >= following:
            text = f"queue {highest} exists, but {following} is noted as the next one"
            findings.add("queue-id-too-low", FILE, text, queue_id=highest)


def measure_of(rows: Rows | None) -> Callable[[bytes], int]:
    """Return a function that tells how large a body was before it was compressed. Without the
    catalog, and so without its dictionaries, it relies on the body's header.
    """
    if rows is None:
        return body_size
    return Decompressor(tables.DICTIONARIES.read(rows.__getitem__)).measure


def queue_name(definition: object) -> str:
    """Return the name in a queue's definition."""
    if not (found := named(definition)):
        return ""
    vhost, name = found
    return name if vhost is None else f"{vhost.rstrip('/')}/{name}"


def named(definition: object) -> tuple[str | None, str] | None:
    """Return virtual host and name of a broker's queue: one with priorities is several stored
    queues.
    """
    name = name_of(definition)
    if name is None or not isinstance(definition, dict):
        return None
    vhost = definition.get("vhost")
    return vhost if isinstance(vhost, str) else None, name
