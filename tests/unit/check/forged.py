"""A store whose log is written by hand: with right checksums, and any content."""

import os

from amqpstore import Envelope, Options, Store
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.format.message import encode_head
from amqpstore.format.records import (
    FORMAT_VERSION,
    Kind,
    Operation,
    OperationKind,
    checksum_seed,
    encode_record,
    encode_segment_header,
    encode_transaction,
)
from amqpstore.identity import marker
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from tests.unit.check.shuffled import ShuffledExecutor

ENQUEUE, ACK, DELIVERED, PURGE = OperationKind
BODY = encode_head("", "orders", b"") + b"body"
ENVELOPE = Envelope("", "orders", b"\x10\x00\x02")
OPTIONS = Options(reserve_bytes=0, least_free_bytes=0)


class Forged:
    """A store in `directory` with the queues 1 and 2, and a log that is written by hand."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        store = Store.open(directory, options=OPTIONS, worker=InlineWorker())
        for name in ("orders", "audit"):
            store.create_queue({"vhost": "/", "name": name})
        store.close()
        found = marker.read(OsFiles(), directory)
        assert found
        self.store_id = found.store_id.bytes
        self.seed = checksum_seed(self.store_id)

    def segment(self, number: int, *parts: bytes, note_end: bool = True) -> str:
        """Write a segment of these records. Returns its name."""
        content = encode_segment_header(number, FORMAT_VERSION, self.store_id, 1) + b"".join(parts)
        name = f"segments/{number:010}.segment"
        with open(os.path.join(self.directory, name), "wb") as file:
            file.write(content)
        if note_end:
            self.rows(Change("ends", f"{number:010}", {"end": len(content)}))
        return name

    def batch(
        self,
        lsn: int,
        ids: range,
        *operations: Operation,
        segment: int = 1,
        payload: bytes = BODY,
        flags: int = 0,
    ) -> bytes:
        """Records of a batch; without operations, one ENQUEUE to queue 1."""
        found = [
            encode_record(
                Kind.MESSAGE, one, segment, payload, seed=self.seed, batch=lsn, flags=flags
            )
            for one in ids
        ]
        if not operations:
            operations = (Operation(ENQUEUE, len(ids), 1, ids.start, ids.start),)
        return b"".join([*found, encode_transaction(operations, lsn, segment, 1, seed=self.seed)])

    def rows(self, *changes: Change) -> None:
        """Put rows in the catalog."""
        catalog = LmdbCatalog(os.path.join(self.directory, "catalog"), False)
        catalog.commit(changes)
        catalog.close()

    def found(self) -> dict[str, str]:
        """Return what a check finds, in whatever order it is done: the first text of each code."""
        findings = list(check(self.directory).findings)
        assert list(check(self.directory, executor=ShuffledExecutor(1)).findings) == findings
        found: dict[str, str] = {}
        for one in findings:
            found.setdefault(one.code, one.text)
        return found


def op(
    kind: int, count: int, queue: int, first: int, first_id: int = 0, detail: int = 0
) -> Operation:
    return Operation(kind, count, queue, first, first_id, detail)
