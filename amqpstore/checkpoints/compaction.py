"""Compaction: merges neighbouring segments that are mostly garbage.

Segments before the log's last one never change. The live messages of some neighbours are written,
in the order of the ids, to a new segment; that is synced, read back and checked, and replaces the
old ones with one commit of the catalog. A crash before the commit leaves the new file without a
row, a crash after it the old files: the next start removes either.

A segment with a damaged record is not removed: it is moved to `quarantine/`, complete.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.tables import DamageRow, StoreRows
from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.errors import DamageError
from amqpstore.format.compression import Compressor, train
from amqpstore.format.limits import LIMITS
from amqpstore.format.records import (
    COMPRESSED,
    FORMAT_VERSION,
    Gap,
    Kind,
    Record,
    encode_record,
    encode_segment_header,
    head_size,
    logical_bytes,
    scan,
)
from amqpstore.log.segment_accounts import SegmentAccount, SegmentAccounts
from amqpstore.log.segments import Segment
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import SEGMENTS, segment_path
from amqpstore.system.files import File, Files
from amqpstore.system.removal import attempt, quarantine

LEAST_SEGMENTS = 3

_SAMPLES = 4096


class Compacted(NamedTuple):
    """The result of a compaction: `segment` replaces `numbers`.

    `dictionary`, if one was trained, is in the catalog under its id.
    """

    numbers: list[int]
    segment: Segment
    moved_bytes: int
    damage: list[tuple[str, int, int, str]]
    dictionary: tuple[int, bytes] | None


def choose(
    accounts: SegmentAccounts,
    *,
    log_segment: int,
    segment_bytes: int,
    avoided: Collection[int] = (),
    to_the_end: bool = False,
    garbage_fraction: float = LIMITS.garbage_fraction,
) -> list[SegmentAccount]:
    """Return neighbours whose live records fit in one segment, if compaction is due; else an empty
    list.

    Of all that would fit, those that free most.
    Args: log_segment, in which the log may continue; avoided, numbers of segments that are left
    alone; to_the_end, whether it is due as long as it frees anything.
    """
    every = list(accounts)
    sealed = [account for account in every if account.number != log_segment]
    if not to_the_end:
        total = sum(account.end_bytes for account in sealed)
        garbage = sum(account.garbage_bytes for account in sealed)
        if len(every) < LEAST_SEGMENTS or garbage <= garbage_fraction * total:
            return []
    best = most = start = live = freed = 0
    end = 0
    for stop, account in enumerate(sealed, 1):
        if account.number in avoided:
            start, live, freed = stop, 0, 0
            continue
        live += account.end_bytes - account.garbage_bytes
        freed += account.garbage_bytes
        while live > segment_bytes and start < stop - 1:
            live -= sealed[start].end_bytes - sealed[start].garbage_bytes
            freed -= sealed[start].garbage_bytes
            start += 1
        is_worth_it = (
            stop - start > 1 or 2 * account.garbage_bytes > account.end_bytes or to_the_end
        )
        if freed > most and is_worth_it:
            best, end, most = start, stop, freed
    return sealed[best:end]


class Compaction:
    """One compaction, to be run once."""

    def __init__(
        self,
        backing: Backing,
        checkpoint_state: CheckpointState,
        *,
        accounts: Sequence[SegmentAccount],
        sources: Sequence[Segment],
        number: int,
        created_ms: int,
        compressor: Compressor | None = None,
        train_dictionary: bool = False,
    ) -> None:
        files, directory, store_id, _, descriptors, limits = backing
        self._files = files
        self._directory = directory
        self._piece_bytes = limits.compaction_piece_bytes
        self._seed = seed = backing.seed
        self._catalog = backing.catalog
        self._checkpoint_state = checkpoint_state
        self._compressor = compressor
        self._train_dictionary = train_dictionary
        self._dictionary: tuple[int, bytes] | None = None
        self._accounts = accounts
        self._number = number
        self._header = encode_segment_header(number, FORMAT_VERSION, store_id, created_ms)
        self._segment = Segment(descriptors, segment_path(directory, number), number, seed, limits)
        self._account = SegmentAccount(number, accounts[0].first_id)
        self._damage: list[tuple[str, int, int, str]] = []
        self._sources = {segment.number: segment for segment in sources}
        self._ids = array("Q")
        self._references = array("I")
        self._live_bytes = 0
        self._copied = 0
        self._read_bytes = 0

    def run(self) -> Compacted:
        """Compact. Raises: OSError, DamageError (the new file is not as it was written),
        DurabilityError.

        The old files stay: the caller stops using `Compacted.numbers`, and then removes them.
        """
        try:
            self._write()
            # Before the originals lose their rows: until then a faulty copy costs nothing.
            self._check()
            # A crash before this commit leaves the new file without a row, one after it the old
            # ones: either is removed at the next start. So the old files go only after it.
            self._catalog.commit(self._changes())
        except (OSError, DamageError):
            # Not after a DurabilityError: the commit may have been done, and need the file. Nothing
            # refers to it: on a full disk its space is needed, also by the next attempt.
            self._segment.close()
            with contextlib.suppress(OSError):
                self._files.remove(self._segment.path)
            raise
        finally:
            self._segment.seal()
        accounts = self._checkpoint_state.accounts
        accounts.replace(self._accounts, self._account)
        accounts.changed.discard(self._account)
        numbers = [account.number for account in self._accounts]
        moved_bytes = self._read_bytes + self._segment.size
        return Compacted(numbers, self._segment, moved_bytes, self._damage, self._dictionary)

    def _changes(self) -> list[Change]:
        """Return the changes of the catalog that replace the old segments by the new one."""
        changes = [
            table.remove(account.number)
            for account in self._accounts
            for table in tables.OF_SEGMENTS
        ]
        changes.append(tables.SEGMENTS.put(self._number, self._account.row()))
        changes.append(tables.OFFSET_TABLES.put(self._number, self._segment.offset_table_row()))
        for account in self._accounts:
            path = segment_path(self._directory, account.number)
            if damage_rows := [
                DamageRow(offset, size, reason)
                for damaged, offset, size, reason in self._damage
                if damaged == path
            ]:
                changes.append(tables.QUARANTINE.put(account.number, damage_rows))
        # After a crash and a start nothing else says which numbers were used.
        changes += StoreRows(next_compacted=self._number + 1).changes()
        if self._dictionary:
            changes.append(tables.DICTIONARIES.put(*self._dictionary))
        return changes

    def _write(self) -> None:
        segment = self._segment
        segment.create()
        writer = segment.writer
        segment.first_id = segment.end_id = self._accounts[0].first_id
        writer.append([self._header])
        segment.size = len(self._header)
        if self._compressor and self._train_dictionary:
            self._train(self._compressor)
        for account in self._accounts:
            self._copy(account, writer)
        account = self._account
        account.restrict(self._ids, self._references, self._live_bytes)
        account.end_bytes = segment.size
        segment.first_id, segment.end_id = account.first_id, account.end_id
        # Bytes and name are durable before the commit: a row must never name a file that a crash
        # could take, as the originals lose their rows with it.
        sync_file(writer)
        sync_directory(self._files, f"{self._directory}/{SEGMENTS}")

    def _train(self, compressor: Compressor) -> None:
        """Train a dictionary with bodies that will be compressed with it."""
        bodies: list[bytes] = []
        for account in self._accounts:
            live = dict(account.live())
            for content, found in self._records(account, live, []):
                if len(bodies) < _SAMPLES and not found.flags:
                    payload = content[found.payload_offset : found.end]
                    bodies.append(payload[head_size(payload) :])
        if trained := train(bodies):
            self._dictionary = trained
            self._compressor = compressor.with_dictionary(trained[1])

    def _copy(self, account: SegmentAccount, writer: File) -> None:
        """Write the live records of a segment to the new one.

        A message whose record is damaged stays in the account: its queue still holds it.
        """
        live = dict(account.live())
        buffers: list[bytes] = []
        waiting_bytes = 0
        for content, message in self._records(account, live, self._damage):
            payload, flags = self._compressed(content, message)
            record = encode_record(
                Kind.MESSAGE, message.number, self._number, payload, seed=self._seed, flags=flags
            )
            buffers.append(record)
            waiting_bytes += len(record)
            self._segment.note(message.number, self._segment.size)
            self._segment.size += len(record)
            self._copied += 1
            self._live_bytes += logical_bytes(content, message)
            if waiting_bytes >= self._piece_bytes:
                writer.append(buffers)
                buffers.clear()
                waiting_bytes = 0
        if buffers:
            writer.append(buffers)
        self._ids.extend(live)
        self._references.extend(live.values())

    def _records(
        self,
        account: SegmentAccount,
        live: Mapping[int, int],
        damage: list[tuple[str, int, int, str]],
    ) -> Iterator[tuple[bytes, Record]]:
        """Yield the sound MESSAGE records of live messages, each with the content it is in."""
        path = segment_path(self._directory, account.number)
        file = self._files.open(path)
        try:
            for start, end in _pieces(
                self._sources[account.number], account.end_bytes, live, self._piece_bytes
            ):
                content = file.read(start, end - start)
                self._read_bytes += len(content)
                for scanned in scan(content, account.number, self._seed):
                    if isinstance(scanned, Gap):
                        size = scanned.end - scanned.offset
                        damage.append((path, start + scanned.offset, size, scanned.reason))
                    elif scanned.kind == Kind.MESSAGE and scanned.number in live:
                        yield content, scanned
        finally:
            file.close()

    def _compressed(self, content: bytes, found: Record) -> tuple[bytes, int]:
        """Return a message's payload and flags, compressed now if it was not before."""
        payload = content[found.payload_offset : found.end]
        if found.flags or self._compressor is None:
            return payload, found.flags
        head_bytes = head_size(payload)
        body = self._compressor.compress(payload[head_bytes:])
        return (payload, 0) if body is None else (payload[:head_bytes] + body, COMPRESSED)

    def _check(self) -> None:
        """Read back the new file, and check that everything is there. Raises: DamageError."""
        segment = self._segment
        content = segment.writer.read(0, segment.size)
        found = 0
        for record in scan(content, self._number, self._seed):
            if isinstance(record, Gap):
                raise DamageError(segment.path, record.offset, f"after compaction: {record.reason}")
            found += record.kind == Kind.MESSAGE
        if found != self._copied:
            reason = f"{found} messages are there after compaction, of {self._copied}"
            raise DamageError(segment.path, 0, reason)


def _pieces(
    segment: Segment, end_bytes: int, live: Collection[int], piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield where in a segment live messages are: steps of its offset table, joined into pieces."""
    ends = [*segment.table_offsets[1:], end_bytes]
    needed = sorted({bisect_right(segment.table_ids, one) - 1 for one in live})
    start = end = 0
    for step in needed:
        if step < 0:
            continue
        if segment.table_offsets[step] != end or end - start >= piece_bytes:
            if end > start:
                yield start, end
            start = segment.table_offsets[step]
        end = ends[step]
    if end > start:
        yield start, end


def remove_compacted(
    files: Files, directory: str, compacted: Compacted, known_damaged: Collection[int]
) -> None:
    """Remove the old files, which are not read any more; damaged ones go to quarantine.

    Args: known_damaged, segments in which recovery found damage, perhaps where nothing is live by
    now.
    """
    damaged = {path for path, *_ in compacted.damage}
    for number in compacted.numbers:
        path = segment_path(directory, number)
        if path in damaged or number in known_damaged:
            attempt(quarantine, files, directory, number)
        else:
            attempt(files.remove, path)
