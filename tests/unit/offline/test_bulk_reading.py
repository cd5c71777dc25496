"""Messages read in columns are those that the engine reads one by one, whatever is damaged."""

from __future__ import annotations

import os
import random
import shutil
import tracemalloc
from array import array
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.log.segments import Segment
from amqpstore.system.filenames import SEGMENTS
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.offline import bulk_reading
from amqpstore_tools.offline.bulk_reading import BulkReader, Contents
from amqpstore_tools.offline.image import StoreImage

COUNT = 400
Read = list[tuple[str, str, bytes, bytes | None]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store: messages of several sizes, some compressed, one longer than what is read at
    once.
    """
    path = tmp_path_factory.mktemp("bulk") / "store"
    options = Options(segment_bytes=1 << 14, compress_from_bytes=600, reserve_bytes=0)
    rng = random.Random(1)
    with Store.open(str(path), options=options, worker=InlineWorker()) as opened:
        queue = opened.create_queue({"vhost": "/", "name": "q"})
        for number in range(COUNT):
            size = rng.choice([0, 9, 90, 900]) if number != 100 else 3 << 20
            body = rng.randbytes(size) if number % 3 else b"x" * size
            opened.publish([queue], [Message(Envelope("ex", f"k{number}", b"%d" % number), body)])
            if not rng.randrange(4):
                opened.sync()
    return path


@pytest.fixture
def copied(store: Path, tmp_path: Path) -> Path:
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


def damage(store: Path, rng: random.Random) -> None:
    """Damage a segment in one of the usual ways."""
    path = store / SEGMENTS / rng.choice(sorted(os.listdir(store / SEGMENTS)))
    content = bytearray(path.read_bytes())
    offset = rng.randrange(len(content))
    kind = rng.choice(["flip", "page", "cut", "copy"])
    if kind == "flip":
        content[offset] ^= 1 << rng.randrange(8)
    elif kind == "page":
        content[offset : offset + 4096] = bytes(len(content[offset : offset + 4096]))
    elif kind == "cut":
        del content[offset:]
    else:
        content[offset : offset + 8192] = content[:8192]
    path.write_bytes(content)


def in_columns(image: StoreImage, ids: array[int]) -> Read:
    found: Read = []
    for part in BulkReader(image.recovered.segments, image.decoder, image.seed).read(ids):
        assert isinstance(part, Contents)
        found += zip(*part, strict=True)
    return found


def one_by_one(image: StoreImage, ids: array[int]) -> Read:
    found: Read = []
    for message_id in ids:
        of = [one for one in image.recovered.segments if one.first_id <= message_id < one.end_id]
        read = of[0].read(message_id, 1, image.decoder) if of else None
        if isinstance(read, list):
            envelope = read[0].envelope
            found.append(
                (envelope.exchange, envelope.routing_key, envelope.properties, read[0].body)
            )
        else:
            found.append(("", "", b"", None))
    return found


def test_a_segment_of_which_everything_is_wanted_is_read_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_through: list[int] = []
    starts_of = bulk_reading._starts

    def noted(segment: Segment, seed: int) -> tuple[array[int], array[int]]:
        looked_through.append(segment.number)
        return starts_of(segment, seed)

    monkeypatch.setattr(bulk_reading, "_starts", noted)
    with StoreImage.open(str(store)) as image:
        segments = [one for one in image.recovered.segments if not one.is_empty]
        assert len(segments) > 2
        whole = in_columns(image, array("Q", range(1, COUNT + 1)))
        # All but that with the message that is longer than what is read at once.
        assert looked_through == [
            one.number for one in segments if one.first_id <= 101 < one.end_id
        ]
        ids = array("Q", range(1, COUNT + 1, 3))
        assert in_columns(image, ids) == whole[::3]
        assert {*looked_through} == {one.number for one in segments}


def test_all_messages(store: Path) -> None:
    with StoreImage.open(str(store)) as image:
        found = in_columns(image, array("Q", range(1, COUNT + 1)))
        assert [one[2] for one in found] == [b"%d" % number for number in range(COUNT)]
        assert found == one_by_one(image, array("Q", range(1, COUNT + 1)))


def test_reading_few_messages_copies_nothing_of_the_whole_segment(tmp_path: Path) -> None:
    """An export of many queues reads a segment a queue at a time: it would take as long as the
    square of their number.
    """
    count = 20_000
    with Store.open(str(tmp_path), worker=InlineWorker()) as opened:
        queue = opened.create_queue({"vhost": "/", "name": "q"})
        opened.publish([queue], [Message(Envelope("", "q", b""), b"")] * count)
    with StoreImage.open(str(tmp_path)) as image:
        reader = BulkReader(image.recovered.segments, image.decoder, image.seed)
        list(reader.read(array("Q", [count // 2])))
        tracemalloc.start()
        (found,) = reader.read(array("Q", [count - 1]))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.bodies == [b""]
    assert peak_bytes < count


@pytest.mark.parametrize("read_bytes", [1 << 10, 1 << 17])
@pytest.mark.parametrize("sparse_bytes", [0, 1 << 30])
@pytest.mark.parametrize("seed", range(12))
def test_some_messages_of_a_damaged_store(
    copied: Path, monkeypatch: pytest.MonkeyPatch, seed: int, sparse_bytes: int, read_bytes: int
) -> None:
    monkeypatch.setattr(bulk_reading, "_READ_BYTES", read_bytes)
    monkeypatch.setattr(bulk_reading, "_SPARSE_BYTES", sparse_bytes)
    monkeypatch.setattr(bulk_reading, "_MAX_STARTS", 100)
    rng = random.Random(seed)
    with StoreImage.open(str(copied)) as image:
        # Which messages there are is known from before the damage.
        assert len(image.recovered.segments) > 2
        for _ in range(rng.randint(1, 4)):
            damage(copied, rng)
        step = rng.choice([1, 1, 3, 10])
        ids = array("Q", range(1, COUNT + 50, step))
        assert in_columns(image, ids) == one_by_one(image, ids)
