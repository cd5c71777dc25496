"""Stores of a few KiB that claim to hold more than any machine has, by someone who knows their id.

Run as a program, this opens one in little memory, takes what is ready, and uses it.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
from collections.abc import Callable, Mapping

import zstandard
from crc32c import crc32c

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import Change, LmdbCatalog, Value
from amqpstore.format.index import BLOCK
from amqpstore.format.records import (
    MAGIC,
    Kind,
    Operation,
    OperationKind,
    encode_record,
    encode_transaction,
)
from amqpstore.identity import marker
from amqpstore.system.filenames import INDEX, segment_path
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker

MEMORY_BYTES = 2 << 30
ENVELOPE = Envelope("", "q", bytes.fromhex("100002"))
OPTIONS = Options(
    checkpoint_bytes=1 << 60, checkpoint_messages=1 << 60, checkpoint_ms=1 << 60, reserve_bytes=0
)


def limit_memory() -> None:
    """Let this process have `MEMORY_BYTES` of addresses and no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def opened(directory: str) -> Store:
    return Store.open(directory, options=OPTIONS, worker=InlineWorker())


def store_of_two(directory: str) -> None:
    """A closed store with two messages in one queue."""
    with opened(directory) as store:
        queue = store.create_queue({"name": "q", "vhost": "/"})
        store.publish([queue], [Message(ENVELOPE, b"a"), Message(ENVELOPE, b"b")])
        store.sync()


def frame_of_zeros(size: int) -> bytes:
    """A zstd frame of `size` zeros."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    piece = bytes(1 << 20)
    frames = [compressor.compress(piece) for _ in range(size >> 20)]
    return b"".join([*frames, compressor.flush()])


def frame_that_claims(size: int) -> bytes:
    """A frame of one empty block that says that it holds `size` bytes."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, size) + b"\1\0\0"


def seed_of(directory: str) -> int:
    found = marker.read(OsFiles(), directory)
    assert found
    return found.seed


def change(directory: str, table: str, **values: Value) -> None:
    """Change the first row of a table."""
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    key, row = next(iter(catalog.rows(table).items()))
    catalog.commit([Change(table, key, {**row, **values})])
    catalog.close()


def append(directory: str, *records: bytes) -> None:
    """Write a segment of these records behind the log, which is sound."""
    opened(directory).close()
    with open(segment_path(directory, 2), "xb") as file:
        file.write(b"".join(records))


def body(directory: str, frame: bytes, count: int = 1) -> None:
    """Messages with this as their compressed body, that are in the queue."""
    seed = seed_of(directory)
    payload = struct.pack(">BBI", 0, 0, 0) + frame
    messages = [
        encode_record(Kind.MESSAGE, 3 + place, 2, payload, seed=seed, batch=2, flags=1)
        for place in range(count)
    ]
    enqueue = Operation(OperationKind.ENQUEUE, count, 1, 3, 3)
    append(directory, *messages, encode_transaction([enqueue], 2, 2, 1, seed=seed))


def index(directory: str, *blocks: bytes) -> None:
    """An index file of these payloads in the place of the one that is there."""
    seed = seed_of(directory)
    (name,) = os.listdir(os.path.join(directory, INDEX))
    records = [
        encode_record(Kind.INDEX, place, 1, payload, seed=seed)
        for place, payload in enumerate(blocks, 1)
    ]
    content = b"".join(records)
    with open(os.path.join(directory, INDEX, name), "wb") as file:
        file.write(content)
    change(directory, "index", end_bytes=len(content))


def operations(directory: str, *given: Operation) -> None:
    seed = seed_of(directory)
    payload = struct.pack(">BBI", 0, 0, 0)
    message = encode_record(Kind.MESSAGE, 3, 2, payload, seed=seed, batch=2)
    append(directory, message, encode_transaction(given, 2, 2, 1, seed=seed))


def nested(directory: str, count: int) -> None:
    """Sound headers, each of which says that all behind it is its payload, which is not sound."""
    seed = seed_of(directory)
    headers = [b"\0"]
    for place in range(count):
        rest = (count - place - 1) * 32
        lead = struct.pack(">4sBBHQII", MAGIC, Kind.MESSAGE, 0, 2, 10 + place, 2, rest)
        headers.append(lead + struct.pack(">II", crc32c(lead, seed), 0))
    append(directory, *headers)


def sparse(directory: str, path: str) -> None:
    """A file that ends far behind its last byte."""
    os.truncate(os.path.join(directory, path), 1 << 42)


