"""Compaction: neighbouring segments that are mostly garbage become one.

Segments that the log is done with are never changed. What is live in some neighbours is written,
in the order of the ids, to a new segment; that is synced, read back and checked, and takes their
place with one commit of the catalog. A crash before the commit leaves a file without a row, which
the next start removes; one behind it leaves the old files without a row, and the same happens.

A segment in which a record is damaged is not removed: it goes to `quarantine/`, whole.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from amqpstore.accounts import Account, Accounts
from amqpstore.backing import Backing
from amqpstore.catalog import Change
from amqpstore.checkpoint import Marks
from amqpstore.compression import Compressor, train
from amqpstore.errors import DamageError, DurabilityError
from amqpstore.filenames import QUARANTINE, SEGMENTS, segment_path
from amqpstore.files import Files
from amqpstore.ledger import Ledger
from amqpstore.log import FORMAT_VERSION
from amqpstore.records import (
    COMPRESSED,
    Gap,
    Kind,
    Record,
    encode_record,
    encode_segment_header,
    head_size,
    logical_bytes,
    scan,
)
from amqpstore.segments import Segment

LEAST_SEGMENTS = 3
GARBAGE_FRACTION = 0.5

_SAMPLES = 4096


class Compacted(NamedTuple):
    """What a compaction did: `segment` is in the place of `numbers`.

    `dictionary`, if one was trained, is in the catalog under its id.
    """

    numbers: list[int]
    segment: Segment
    read_bytes: int
    damage: list[tuple[str, int, int, str]]
    dictionary: tuple[int, bytes] | None


def choose(accounts: Accounts, *, log_segment: int, segment_bytes: int) -> list[Account]:
    """Neighbours whose live records fit in one segment, where compaction is due; else none.

    Of all that would fit, those that free most. Args: log_segment, which the log may go on in.
    """
    every = list(accounts)
    sealed = [account for account in every if account.number != log_segment]
    total = sum(account.end_bytes for account in sealed)
    garbage = sum(account.garbage_bytes for account in sealed)
    if len(every) < LEAST_SEGMENTS or garbage <= GARBAGE_FRACTION * total:
        return []
    best: list[Account] = []
    most = 0
    for start in range(len(sealed)):
        live = freed = 0
        for stop in range(start, len(sealed)):
            account = sealed[stop]
            live += account.end_bytes - account.garbage_bytes
            if stop > start and live > segment_bytes:
                break
            freed += account.garbage_bytes
            if freed > most and (stop > start or 2 * account.garbage_bytes > account.end_bytes):
                most = freed
                best = sealed[start : stop + 1]
    return best


class Compaction:
    """One compaction, to be run once."""

    def __init__(
        self,
        backing: Backing,
        ledger: Ledger,
        *,
        accounts: Sequence[Account],
        number: int,
        now_ms: int,
        compressor: Compressor | None = None,
        train_dictionary: bool = False,
    ) -> None:
        files, directory, store_id, _ = backing
        self._files = files
        self._directory = directory
        self._seed = seed = backing.seed
        self._catalog = backing.catalog
        self._ledger = ledger
        self._compressor = compressor
        self._train_dictionary = train_dictionary
        self._dictionary: tuple[int, bytes] | None = None
        self._accounts = accounts
        self._number = number
        self._header = encode_segment_header(number, FORMAT_VERSION, store_id, now_ms)
        self._segment = Segment(files, segment_path(directory, number), number, seed)
        self._account = Account(number, accounts[0].first_id)
        self._damage: list[tuple[str, int, int, str]] = []

    def run(self) -> Compacted:
        """Make it. Raises: OSError, DurabilityError, DamageError (what was written is not there).

        The old files stay: `Compacted.numbers` are to be taken out of use, and then removed.
        """
        try:
            self._write()
            self._check()
        except OSError:
            with contextlib.suppress(OSError):
                self._files.remove(self._segment.path)
            raise
        changes = [
            change
            for account in self._accounts
            for change in (
                Change("segments", f"{account.number:010}", None),
                Change("marks", f"{account.number:010}", None),
                Change("ends", f"{account.number:010}", None),
            )
        ]
        key = f"{self._number:010}"
        changes.append(Change("segments", key, self._account.row()))
        changes.append(Change("marks", key, Marks.of(self._segment).row))
        if self._dictionary:
            number, dictionary = self._dictionary
            changes.append(Change("dictionaries", f"{number:010}", dictionary))
        self._catalog.commit(changes)
        accounts = self._ledger.accounts
        accounts.replace(self._accounts, self._account)
        accounts.changed.discard(self._account)
        numbers = [account.number for account in self._accounts]
        read_bytes = sum(account.end_bytes for account in self._accounts)
        return Compacted(numbers, self._segment, read_bytes, self._damage, self._dictionary)

    def _write(self) -> None:
        segment = self._segment
        segment.create()
        segment.first_id = segment.end_id = self._accounts[0].first_id
        segment.file().append([self._header])
        segment.size = len(self._header)
        if self._compressor and self._train_dictionary:
            self._train(self._compressor)
        for account in self._accounts:
            self._copy(account)
        self._account.end_bytes = segment.size
        self._account.end_id = segment.end_id = max(self._accounts[-1].end_id, segment.end_id)
        path = segment.path
        try:
            segment.file().datasync()
            path = f"{self._directory}/{SEGMENTS}"
            self._files.sync_directory(path)
        except OSError as error:
            raise DurabilityError(path, error) from error

    def _train(self, compressor: Compressor) -> None:
        """Train a dictionary with bodies that will be compressed with it."""
        bodies: list[bytes] = []
        for account in self._accounts:
            content = self._content(account)
            for found in scan(content, account.number, self._seed):
                if len(bodies) == _SAMPLES:
                    break
                if isinstance(found, Record) and found.kind == Kind.MESSAGE and not found.flags:
                    payload = content[found.payload_offset : found.end]
                    bodies.append(payload[head_size(payload) :])
        if trained := train(bodies):
            self._dictionary = trained
            self._compressor = compressor.with_dictionary(trained[1])

    def _content(self, account: Account) -> bytes:
        file = self._files.open(segment_path(self._directory, account.number))
        try:
            return file.read(0, account.end_bytes)
        finally:
            file.close()

    def _copy(self, account: Account) -> None:
        """Write the live records of a segment to the new one."""
        path = segment_path(self._directory, account.number)
        content = self._content(account)
        buffers: list[bytes] = []
        references = account.references
        sizes = array("I", [0]) * (account.end_id - account.first_id)
        kept = array("I", [0]) * len(sizes)
        for found in scan(content, account.number, self._seed):
            if isinstance(found, Gap):
                self._damage.append((path, found.offset, found.end - found.offset, found.reason))
                continue
            if found.kind != Kind.MESSAGE:
                continue
            place = found.number - account.first_id
            if not 0 <= place < len(sizes) or not account.is_live(found.number):
                continue
            payload, flags = self._compressed(content, found)
            record = encode_record(
                Kind.MESSAGE, found.number, self._number, payload, seed=self._seed, flags=flags
            )
            self._segment.place(found.number, self._segment.size)
            self._segment.size += len(record)
            buffers.append(record)
            sizes[place] = logical_bytes(content, found)
            kept[place] = 1 if references is None else references[place]
        if buffers:
            self._segment.file().append(buffers)
        self._count_in(account, sizes, kept)

    def _compressed(self, content: bytes, found: Record) -> tuple[bytes, int]:
        """A message's payload and flags: compressed now, where it was not before."""
        payload = content[found.payload_offset : found.end]
        if found.flags or self._compressor is None:
            return payload, found.flags
        head_bytes = head_size(payload)
        body = self._compressor.compress(payload[head_bytes:])
        return (payload, 0) if body is None else (payload[:head_bytes] + body, COMPRESSED)

    def _count_in(self, account: Account, sizes: array[int], kept: array[int]) -> None:
        """Account for what was kept; ids between are nobody's."""
        if sizes:
            before = self._account.count
            self._account.add(account.first_id, sizes, kept)
            # Only what is there counts, not the ids between.
            self._account.count = before + len(kept) - kept.count(0)

    def _check(self) -> None:
        """Read back what was written, and see that it is all there. Raises: DamageError."""
        segment = self._segment
        content = segment.file().read(0, segment.size)
        found = 0
        for record in scan(content, self._number, self._seed):
            if isinstance(record, Gap):
                raise DamageError(segment.path, record.offset, f"after compaction: {record.reason}")
            found += record.kind == Kind.MESSAGE
        if found != self._account.count:
            reason = f"{found} messages are there after compaction, of {self._account.count}"
            raise DamageError(segment.path, 0, reason)


def remove_compacted(files: Files, directory: str, compacted: Compacted) -> None:
    """Remove the old files, which nobody reads any more; damaged ones go to quarantine."""
    damaged = {path for path, *_ in compacted.damage}
    for number in compacted.numbers:
        path = segment_path(directory, number)
        if path in damaged:
            quarantine = f"{directory}/{QUARANTINE}"
            files.make_directory(quarantine)
            files.rename(path, f"{quarantine}/{number:010}.segment")
        else:
            with contextlib.suppress(FileNotFoundError):
                files.remove(path)
