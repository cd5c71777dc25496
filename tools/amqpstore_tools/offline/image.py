"""A store as it is on disk: read by the engine's own codec and recovery, and never changed.

Recovery, as the next start would do it, is done here in memory: the catalog's last checkpoint, then
the log behind it. So everything reported as live is what a broker would serve. Of a store whose
catalog cannot be read, `repair.imaging` has an image of what a repair would keep.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, Self

from amqpstore import RecoveryReport
from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.tables import Position, StoreRows
from amqpstore.errors import DamageError, NotAStoreError, StoreLockedError
from amqpstore.format.compression import Decompressor
from amqpstore.format.index import IndexReader
from amqpstore.format.records import (
    FORMAT_VERSION,
    MessageDecoder,
    checksum_seed,
)
from amqpstore.identity import identity, marker
from amqpstore.identity.expected_segments import MISSING
from amqpstore.recovery.recovered import Recovered
from amqpstore.system.filenames import (
    CATALOG,
    MARKER,
    SEGMENTS,
    absolute_path,
    segment_numbers,
)
from amqpstore.system.files import Files
from amqpstore_tools.offline.catalog import CatalogImage, may_be_plain
from amqpstore_tools.offline.contents import StoredMessage, TransactionImage
from amqpstore_tools.offline.listing import Listing
from amqpstore_tools.offline.locations import require_directory
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.offline.messages import by_range, read_messages
from amqpstore_tools.offline.prepared import PreparedImage, prepared_of
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.queues import Entry, QueueImage
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.recovering import recover_image
from amqpstore_tools.offline.segments import IndexImage, SegmentImage
from amqpstore_tools.offline.snapshot import Snapshot


class LogTail(NamedTuple):
    """The log behind the last checkpoint: from `start` to before `end`.

    `segments` and `bytes` that it has, `batches` and their `messages` and `operations`.
    `torn_bytes` and `rolled_back` messages are excluded: they belong to an incomplete batch.
    """

    start: Position
    end: Position
    segments: int
    bytes: int
    batches: int
    messages: int
    operations: int
    torn_bytes: int
    rolled_back: int


class Holder(NamedTuple):
    """A queue that holds a message, and its place there."""

    queue: QueueImage
    entry: Entry


class StoreImage:
    """The store in `directory`. Created by `open`, and to be closed: it keeps brokers out.

    `store_id` is the one that `identity` finds, None if nothing has it and so no checksum can be
    verified; `marker_reason` says why the marker does not have it. `catalog_reason` says why the
    catalog, or its account of messages, cannot be read, and `notes` what is not known without it;
    `report` is what recovery would report. `is_live`: a broker runs on it, and this is a snapshot,
    taken at `taken_ms` since 1970.
    """

    def __init__(
        self,
        directory: str,
        files: Files,
        catalog: CatalogImage,
        *,
        is_live: bool,
        tell: Progress = lambda *_: None,
    ) -> None:
        self.directory = directory
        self.tell = tell
        self.files = files
        self.catalog = catalog
        self.is_live = is_live
        self.taken_ms = time.time_ns() // 1_000_000
        self.format_version = FORMAT_VERSION
        self.marker_reason: str | None = None
        self.seed = 0
        self._exit = ExitStack()
        self.catalog_reason: str | None = None
        self.notes: list[str] = []
        with ExitStack() as unless_opened:
            unless_opened.callback(self._exit.close)
            self.store_id = self._find_store()
            self._recovered = self._recover()
            unless_opened.pop_all()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        live: bool = False,
        tell: Progress = lambda *_: None,
    ) -> Self:
        """Read the store in a directory. Nothing in it is created, changed or locked to readers.

        Args: live, a broker runs on it: read a snapshot; tell, is told how far a search of the
        whole store is, if one is needed.
        Raises: NotAStoreError, UnfinishedRepairError, FormatVersionError, StoreLockedError (a
        broker runs on it, without `live`), SnapshotError, DamageError (the catalog cannot be read),
        OSError.
        """
        directory = absolute_path(directory)
        require_directory(directory)
        with ExitStack() as stack:
            is_live = False
            try:
                stack.enter_context(shared_lock(directory))
            except StoreLockedError:
                if not live:
                    raise
                is_live = True
            _check_directory(directory)
            plain = may_be_plain(directory)
            if is_live:
                snapshot = Snapshot(directory, needs_catalog=False)
                stack.callback(snapshot.close)
                files: Files = snapshot.files
                catalog = CatalogImage(snapshot.catalog_path, plain=plain)
            else:
                files = ReadOnlyFiles()
                catalog = CatalogImage(os.path.join(directory, CATALOG), plain=plain)
            stack.callback(catalog.close)
            image = cls(directory, files, catalog, is_live=is_live, tell=tell)
            image._exit.push(stack.pop_all())
        return image

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything, and let brokers in."""
        self._exit.close()

    # The store as a whole.

    @property
    def recovered(self) -> Recovered:
        """The result of recovery; its checkpoint state includes the log up to its end."""
        return self._recovered

    @property
    def report(self) -> RecoveryReport:
        """The report that recovery would make at the next start."""
        return self._recovered.report

    @property
    def lost_count(self) -> int:
        """The number of durable messages that cannot be read, at least, as far as is known."""
        return self.report.lost_count

    @cached_property
    def tail(self) -> LogTail:
        """The log behind the last checkpoint."""
        batches = self._recovered.batches
        report = self.report
        return LogTail(
            start=self._recovered.start,
            end=self._recovered.position,
            segments=len({batch.segment for batch in batches}),
            bytes=report.scanned_bytes,
            batches=len(batches),
            messages=sum(len(batch.sizes) for batch in batches),
            operations=sum(len(batch.operations) for batch in batches),
            torn_bytes=report.torn_bytes,
            rolled_back=report.rolled_back,
        )

    def rows(self, table: str) -> Mapping[str, Any]:
        """Return the readable rows of a table of the catalog; none if it cannot be read."""
        try:
            return self.catalog.rows(table)
        except DamageError:
            return {}

    # Its content.

    @cached_property
    def segments(self) -> list[SegmentImage]:
        """All segments that exist or that the store knows, in the order of their ids."""
        rows = {name: self.rows(name) for name in ("segments", "ends", "quarantine")}
        found = self._listing().segments(self._recovered, rows)
        return sorted(found, key=lambda one: (one.first_id or 1 << 64, one.number))

    @cached_property
    def quarantined(self) -> list[SegmentImage]:
        """The segments in `quarantine/`: the store no longer reads them."""
        return list(self._listing().quarantined())

    def segment(self, number: int) -> SegmentImage | None:
        """Return the segment with a number, in `quarantine/` too; None if there is none."""
        found = [one for one in [*self.segments, *self.quarantined] if one.number == number]
        return found[0] if found else None

    @cached_property
    def index_files(self) -> list[IndexImage]:
        """All index files that exist or that the catalog knows, by queue and number."""
        return self._listing().known_index_files(self._recovered)

    @cached_property
    def queues(self) -> list[QueueImage]:
        """The stored queues, by virtual host, name and level; those without a name come last."""
        lost: dict[int, set[int]] = {}
        for queue_id, sequence, _ in self.report.lost:
            lost.setdefault(queue_id, set()).add(sequence)
        checkpoint_state = self._recovered.checkpoint_state
        definitions = tables.QUEUES.read(self.rows)
        hidden = {one.queue_id for one in self.prepared}
        locked: Counter[int] = Counter()
        purged: dict[int, list[tuple[int, int]]] = {}
        for prepared in self.prepared:
            for queue_id, first, count in prepared.locked if prepared.is_undecided else ():
                if prepared.is_purge:
                    purged.setdefault(queue_id, []).append((first, first + count))
                else:
                    locked[queue_id] += count
        reader = IndexReader(self.files, self.directory, self.seed)
        images = [
            QueueImage(
                queue_id,
                definitions.get(queue_id),
                queue,
                checkpoint_state.sizes,
                reader,
                frozenset(lost.get(queue_id, ())),
                locked_count=locked[queue_id],
                is_hidden=queue_id in hidden,
                purged=purged.get(queue_id, ()),
            )
            for queue_id, queue in checkpoint_state.queues.items()
        ]
        return sorted(images, key=_queue_order)

    @cached_property
    def prepared(self) -> list[PreparedImage]:
        """Prepared transactions, and decided ones whose rest the next start removes."""
        checkpoint_state = self._recovered.checkpoint_state
        found = []
        for queue_id, row in tables.PREPARED.read(self.rows).items():
            queue = checkpoint_state.queues.get(queue_id)
            waiting = queue is not None and bool(
                queue.fresh.count or any(file.live for file in queue.files)
            )
            found.append(prepared_of(queue_id, row, is_undecided=waiting))
        return found

    # Messages and transactions.

    @cached_property
    def decoder(self) -> MessageDecoder:
        """The decoder of messages, with the store's dictionaries."""
        dictionaries = tables.DICTIONARIES.read(self.rows)
        return MessageDecoder({}, Decompressor(dictionaries).decompress)

    def message(self, message_id: int) -> StoredMessage | None:
        """Return a message with a sound record, live or not yet dropped. Raises: OSError."""
        for _, found in self.messages([message_id]):
            return found
        return None

    def messages(self, ids: Iterable[int]) -> Iterator[tuple[int, StoredMessage | None]]:
        """Yield messages of ascending ids, each with None if it has no sound record.

        Segments are read once, from their first message asked for.
        Raises: OSError.
        """
        return read_messages(by_range(self.segments), ids)

    def holders(self, message_id: int) -> list[Holder]:
        """Return the queues that hold a message. Reads all index files. Raises: OSError."""
        found = []
        for queue in self.queues:
            for columns in queue.columns():
                if columns.ids[0] <= message_id <= columns.ids[-1] and message_id in columns.ids:
                    index = columns.ids.index(message_id)
                    found.append(Holder(queue, Entry(*(column[index] for column in columns[:6]))))
        return found

    def log_segments(self) -> list[SegmentImage]:
        """Return the existing segments of the log, in the order of their LSNs."""
        log = [one for one in self.segments if not one.is_compacted and one.size]
        return sorted(log, key=attrgetter("number"))

    def transactions(self, segment: SegmentImage, start: int = 0) -> Iterator[TransactionImage]:
        """Yield the sound TRANSACTIONs of a segment, from offset `start` on. Raises: OSError."""
        for batch in segment.batches(start):
            if transaction := TransactionImage.of(segment, batch):
                yield transaction

    def transaction(self, lsn: int) -> TransactionImage | None:
        """Return the TRANSACTION of an LSN, if the log still has it. Raises: OSError."""
        for segment in reversed(self.log_segments()):
            is_later = False
            for transaction in self.transactions(segment):
                if transaction.lsn == lsn:
                    return transaction
                is_later = transaction.lsn < lsn
                if not is_later:
                    break
            if is_later:
                return None  # all its LSNs are lower, and those of earlier segments too
        return None

    # Construction.

    def _recover(self) -> Recovered:
        """Find what the next start would.

        Raises: DamageError (the catalog cannot be read), OSError.
        """
        store_id = self.store_id or uuid.UUID(int=0)
        backing = Backing.of(self.files, self.directory, store_id.bytes, self.catalog)
        # Segments are read until the image is closed, and each that was read is open.
        self._exit.callback(backing.descriptors.close)
        return recover_image(backing, self.catalog)

    def _find_store(self) -> uuid.UUID | None:
        """Find which store it is, and ignore a catalog of another store.

        Raises: FormatVersionError, OSError.
        """
        in_marker = self._in_marker()
        in_catalog = StoreRows.read(self.rows).store_id
        found = identity.find_store_id(
            self.files, self.directory, in_marker=in_marker, in_catalog=in_catalog
        )
        if found is None:
            return None
        self.seed = checksum_seed(found)
        if in_marker and in_marker != found:
            self.marker_reason = f"it belongs to another store ({in_marker.hex()})"
        if self.catalog.reason is None and (
            reason := identity.why_foreign_catalog(self.rows, found)
        ):
            self.catalog.refuse(reason)
        return uuid.UUID(bytes=found)

    def _in_marker(self) -> bytes | None:
        """Raises: FormatVersionError, OSError."""
        try:
            # The marker is never overwritten, so it is read in place.
            found = marker.read(ReadOnlyFiles(), self.directory)
        except DamageError as error:
            self.marker_reason = error.reason
            return None
        if found is None:
            self.marker_reason = MISSING
            return None
        self.format_version = found.version
        return found.store_id.bytes

    def _listing(self) -> Listing:
        return Listing(self.files, self.directory, self.seed)


def _check_directory(directory: str) -> None:
    """Raises: NotAStoreError, when a directory has no files of a store; UnfinishedRepairError."""
    marker.refuse_unfinished_repair(ReadOnlyFiles(), directory)
    if os.path.exists(os.path.join(directory, MARKER)):
        return
    segments = ReadOnlyFiles().list_directory(os.path.join(directory, SEGMENTS))
    if not segment_numbers(segments):
        raise NotAStoreError(directory, f"it has neither a file {MARKER} nor a segment")


def _queue_order(queue: QueueImage) -> tuple[bool, str, str, int, int]:
    name = queue.name
    return name is None, queue.vhost or "", name or "", queue.level or 0, queue.id
