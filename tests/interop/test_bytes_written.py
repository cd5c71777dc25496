"""The cost of a durable message of 1 KiB on disk, beside a plain append, SQLite and LevelDB.

The tests print a table, and hold it against a limit: on the file system beside this checkout, and
on a new ext4 and XFS where they can be mounted.
"""

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpstore import SharedStore
from tests.bytes_written import KIB, counted_directory, device_bytes, disk_of, process_bytes

MESSAGES = 600
WARM_UP = 300
MOST_KIB = 8

Put = Callable[[bytes], object]


@contextmanager
def plain_append(directory: str) -> Iterator[Put]:
    with open(f"{directory}/file", "ab", buffering=0) as file:

        def put(body: bytes) -> None:
            file.write(body)
            os.fdatasync(file.fileno())

        yield put


@contextmanager
def sqlite(directory: str) -> Iterator[Put]:
    with closing(sqlite3.connect(f"{directory}/db", isolation_level=None)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=full")
        database.execute("create table messages (id integer primary key, body blob)")
        yield lambda body: database.execute("insert into messages (body) values (?)", [body])


@contextmanager
def leveldb(directory: str) -> Iterator[Put]:
    plyvel = pytest.importorskip("plyvel")
    with closing(plyvel.DB(f"{directory}/db", create_if_missing=True)) as database:
        writer = database.write_batch  # each batch is one sync

        def put(body: bytes) -> None:
            with writer(sync=True) as batch:
                batch.put(time.monotonic_ns().to_bytes(8, "big"), body)

        yield put


@contextmanager
def amqpstore(directory: str) -> Iterator[Put]:
    with SharedStore.open(f"{directory}/store") as store:
        store.declare("orders")

        def put(body: bytes) -> None:
            with store.transaction() as transaction:
                transaction.send("orders", [body])

        yield put


@contextmanager
def amqpstore_consumed(directory: str) -> Iterator[Put]:
    """Each message is received in the transaction of the next."""
    with SharedStore.open(f"{directory}/store") as store:
        store.declare("orders")
        with store.transaction() as transaction:
            transaction.send("orders", [b"the first"])

        def put(body: bytes) -> None:
            with store.transaction() as transaction:
                transaction.receive("orders")
                transaction.send("orders", [body])

        yield put


WRITERS = {
    "plain append": plain_append,
    "SQLite, WAL": sqlite,
    "LevelDB": leveldb,
    "amqpstore": amqpstore,
    "amqpstore, consumed": amqpstore_consumed,
}


class Cost(NamedTuple):
    """The cost of one message: KiB that this process wrote, KiB that the device wrote for any
    process, and ms.
    """

    process_kib: float
    device_kib: float
    ms: float


def cost_of(put: Put, directory: str) -> Cost:
    bodies = [os.urandom(KIB) for _ in range(WARM_UP + MESSAGES)]
    for body in bodies[:WARM_UP]:
        put(body)
    process, device, began_s = process_bytes(), device_bytes(directory), time.perf_counter()
    for body in bodies[WARM_UP:]:
        put(body)
    seconds = time.perf_counter() - began_s
    return Cost(
        (process_bytes() - process) / MESSAGES / KIB,
        (device_bytes(directory) - device) / MESSAGES / KIB,
        seconds / MESSAGES * 1000,
    )


def table(kind: str, costs: dict[str, Cost]) -> str:
    lines = [f"{kind:24}{'process, KiB':>14}{'device, KiB':>14}{'ms':>8}"]
    for name, (process_kib, device_kib, ms) in costs.items():
        lines.append(f"{name:24}{process_kib:14.1f}{device_kib:14.1f}{ms:8.2f}")
    return "\n" + "\n".join(lines) + "\n"


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["beside the checkout", "ext4", "xfs"])
def test_a_durable_message_writes_little_more_than_a_plain_append(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as disks:
        if kind == "beside the checkout":
            directory = disks.enter_context(counted_directory())
        else:
            directory = disks.enter_context(disk_of(kind, str(tmp_path / "disk"), 1024))
        costs = {}
        for name, writer in WRITERS.items():
            os.mkdir(own := f"{directory}/{name}")
            with writer(own) as put:
                costs[name] = cost_of(put, own)
    with capsys.disabled():
        sys.stdout.write(table(kind, costs))
    assert costs["amqpstore"].process_kib <= MOST_KIB
    assert costs["amqpstore, consumed"].process_kib <= MOST_KIB
