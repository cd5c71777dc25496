"""A small durable batch costs on disk about what a plain append costs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.log.space import Space
from amqpstore.log.spares import Spares
from amqpstore.system.filenames import segment_path
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from tests.bytes_written import KIB, counted_directory, process_bytes
from tests.unit.engine.stores import Seconds

MOST_BYTES = 8 * KIB
"""Bytes of a batch of 1 KiB: a page, at times two, and zeros ahead. A plain append has 5 KiB."""

BATCHES = 100


@pytest.fixture
def directory() -> Iterator[str]:
    with counted_directory() as counted:
        yield counted


def test_a_small_batch_writes_little_where_the_log_is_filled(directory: str) -> None:
    options = Options(reserve_bytes=0, checkpoint_ms=1 << 60)
    with Store.open(directory, options=options, worker=InlineWorker()) as store:
        queue = store.create_queue({"name": "orders"})
        before = process_bytes()
        for _ in range(BATCHES):
            store.publish([queue], [Message(Envelope("", "orders"), os.urandom(KIB))])
            store.sync()
        assert process_bytes() - before < BATCHES * MOST_BYTES


def test_a_small_batch_writes_little_in_a_segment_that_is_used_again(directory: str) -> None:
    size = 1 << 20
    path = Path(segment_path(directory, 1))
    path.parent.mkdir()
    with path.open("wb", buffering=0) as segment:
        segment.write(os.urandom(size))  # in one call, as batches of heavy traffic
        os.fdatasync(segment.fileno())
    space = Space(OsFiles(), directory, least_free_bytes=0, reserve_bytes=0)
    spares = Spares(OsFiles(), directory, size, space, Seconds())
    spares.keep(1)
    file = spares.take(segment_path(directory, 2), 0)
    assert file is not None
    before = process_bytes()
    for _ in range(BATCHES):
        file.append([os.urandom(KIB)])
        file.datasync()
    file.close()
    assert process_bytes() - before < BATCHES * MOST_BYTES


def test_a_file_is_filled_a_page_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def noting(descriptor: int, content: bytes, offset: int) -> int:
        calls.append((offset, len(content)))
        return pwrite(descriptor, content, offset)

    file = OsFiles().create(str(tmp_path / "file"))
    file.append([b"x" * 5000])
    monkeypatch.setattr(os, "pwrite", noting)
    page = os.sysconf("SC_PAGESIZE")
    file.fill(5000, 5000 + 3 * page)
    assert file.read(0, 100_000) == b"x" * 5000 + bytes(3 * page)
    assert sum(size for _, size in calls) == 3 * page
    assert all(offset // page == (offset + size - 1) // page for offset, size in calls)
    file.close()
