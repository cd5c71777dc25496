"""A repair of any damage never fails, invents nothing, and loses nothing that is sound."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from amqpstore.errors import FormatVersionError, NotAStoreError
from amqpstore.format.records import (
    Gap,
    Kind,
    OperationKind,
    decode_transaction,
    scan,
)
from amqpstore.identity import marker
from amqpstore.system.filenames import FIRST_COMPACTED, segment_number
from amqpstore.system.files import OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.errors import UnknownStoreError
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.names import LOST_AND_FOUND
from amqpstore_tools.repair.ranges import Ranges
from amqpstore_tools.repair.undo import undo
from fixtures.survivors import opened
from tests.unit.check.stores import History
from tests.unit.repair.mending import mend

SEEDS = range(20)

Content = dict[str, Any]


class Before:
    """A sound store, and what is known of it."""

    def __init__(self, directory: str, seed: int) -> None:
        self.directory = directory
        history = History(directory, seed)
        history.steps(150)
        if seed % 3:
            history.close()
        if seed % 3 == 1:
            history.steps(20)
        if seed % 3 != 2:
            history.store.sync()
            history.abandon()
        found = marker.read(OsFiles(), directory)
        assert found is not None
        self.seed = found.seed
        self.queues = opened(directory)
        self.records = sound_messages(directory, self.seed)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Before]:
    path = tmp_path_factory.mktemp("stores")
    return [Before(str(path / f"store{seed}"), seed) for seed in range(6)]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_damage(stores: list[Before], tmp_path: Path, seed: int) -> None:
    look_at(stores[seed % len(stores)], tmp_path, random.Random(seed), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_damages(stores: list[Before], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed + 500)
    look_at(stores[seed % len(stores)], tmp_path, rng, rng.randint(2, 6))


@pytest.mark.long
@pytest.mark.rounds(200)
def test_any_damage(stores: list[Before], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    look_at(stores[seed % len(stores)], tmp_path, rng, rng.randint(1, 4))


def look_at(before: Before, tmp_path: Path, rng: random.Random, count: int) -> None:
    """Damage a copy `count` times, repair it, and see what is left."""
    directory = str(shutil.copytree(before.directory, tmp_path / "store"))
    done = [damage(directory, rng) for _ in range(count)]
    damaged = listing(directory)
    try:
        plan, repair = mend(directory)
    except (FormatVersionError, NotAStoreError, UnknownStoreError):
        assert listing(directory) == damaged, done
        return
    assert not check(directory).is_damaged, done
    after = opened(directory)
    assert invented(before, after) == [], done
    if repair is not None:
        is_catalog_lost = any("the catalog is lost" in note for note in plan.notes)
        lost = missing(before, after, directory, repair.path, is_catalog_lost=is_catalog_lost)
        assert lost == [], (done, plan.notes)
        undo(directory)
        assert listing(directory) == damaged, done


def damage(directory: str, rng: random.Random) -> str:
    """Do something to some file. Returns what."""
    names = sorted(
        name
        for name, row in listing(directory).items()
        if row[0] == "file" and not name.startswith("catalog/definitions.")
    )
    name = rng.choice(names)
    path = os.path.join(directory, name)
    size = os.path.getsize(path)
    kind = rng.choice(["flip", "flip", "flip", "truncate", "remove", "zero", "copy", "swap"])
    offset = rng.randrange(max(size, 1))
    if kind == "flip" and size:
        with open(path, "r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    elif kind == "truncate":
        os.truncate(path, offset)
    elif kind == "remove":
        os.remove(path)
    elif kind == "zero" and size:
        with open(path, "r+b") as file:
            start = offset // 4096 * 4096
            file.seek(start)
            file.write(bytes(min(4096, size - start)))
    else:
        other = rng.choice(
            [one for one in names if one.partition("/")[0] == name.partition("/")[0]]
        )
        if kind == "copy" and segment_number(os.path.basename(name)):
            other = f"segments/{rng.randrange(1, 60):010}.segment"
        if other != name:
            shutil.copyfile(path, os.path.join(directory, other))
        return f"{kind} {name} {other}"
    return f"{kind} {name} {offset}"


def sound_messages(directory: str, seed: int) -> dict[int, bytes]:
    """Return what sound MESSAGE records say, by id: without the part that compression changes."""
    found: dict[int, bytes] = {}
    for path in segment_files(directory):
        number = segment_number(os.path.basename(path)) or 0
        content = Path(path).read_bytes()
        for one in scan(content, number, seed):
            if not isinstance(one, Gap) and one.kind == Kind.MESSAGE:
                found[one.number] = content[one.payload_offset : one.end]
    return found


def segment_files(directory: str) -> list[str]:
    path = os.path.join(directory, "segments")
    names = os.listdir(path) if os.path.isdir(path) else []
    return [os.path.join(path, name) for name in sorted(names) if segment_number(name)]


def invented(before: Before, after: Content) -> list[str]:
    """Return what was never published, or is in one queue twice."""
    known = {
        message["id"]: message["body"]
        for queue in before.queues.values()
        for message in queue["messages"]
    }
    found = []
    for name, queue in after.items():
        ids = [message.get("id") for message in queue["messages"]]
        if len(ids) != len(set(ids)):
            found.append(f"{name} has a message twice")
        for message in queue["messages"]:
            if "error" in message:
                found.append(f"{name}: {message}")
            elif message["id"] not in before.records:
                found.append(f"{name}: message {message['id']} was never there")
            elif known.get(message["id"], message["body"]) != message["body"]:
                found.append(f"{name}: message {message['id']} says something else")
    return found


def missing(
    before: Before, after: Content, directory: str, kept: str, *, is_catalog_lost: bool
) -> list[str]:
    """Return what was in a queue, whose record was sound still, and that is not there now.

    `kept` is where the repair has the files that it replaced. Without the catalog nothing counts
    the queues of a message: then it has to be in one of them, or among the lost.
    """
    sound: set[int] = set()
    scratch = os.path.join(kept, "old")
    for root in (directory, scratch):
        sound |= sound_messages(root, before.seed).keys()
    has_dictionary = needs_none(before, directory, scratch)
    torn = torn_ids(before.directory, before.seed)
    for root in (directory, scratch):
        torn |= torn_ids(root, before.seed)
    by_id: dict[int, dict[int, int]] = {}
    for queue in after.values():
        for message in queue["messages"]:
            by_id.setdefault(message["id"], {})[queue["id"]] = message["delivery_count"]
    lost_and_found = {queue["id"] for name, queue in after.items() if name == LOST_AND_FOUND}
    complaints = []
    for name, queue in before.queues.items():
        for message in queue["messages"]:
            homes = by_id.get(message["id"], {})
            if message["id"] not in sound - torn or message["id"] not in has_dictionary:
                continue
            if is_catalog_lost and homes:
                continue
            if queue["id"] not in homes and not lost_and_found & homes.keys():
                complaints.append(f"message {message['id']} of {name}: {homes}")
    return complaints


def needs_none(before: Before, directory: str, scratch: str) -> set[int]:
    """Ids of messages whose bodies can be read with what is left of the dictionaries."""
    readable = set(before.records)
    if os.path.exists(os.path.join(scratch, "catalog", "data.mdb")):
        # The catalog was replaced: what its dictionaries were needed for may be gone with it.
        for root in (directory, scratch):
            for path in segment_files(root):
                number = segment_number(os.path.basename(path)) or 0
                content = Path(path).read_bytes()
                for one in scan(content, number, before.seed):
                    if not isinstance(one, Gap) and one.kind == Kind.MESSAGE and one.flags:
                        readable.discard(one.number)
    return readable


def torn_ids(directory: str, seed: int) -> set[int]:
    """Messages of the log's last batch: damage to it cannot be told from a torn tail."""
    log = [
        path
        for path in segment_files(directory)
        if (segment_number(os.path.basename(path)) or 0) < FIRST_COMPACTED
    ]
    ids: set[int] = set()
    batch: set[int] = set()
    content = Path(log[-1]).read_bytes() if log else b""
    number = segment_number(os.path.basename(log[-1])) or 0 if log else 0
    for one in scan(content, number, seed):
        if isinstance(one, Gap):
            continue
        if one.kind == Kind.MESSAGE:
            batch.add(one.number)
        elif one.kind == Kind.TRANSACTION:
            ids, batch = batch, set()
    return ids | batch


