"""Compressed bodies are smaller on disk, and the same for all readers."""

import json
import os
import random
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Options, Run, Store
from amqpstore.format.compression import Compressor, Decompressor, body_size, train
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import empty, messages

OFF = Options(segment_bytes=20_000, checkpoint_bytes=50_000, reserve_bytes=0, memory_bytes=0)
ON = OFF._replace(compress_from_bytes=100)
TRAINED = ON._replace(train_dictionary=True, compaction_bytes_s=1 << 40)


def texts(count: int, seed: int = 1) -> list[bytes]:
    """Bodies that are small and alike."""
    rng = random.Random(seed)
    return [
        json.dumps({"id": n, "email": f"{rng.random()}@example.org", "tags": ["x"]}).encode()
        for n in range(count)
    ]


def open_store(directory: Path, options: Options) -> Store:
    return Store.open(str(directory), options=options, worker=InlineWorker())


def segment_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "segments").iterdir())


def test_bodies_come_back_as_they_were_whatever_the_size(tmp_path: Path) -> None:
    rng = random.Random(0)
    bodies = [b"", b"x", bytes(99), bytes(100), bytes(5000), rng.randbytes(5000)]
    store = open_store(tmp_path, ON)
    queue = store.create_queue("q")
    store.publish([queue], messages(*bodies))
    store.sync()
    store.abandon()
    for _ in range(2):
        store = open_store(tmp_path, ON)
        (queue,) = store.queues.values()
        assert queue.ready_count == len(bodies)
        found = empty(store, queue)
        store.abandon()
        assert found == bodies


def test_what_is_worth_it_is_smaller_on_disk(tmp_path: Path) -> None:
    for name, options in (("off", OFF), ("on", ON)):
        store = open_store(tmp_path / name, options)
        store.publish([store.create_queue("q")], messages(*[b"the same " * 200] * 50))
        store.sync()
        store.abandon()
    assert segment_bytes(tmp_path / "on") < segment_bytes(tmp_path / "off") / 5


def test_bodies_written_before_it_was_turned_on_and_after_it_was_turned_off_are_read(
    tmp_path: Path,
) -> None:
    for options in (OFF, ON, OFF):
        store = open_store(tmp_path, options)
        queue = next(iter(store.queues.values()), None) or store.create_queue("q")
        store.publish([queue], messages(*[b"the same " * 200] * 50))
        store.close()
    store = open_store(tmp_path, ON)
    (queue,) = store.queues.values()
    assert empty(store, queue) == [b"the same " * 200] * 150
    store.close()


def test_garbage_is_counted_as_without_compression(tmp_path: Path) -> None:
    store = open_store(tmp_path, ON)
    queue = store.create_queue("q")
    store.publish([queue], messages(*[bytes(1000)] * 100))
    store.sync()
    store.upkeep.checkpoint()
    (account,) = store._maintenance._state.accounts
    assert account.live_bytes == account.total_bytes > 100_000
    run = store.take(queue, 60)
    assert isinstance(run, Run)
    store.ack(queue, run)
    store.sync()
    store.upkeep.checkpoint()
    assert account.live_bytes == account.total_bytes * 40 // 100
    store.abandon()
    # Recovery counts the same.
    store = open_store(tmp_path, ON)
    (account,) = store._maintenance._state.accounts
    assert account.live_bytes == account.total_bytes * 40 // 100
    store.close()


@pytest.mark.parametrize("options", [ON, TRAINED])
def test_compaction_compresses_what_was_not(tmp_path: Path, options: Options) -> None:
    bodies = texts(4000)
    store = open_store(tmp_path, OFF)
    keep, drop = store.create_queue("keep"), store.create_queue("drop")
    for start in range(0, len(bodies), 100):
        store.publish([keep], messages(*bodies[start : start + 100]))
        store.publish([drop], messages(*[bytes(300)] * 100))
        store.sync()
        store.purge(drop)
    store.close()
    before = segment_bytes(tmp_path)
    store = open_store(tmp_path, options)
    (keep,) = (queue for queue in store.queues.values() if queue.definition == "keep")
    store.upkeep.checkpoint()
    for _ in range(200):
        store.upkeep.housekeep()
    after = segment_bytes(tmp_path)
    assert after < before * 0.8
    if options.train_dictionary:
        assert len(store.definitions.rows("dictionaries")) == 1
    store.close()
    for reopened in (options, OFF):
        store = open_store(tmp_path, reopened)
        (keep,) = (queue for queue in store.queues.values() if queue.definition == "keep")
        read = store.log.read(1, 1)
        assert not isinstance(read, MessageDamagedError)
        assert empty(store, keep) == bodies
        store.abandon()


def test_a_dictionary_helps_where_bodies_are_small_and_alike() -> None:
    bodies = texts(1000)
    trained = train(bodies)
    assert trained is not None
    number, dictionary = trained
    compressor = Compressor(100, 3).with_dictionary(dictionary)
    compressed = [compressor.compress(body) for body in bodies]
    assert sum(len(one or b"?" * 70) for one in compressed) < sum(map(len, bodies)) * 0.7
    decompressor = Decompressor({number: dictionary})
    for body, one in zip(bodies, compressed, strict=True):
        if one is not None:
            assert decompressor.decompress(one) == body
            assert body_size(one) == len(body)


@pytest.mark.parametrize("bodies", [[], texts(10), [os.urandom(10_000)] * 100])
def test_there_is_no_dictionary_where_it_would_not_help(bodies: list[bytes]) -> None:
    assert train(bodies) is None


def test_what_is_no_zstd_frame_is_refused() -> None:
    for junk in (b"", b"junk", bytes(100)):
        with pytest.raises(ValueError):
            Decompressor({}).decompress(junk)
        with pytest.raises(ValueError):
            body_size(junk)


def test_a_body_whose_dictionary_is_lost_is_refused() -> None:
    trained = train(texts(1000))
    assert trained is not None
    body = texts(1)[0] * 3
    compressed = Compressor(10, 3, trained[1]).compress(body)
    assert compressed is not None
    with pytest.raises(ValueError, match="which is lost"):
        Decompressor({}).decompress(compressed)