ENQUEUE, ACK, DELIVERED = OperationKind.ENQUEUE, OperationKind.ACK, OperationKind.DELIVERED
_COLUMNS_BYTES = 38 * 16_384

BOMBS: Mapping[str, Callable[[str], None]] = {
    "a body of 4 GiB": lambda to: body(to, frame_of_zeros(4 << 30)),
    "bodies of 128 MiB": lambda to: body(to, frame_of_zeros(128 << 20), 30),
    "a body that claims 2^50 bytes": lambda to: body(to, frame_that_claims(1 << 50)),
    "a body that claims 1 GiB": lambda to: body(to, frame_that_claims(1 << 30), 20),
    "an index block of 4 GiB": lambda to: index(to, BLOCK.pack(1, 2) + frame_of_zeros(4 << 30)),
    "an index block that claims 2^50 bytes": lambda to: index(
        to, BLOCK.pack(1, 2) + frame_that_claims(1 << 50)
    ),
    "an index block of 2^32 entries": lambda to: index(
        to, BLOCK.pack(1, (1 << 32) - 1) + frame_that_claims(38 * ((1 << 32) - 1))
    ),
    "many whole index blocks": lambda to: index(
        to,
        *[
            BLOCK.pack(1, 16_384)
            + zstandard.compress(b"\0\0\0\0\0\0\0\1" * 32_768 + bytes(_COLUMNS_BYTES - 262_144))
        ]
        * 4_000,
    ),
    "ids 2^40 apart": lambda to: operations(
        to, Operation(ENQUEUE, 1, 1, 3, 3), Operation(ENQUEUE, 1, 1, 4, 3 + (1 << 40))
    ),
    "2^32 messages in an operation": lambda to: operations(
        to, Operation(ENQUEUE, (1 << 32) - 1, 1, 3, 3)
    ),
    "sequences beyond 2^64": lambda to: operations(to, Operation(ENQUEUE, 1, 1, (1 << 64) - 1, 3)),
    "2^32 messages acked": lambda to: operations(
        to, Operation(ENQUEUE, 1, 1, 3, 3), Operation(ACK, (1 << 32) - 1, 1, 1)
    ),
    "delivered 2^63 times": lambda to: operations(
        to, Operation(ENQUEUE, 1, 1, 3, 3), Operation(DELIVERED, 1, 1, 3, 0, 1 << 63)
    ),
    "an operation of an unknown kind": lambda to: operations(to, Operation(9, 1, 1, 1)),
    "nested headers": lambda to: nested(to, 1 << 16),
    "a segment that ends nowhere": lambda to: sparse(to, "segments/0000000001.segment"),
    "an index file that ends nowhere": lambda to: sparse(
        to, "index/00000000000000000001-0000000001.index"
    ),
    "an index row of 2^62 bytes": lambda to: change(to, "index", end_bytes=1 << 62),
    "an index row of 2^62 entries": lambda to: change(to, "index", entries=1 << 62),
    "a segment's row of 2^62 bytes": lambda to: change(to, "segments", end_bytes=1 << 62),
    "a segment's row of 2^62 ids": lambda to: change(
        to, "segments", end_id=1 << 62, count=(1 << 62) - 1, live_count=(1 << 62) - 1
    ),
    "marks far outside": lambda to: change(to, "marks", offsets=[1 << 62]),
    "a position far outside": lambda to: _put(to, "store", "position", segment=80_000_003),
    "an end far outside": lambda to: _put(to, "ends", "0080000003", end=1),
    "an end of a compacted segment": lambda to: _put(to, "ends", "4294967295", end=1),
}


def _put(directory: str, table: str, key: str, **values: Value) -> None:
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    row = catalog.rows(table).get(key, {})
    catalog.commit([Change(table, key, {**row, **values})])
    catalog.close()


def use(directory: str) -> None:
    """Open the store, take what is ready, publish, and make a checkpoint and compact."""
    store = opened(directory)
    for queue in list(store.queues.values()):
        take_all(store, queue)
        store.publish([queue], [Message(ENVELOPE, b"new")])
    store.sync()
    store.upkeep.checkpoint()
    store.upkeep.compact()
    store.close()


def take_all(store: Store, queue: Queue) -> None:
    while queue.ready_count:
        run = store.take(queue, 10)
        if isinstance(run, Run):
            store.ack(queue, run)
        del run


if __name__ == "__main__":
    limit_memory()
    use(sys.argv[1])