def test_what_the_log_says_was_acked_is_not_served_again(
    stores: list[Before], tmp_path: Path
) -> None:
    """A sound ACK holds, whatever else is lost."""
    before = stores[0]
    for place, name in enumerate(["catalog/data.mdb", "index"]):
        directory = str(shutil.copytree(before.directory, tmp_path / f"store{place}"))
        path = os.path.join(directory, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        acked = acked_in(directory, before.seed)
        mend(directory)
        for queue_name, queue in opened(directory).items():
            if queue_name != LOST_AND_FOUND:
                for message in queue["messages"]:
                    assert message["sequence"] not in acked.get(queue["id"], Ranges())


def acked_in(directory: str, seed: int) -> dict[int, Ranges]:
    """Sequences that a sound ACK or PURGE names, by queue."""
    acked: dict[int, Ranges] = {}
    for path in segment_files(directory):
        number = segment_number(os.path.basename(path)) or 0
        content = Path(path).read_bytes()
        for one in scan(content, number, seed):
            if isinstance(one, Gap) or one.kind != Kind.TRANSACTION:
                continue
            for operation in decode_transaction(content[one.payload_offset : one.end], one.end)[1]:
                if operation.kind in (OperationKind.ACK, OperationKind.PURGE):
                    first = operation.first_sequence
                    end = first + operation.message_count
                    acked.setdefault(operation.queue_id, Ranges()).add(first, end)
    return acked
