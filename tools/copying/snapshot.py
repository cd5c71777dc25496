"""What a store is made of at one instant, while a broker may be writing it.

A store is a catalog, files that the catalog names, and the log behind the catalog's position. The
catalog alone changes all at once: so an instant is a catalog and an end of the log that were there
together. It is found like this:

1. Begin a read transaction of the catalog: LMDB keeps what it sees as it is.
2. List the segments, and note the size of the log's last one.
3. See that nothing was committed to the catalog since 1, or begin anew.

So the catalog of 1 was the catalog when the log ended where 2 saw it. A queue's row is committed
before the log speaks of the queue, and what moved out of a queue is durable before its row is
removed: neither can be in the one and not in the other.

What 2 saw of the last batch may not be durable yet, or be a part of it: the copy ends where the
last whole batch ends, which is what recovery would do. Nothing that was confirmed before 1 is
behind that. The segments before the last are whole: a new one is begun when the last batch of the
one before is durable.

The files may be removed as soon as a later commit no longer names them. So they are pinned (see
`pinning`), and where one was gone already, everything begins anew with a later instant. A file
that is missing while the catalog is still the one that names it was lost, and is damage. Nothing
else can happen to them: segments of the log before the last, and compacted ones, are never written
again, and index files only behind the end that the catalog gives.

Where no broker has the store open, brokers are kept out until the files are pinned.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import lmdb
import msgpack

from amqpstore import marker
from amqpstore.catalog import TABLES
from amqpstore.checkpoint import POSITION
from amqpstore.errors import DamageError, NotAStoreError
from amqpstore.filenames import (
    CATALOG,
    FIRST_COMPACTED,
    INDEX,
    MARKER,
    QUARANTINE,
    SEGMENTS,
    index_path,
    segment_number,
    segment_path,
)
from amqpstore.files import OsFiles
from amqpstore.lmdb_pages import check_pages
from amqpstore.log import START, Position
from tools.copying.errors import CopyError
from tools.copying.locks import shared

_ATTEMPTS = 1000

Tables = dict[bytes, list[tuple[bytes, bytes]]]
"""The catalog as it is: rows by the name of their table."""


class Part(NamedTuple):
    """A file of a store, or the beginning of one.

    `path` from the store's directory on; `number` of a segment or an index file. A sealed one is
    never written again; of another the first `size` bytes are part of the store. `end` is where
    what is sound in it ends, None is all. `is_tail`: the log may go on in it. `is_optional`: it
    may be gone. `queue_id` of an index file.
    """

    path: str
    number: int = 0
    is_sealed: bool = True
    size: int = 0
    end: int | None = None
    is_tail: bool = False
    is_optional: bool = False
    queue_id: int = 0


@dataclass
class Snapshot:
    """A store at one instant. `transaction_id` is LMDB's, of the catalog.

    `missing` are paths of files that it should have.
    """

    transaction_id: int
    tables: Tables
    position: Position
    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def rows(self, table: str) -> dict[str, Any]:
        """The rows of a table, decoded."""
        return {
            key.decode(): msgpack.unpackb(value, strict_map_key=False)
            for key, value in self.tables.get(table.encode(), [])
        }


class Source:
    """A store that is read, and that a broker may have open. Made by `open_source`."""

    def __init__(self, directory: str, store_id: bytes, *, is_running: bool) -> None:
        self.directory = directory
        self.store_id = store_id
        self.is_running = is_running
        self._environment = self._open()

    def close(self) -> None:
        """Close the catalog."""
        self._environment.close()

    def snapshot(self) -> Snapshot:
        """The store as it is now. Raises: DamageError, CopyError, OSError."""
        path = os.path.join(self.directory, CATALOG, "data.mdb")
        for _ in range(_ATTEMPTS):
            try:
                if snapshot := self._attempt():
                    return snapshot
            except lmdb.MapResizedError:
                # The catalog has outgrown what is mapped here.
                self._environment.close()
                self._environment = self._open()
            except (lmdb.Error, ValueError, KeyError, msgpack.UnpackException) as error:
                raise DamageError(path, 0, str(error)) from error
        raise CopyError(
            f"the catalog of {self.directory} changes without a pause. Try again when fewer queues "
            "and bindings come and go."
        )

    def is_still(self, snapshot: Snapshot) -> bool:
        """Whether the catalog is still the one of the snapshot."""
        return bool(self._environment.info()["last_txnid"] == snapshot.transaction_id)

    def _open(self) -> lmdb.Environment:
        path = os.path.join(self.directory, CATALOG)
        file_path = os.path.join(path, "data.mdb")
        if not self.is_running:
            check_pages(file_path)
        elif not os.access(lock_path := os.path.join(path, "lock.mdb"), os.R_OK | os.W_OK):
            reason = "to read the catalog of a running broker takes the right to write here"
            raise PermissionError(errno.EACCES, reason, lock_path)
        try:
            return lmdb.open(
                path,
                readonly=True,
                lock=self.is_running,
                create=False,
                max_dbs=4 * len(TABLES),
                readahead=False,
            )
        except lmdb.Error as error:
            raise DamageError(file_path, 0, str(error)) from error

    def _attempt(self) -> Snapshot | None:
        with self._environment.begin() as transaction:
            segments = f"{self.directory}/{SEGMENTS}"
            numbers = [segment_number(name) for name in _names(segments)]
            known = sorted(number for number in numbers if number is not None)
            of_log = [number for number in known if number < FIRST_COMPACTED]
            try:
                size = os.stat(segment_path(self.directory, of_log[-1])).st_size if of_log else 0
            except FileNotFoundError:
                return None
            snapshot = Snapshot(transaction.id(), {}, START)
            if not self.is_still(snapshot):
                return None
            with transaction.cursor() as names:
                for key in names.iternext(keys=True, values=False):
                    name = bytes(key)
                    table = self._environment.open_db(name, txn=transaction, create=False)
                    snapshot.tables[name] = list(transaction.cursor(table))
        if row := snapshot.rows("store").get(POSITION):
            snapshot.position = Position(**row)
        self._add_segments(snapshot, known, of_log, size)
        for index_key, row in snapshot.rows(INDEX).items():
            queue_id, number = int(index_key.partition("-")[0]), row["number"]
            path = index_path("", queue_id, number)
            end = row["end_bytes"]
            snapshot.parts.append(
                Part(path, number, is_sealed=False, size=end, end=end, queue_id=queue_id)
            )
        for file_name in _names(f"{self.directory}/{QUARANTINE}"):
            snapshot.parts.append(Part(f"{QUARANTINE}/{file_name}", is_optional=True))
        return snapshot

    def _add_segments(
        self, snapshot: Snapshot, known: list[int], of_log: list[int], size: int
    ) -> None:
        """The segments with a row, those of the log behind the position, and the last one's end."""
        ends = {int(key): row["end"] for key, row in snapshot.rows("ends").items()}
        rows = {int(key) for key in snapshot.rows("segments")}
        first = max(snapshot.position.segment, 1)
        behind = [number for number in of_log if number >= first]
        last = max([snapshot.position.segment, *behind])
        expected = {*range(first, last + 1), *rows} if last else rows
        for number in sorted({*expected, *behind}):
            path = segment_path("", number)
            end = ends.get(number)
            if number not in known and number not in rows:
                snapshot.missing.append(path)
            elif number == last and end is None:
                snapshot.parts.append(Part(path, number, is_sealed=False, size=size, is_tail=True))
            else:
                snapshot.parts.append(Part(path, number, end=end))
        # Those that the next start would move there.
        for number in sorted({int(key) for key in snapshot.rows(QUARANTINE)} & set(known)):
            if number not in expected and number not in behind:
                snapshot.parts.append(Part(segment_path("", number), is_optional=True))


@contextlib.contextmanager
def open_source(directory: str, *, held: bool = False) -> Iterator[Source]:
    """A store that is there. Brokers are kept out, where none has it open, until the end.

    Args: held, whether the caller has its lock.
    Raises: NotAStoreError, FormatVersionError, DamageError (its marker or its catalog), OSError.
    """
    if not os.path.isdir(directory):
        raise NotAStoreError(directory, "it is no directory")
    store_id = marker.read(OsFiles(), directory)
    if store_id is None:
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    with contextlib.nullcontext(False) if held else shared(directory) as is_running:
        source = Source(directory, store_id.bytes, is_running=is_running)
        try:
            yield source
        finally:
            source.close()


def _names(directory: str) -> list[str]:
    try:
        return OsFiles().list_directory(directory)
    except FileNotFoundError:
        return []
