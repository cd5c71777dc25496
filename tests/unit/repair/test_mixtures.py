"""A store put together from several moments, damaged, renamed: repair reaches the optimum.

The optimum is each message that was in a queue to the end and whose record is in some file of the
directory: in its queue, or in one named after the queue's id, in order. Only a message of which
nothing says where it was may be in the queue of lost messages.

Past 600 lines because each mutant is caught by an example, and each example is a mixture.
"""

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore import Message, Store
from amqpstore.catalog.tables import PassedOverRow
from amqpstore.errors import StoreError
from amqpstore.evidence.passed_over import evident_queues, passed_over
from amqpstore.recovery import recovery
from amqpstore.upkeep.kept_segments import SegmentsToKeep
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.store import ReadableStore
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.repair import facts, files
from amqpstore_tools.repair.exporting import find_remains
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.names import LOST_AND_FOUND
from amqpstore_tools.repair.plan import RepairPlan
from amqpstore_tools.repair.truth import indexed, naming
from amqpstore_tools.repair.undo import undo
from amqpstore_tools.transfer.exporting import export
from amqpstore_tools.transfer.importing import import_lines
from amqpstore_tools.transfer.lines import LineWriter, read_lines
from fixtures.survivors import opened
from tests.unit.engine.stores import ENVELOPE
from tests.unit.repair.chronicles import MOMENTS, OPTIONS, Chronicle, Evidence, number_of
from tests.unit.repair.mending import mend, plan_of

SEEDS = 6


class Damage(NamedTuple):
    """Damage to one file: the `number`-th of those there, in order of names."""

    kind: str
    number: int
    offset: int


class Mixture(NamedTuple):
    """The moment that each part of a store is from, and what happened to single files.

    `others` are files, by index, of another moment than their directory, or missing in it.
    """

    seed: int
    catalog: int
    definitions: int
    segments: int
    indexes: int
    others: list[tuple[int, int]]
    damages: list[Damage]


KINDS = ("zeros", "page", "flip", "cut", "remove", "rename", "lost", "quarantine", "swap")
moments = st.integers(0, MOMENTS - 1)
indexes = st.integers(0, 40)
mixtures = st.builds(
    Mixture,
    st.integers(0, SEEDS - 1),
    moments,
    moments,
    moments,
    moments,
    st.lists(st.tuples(indexes, moments), max_size=3),
    st.lists(
        st.builds(Damage, st.sampled_from(KINDS), indexes, st.integers(0, 1 << 16)), max_size=3
    ),
)


@pytest.fixture(scope="module")
def chronicles() -> Any:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="amqpstore-mixtures-", dir=parent) as path:
        yield [Chronicle(Path(path) / str(seed), seed) for seed in range(SEEDS)]


def mixed(chronicle: Chronicle, mixture: Mixture, directory: str) -> list[str]:
    """Put a store together. Returns what was done to single files."""
    parts = {"catalog": mixture.catalog, "segments": mixture.segments, "index": mixture.indexes}
    latest = max(mixture[1:5])
    shutil.copytree(chronicle.moments[latest], directory)
    for name, moment in parts.items():
        shutil.rmtree(os.path.join(directory, name))
        shutil.copytree(
            os.path.join(chronicle.moments[moment], name), os.path.join(directory, name)
        )
    copy = os.path.join(chronicle.moments[mixture.definitions], "catalog/definitions")
    if os.path.exists(copy):
        shutil.copyfile(copy, os.path.join(directory, "catalog/definitions"))
    done = []
    for place, moment in mixture.others:
        names = _names(directory) + [
            one for one in _names(chronicle.moments[moment]) if one.startswith(("seg", "ind"))
        ]
        name = sorted(set(names))[place % len(set(names))]
        source = os.path.join(chronicle.moments[moment], name)
        if name.startswith("catalog"):
            continue
        target = os.path.join(directory, name)
        if os.path.exists(source):
            shutil.copyfile(source, target)
        elif os.path.exists(target):
            os.remove(target)
        done.append(f"{name} of {moment}")
    done += [_damage(directory, one) for one in mixture.damages]
    return done


def _names(directory: str) -> list[str]:
    return sorted(
        name
        for name, row in listing(directory).items()
        if row[0] == "file" and name.startswith(("segments/", "index/", "catalog/"))
    )


def _damage(directory: str, damage: Damage) -> str:
    names = _names(directory)
    name = names[damage.number % len(names)]
    path = os.path.join(directory, name)
    content = Path(path).read_bytes()
    offset = damage.offset % max(len(content), 1)
    if damage.kind == "zeros":
        Path(path).write_bytes(bytes(len(content)))
    elif damage.kind == "page":
        start = offset // 4096 * 4096
        Path(path).write_bytes(
            content[:start] + bytes(len(content[start : start + 4096])) + content[start + 4096 :]
        )
    elif damage.kind == "flip" and content:
        Path(path).write_bytes(
            content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :]
        )
    elif damage.kind == "cut":
        Path(path).write_bytes(content[:offset])
    elif name.startswith("catalog/") or damage.kind == "remove":
        os.remove(path)
    elif damage.kind == "rename":
        os.rename(path, f"{path}.bak")
    elif damage.kind in ("lost", "quarantine"):
        to = os.path.join(directory, "lost+found" if damage.kind == "lost" else "quarantine")
        os.makedirs(to, exist_ok=True)
        name_there = f"#{damage.offset}" if damage.kind == "lost" else os.path.basename(name)
        os.rename(path, os.path.join(to, name_there))
    elif damage.kind == "swap":
        other = names[(damage.number + 1) % len(names)]
        if not other.startswith("catalog/"):
            there = os.path.join(directory, other)
            Path(path).write_bytes(Path(there).read_bytes())
            Path(there).write_bytes(content)
    return f"{damage.kind} {name} {offset}"


def queues_of(directory: str) -> dict[str, list[int]]:
    """Return the numbers of the messages in each queue of a store, in order."""
    return {
        name: [number_of(bytes.fromhex(one["body"])) for one in queue["messages"]]
        for name, queue in opened(directory).items()
    }


def brought_elsewhere(directory: str, other: str) -> dict[str, list[int]]:
    """Export what is left of a store, and import it into a new one. Returns the queues of that."""
    out = io.BytesIO()
    stopped = ReadableStore.stopped(directory)
    with shared_lock(directory), find_remains(stopped, lambda *_: None) as remains:
        export("", LineWriter(out, "msgpack"), remains.queues)
    Store.open(other, options=OPTIONS, worker=InlineWorker()).close()
    lines = [line for line, _ in read_lines(io.BytesIO(out.getvalue()))]
    import_lines(other, lines, create=True)
    return queues_of(other)


def wrong_in(chronicle: Chronicle, evidence: Evidence, queues: dict[str, list[int]]) -> list[str]:
    """Return how queues differ from the optimum."""
    differences = []
    lost = set(queues.get(LOST_AND_FOUND, ()))
    placed: dict[int, dict[int, int]] = {}
    for enqueued in evidence.enqueued:
        if enqueued.message_id in evidence.numbers:
            number = evidence.numbers[enqueued.message_id]
            placed.setdefault(enqueued.queue_id, {})[number] = enqueued.sequence
    there = set(evidence.numbers.values())
    somewhere = {number for numbers in placed.values() for number in numbers}
    for queue_id, name in chronicle.names.items():
        mine = [
            number for one in (name, f"amq.recovered.{queue_id}") for number in queues.get(one, ())
        ]
        if len(mine) != len(set(mine)):
            differences.append(f"{name} has a message twice: {mine}")
        published = chronicle.published[queue_id]
        if strange := set(mine).difference(published):
            differences.append(f"{name} has {strange}, which were never in it")
        if mine != [one for one in published if one in set(mine)]:
            differences.append(f"{name} is not in order: {mine}")
        indexes = placed.get(queue_id, {})
        acked = {one for one in mine if (queue_id, indexes.get(one)) in evidence.acked}
        if acked:
            differences.append(f"{name} has {sorted(acked)} again, which were acked")
        live = chronicle.live.get(queue_id, set()) & there
        if missing := (live & indexes.keys()).difference(mine):
            differences.append(f"{name} lacks {sorted(missing)}")
        # Nothing tells that a message which is known to be elsewhere was here, too.
        if missing := (live - somewhere).difference(mine, lost):
            differences.append(f"{sorted(missing)} of {name} are nowhere")
    known = {*chronicle.names.values(), LOST_AND_FOUND}
    known |= {f"amq.recovered.{queue_id}" for queue_id in chronicle.names}
    if strange_names := queues.keys() - known:
        differences.append(f"there never was {strange_names}")
    return differences


def inspected(directory: str) -> dict[str, list[int]]:
    """Return what `inspect` lists as intact in each queue, in order."""
    found: dict[str, list[int]] = {}
    with StoreImage.open(directory) as image:
        for queue in image.queues:
            ids = [entry.message_id for entry in queue.entries()]
            read = (image.message(one) for one in ids)
            found[queue.label] = [
                number_of(one.message(image.decoder).body) for one in read if one is not None
            ]
    return found


def intact_in(directory: str) -> dict[str, list[int]]:
    """Return what a start serves of each queue, in order, without what it cannot read."""
    return {
        name: numbers
        for name, queue in opened(directory).items()
        if (
            numbers := [
                number_of(bytes.fromhex(one["body"])) for one in queue["messages"] if "body" in one
            ]
        )
    }


def wrong_after_starts(chronicle: Chronicle, evidence: Evidence, directory: str) -> list[str]:
    """Start a store that was not repaired, unless it refuses; let it do all that is due; and start
    it again. Return what is wrong with what it serves, with what it leaves and says, and with what
    a repair then reaches.

    Args: evidence, of before.
    """
    listed: dict[str, list[int]] = {}
    faults = []
    for turn in range(2):
        try:
            if turn == 0:
                # What a start refuses is read with the catalog that a repair would make.
                Store.open(shutil.copytree(directory, f"{directory}.opened")).abandon()
                listed = {name: one for name, one in inspected(directory).items() if one}
            store = Store.open(directory, options=OPTIONS, worker=InlineWorker())
        except StoreError:
            break
        for _ in range(3):
            store.upkeep.housekeep()
        # So that there is a checkpoint, whatever was read.
        another = store.create_queue({"vhost": "/", "name": "another"})
        store.publish([another], [Message(ENVELOPE, b"-1:")])
        store.sync()
        store.delete_queue(another)
        store.close()
        if turn == 0 and (served := intact_in(directory)) != listed:
            faults.append(f"inspect lists {listed}, but {served} are served")
    after = Evidence.of(directory, chronicle.seed)
    live = set().union(*chronicle.live.values())
    if gone := (live & {*evidence.numbers.values()}).difference(after.numbers.values()):
        faults.append(f"the start removed the bytes of {sorted(gone)}")
    mend(directory)
    return faults + wrong_in(chronicle, evidence, queues_of(directory))


def lost_in(chronicle: Chronicle, evidence: Evidence) -> set[tuple[int, int]]:
    """Return queue and id of each message that is known to be lost: it was in its queue to the end,
    some file has its place, and none its record.
    """
    return {
        (one.queue_id, one.message_id)
        for one in evidence.enqueued
        # A chronicle's messages have the ids after their numbers.
        if one.message_id - 1 in chronicle.live.get(one.queue_id, ())
        and one.message_id not in evidence.numbers
        and one.message_id not in evidence.torn
        and (one.queue_id, one.sequence) not in evidence.acked
    }


def wrong_in_claims(
    chronicle: Chronicle, evidence: Evidence, directory: str, plan: RepairPlan
) -> list[str]:
    """Return where fewer messages are called lost than are known to be: some file has their
    places, none has their records.
    """
    lost = lost_in(chronicle, evidence)
    found = []
    if lost and not check(directory).is_damaged:
        found.append(f"it is called sound without {sorted(lost)}")
    said = sum(step.get("messages", 0) for step in plan.steps)
    if len(lost) > said and not plan.is_log_lost:
        found.append(f"{said} messages are called lost, and {sorted(lost)} are")
    return found


def look_at(chronicle: Chronicle, mixture: Mixture) -> None:
    """Repair a mixture, and compare with the optimum; then start it instead, and repair that."""
    parent = str(chronicle.path)
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        directory = os.path.join(scratch, "store")
        done = mixed(chronicle, mixture, directory)
        evidence = Evidence.of(directory, chronicle.seed)
        before = listing(directory)
        started = shutil.copytree(directory, os.path.join(scratch, "started"))
        wrong = wrong_after_starts(chronicle, evidence, started)
        assert wrong == [], (done, wrong)
        exported = brought_elsewhere(directory, os.path.join(scratch, "elsewhere"))
        assert wrong_in_claims(chronicle, evidence, directory, plan_of(directory)) == [], done
        _, repair = mend(directory)
        assert not check(directory).is_damaged, done
        wrong = wrong_in(chronicle, evidence, queues_of(directory))
        assert wrong == [], (done, wrong)
        if repair is not None:
            kept = {name: one for name, one in queues_of(directory).items() if one}
            assert {name: one for name, one in exported.items() if one} == kept, done
            undo(directory)
            assert listing(directory) == before, done


def _same(moment: int, *damages: Damage, seed: int = 0) -> Mixture:
    """Return a store of one moment, damaged."""
    return Mixture(seed, moment, moment, moment, moment, [], list(damages))


# What was found by others, or by long runs.
EXAMPLES = {
    "a catalog of before all queues": Mixture(0, 0, 0, 5, 5, [], []),
    "a catalog of some time ago": Mixture(1, 3, 3, 5, 5, [], []),
    "a catalog newer than all files": Mixture(2, 5, 5, 2, 2, [], []),
    "index files of some time ago": Mixture(3, 5, 5, 5, 2, [], []),
    "index files newer than the rest": Mixture(4, 2, 2, 2, 5, [], []),
    "segments of some time ago": Mixture(5, 5, 5, 2, 5, [], []),
    "the number of an index file is that of a later one": Mixture(
        2, 0, 4, 3, 4, [(14, 2)], [Damage("rename", 31, 0)]
    ),
    "a deletion of the queue that the log's last batch names": Mixture(
        2, 3, 3, 4, 2, [], [Damage("cut", 36, 49346)]
    ),
    "two files of one queue in each other's place": _same(5, Damage("swap", 2, 0)),
    "the last segment under another name": Mixture(1, 1, 5, 2, 0, [], [Damage("rename", 17, 0)]),
    "an index file in the place of a segment": Mixture(
        4, 2, 1, 3, 0, [], [Damage("swap", 21, 0), Damage("remove", 15, 0)]
    ),
    "a segment under another name": _same(5, Damage("rename", 8, 0)),
    "a segment in quarantine": _same(5, Damage("quarantine", 8, 0)),
    "a compacted segment that is newer than all else": Mixture(4, 2, 2, 2, 2, [(21, 5)], []),
    "a compacted segment under another name that is newer than all else": Mixture(
        0, 1, 1, 1, 2, [(14, 5), (1, 3)], [Damage("lost", 39, 48669), Damage("lost", 11, 34736)]
    ),
    "a segment in quarantine, which a start missed": Mixture(
        4, 4, 4, 4, 4, [(32, 1)], [Damage("flip", 9, 14092), Damage("quarantine", 14, 28580)]
    ),
    "a compacted segment that is newer than all else, and one of zeros": Mixture(
        4, 1, 1, 1, 1, [(19, 5), (22, 1), (32, 1)], [Damage("zeros", 16, 22503)]
    ),
    "an index file in quarantine": Mixture(3, 1, 1, 1, 1, [], [Damage("quarantine", 28, 0)]),
    "index files that are newer than all else": Mixture(
        2, 0, 0, 0, 0, [(29, 4), (8, 0), (14, 1)], []
    ),
    "index files that are newer than all else, and no definitions": Mixture(
        4, 1, 1, 1, 1, [(5, 2), (34, 4), (21, 3)], [Damage("cut", 21, 31313)]
    ),
    "an index file in quarantine that is newer than all else": Mixture(
        2, 0, 0, 0, 0, [(8, 4)], [Damage("quarantine", 4, 27794)]
    ),
    "an index file with a row, and more in it that is newer than all else": Mixture(
        0, 4, 4, 4, 4, [(2, 5)], []
    ),
    "a catalog older than index files whose log is gone": Mixture(2, 2, 4, 4, 4, [], []),
    "a later segment of the log in quarantine": Mixture(
        5, 4, 5, 5, 5, [], [Damage("quarantine", 33, 14136)]
    ),
    "an index file is missing that the log can replace": Mixture(
        1, 5, 5, 5, 4, [(37, 4), (27, 0), (22, 3)], []
    ),
    "an index file in the place of the log": Mixture(
        3, 5, 5, 5, 5, [(21, 1)], [Damage("swap", 3, 41191), Damage("zeros", 34, 8865)]
    ),
    "two compacted segments in each other's place": _same(4, Damage("swap", 15, 27272), seed=5),
    "a segment of the log in the place of an index file, and a queue that only it has": Mixture(
        5, 2, 0, 3, 2, [(3, 0)], [Damage("swap", 7, 0)]
    ),
    "two segments of the log in each other's place, and a queue that only they have": Mixture(
        0, 0, 0, 5, 4, [(10, 0)], [Damage("swap", 33, 0)]
    ),
    "two starts pass over something": Mixture(
        3, 0, 5, 5, 5, [], [Damage("cut", 19, 15927), Damage("quarantine", 25, 47579)]
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(chronicles: list[Chronicle], name: str) -> None:
    look_at(chronicles[EXAMPLES[name].seed], EXAMPLES[name])


@pytest.mark.parametrize("name", [one for one in EXAMPLES if "newer than all else" in one])
def test_a_store_beside_newer_files_is_not_called_sound(
    chronicles: list[Chronicle], tmp_path: Path, name: str
) -> None:
    example, directory = EXAMPLES[name], str(tmp_path / "store")
    chronicle = chronicles[example.seed]
    mixed(chronicle, example, directory)
    lost = lost_in(chronicle, Evidence.of(directory, chronicle.seed))
    assert "catalog-old" in {one.code for one in check(directory).findings.of_harm()}
    said = [one["messages"] for one in plan_of(directory).steps if one["code"] == "message-lost"]
    assert sum(said) >= len(lost)


def test_a_start_beside_newer_index_files_says_so_and_keeps_them(
    chronicles: list[Chronicle], tmp_path: Path
) -> None:
    example = EXAMPLES["index files that are newer than all else"]
    directory = str(tmp_path / "store")
    mixed(chronicles[example.seed], example, directory)
    newer = {one.file: one for one in check(directory).findings if one.code == "catalog-old"}
    store = Store.open(directory, options=OPTIONS, worker=InlineWorker())
    reported = {os.path.relpath(path, directory) for path, *_ in store.recovery_report.damage}
    assert newer
    assert newer.keys() == reported
    store.publish([next(iter(store.queues.values()))], [Message(ENVELOPE, b"1")])
    store.close()
    assert all(os.path.exists(os.path.join(directory, name)) for name in newer)
    # What is known stays told: by the next start, and by a check, until a repair.
    store = Store.open(directory, options=OPTIONS, worker=InlineWorker())
    again = {os.path.relpath(path, directory) for path, *_ in store.recovery_report.damage}
    assert newer.keys() == again
    assert "passed over" in store.recovery_report.passed_over
    store.close()
    harm = check(directory).findings.of_harm()
    assert {one.file for one in harm if one.code == "catalog-old"} == newer.keys()
    # No number of a message that is lost was given again: the log has gone on behind them.
    assert {one.code for one in harm} == {"catalog-old", "passed-over"}
    mend(directory)
    assert not check(directory).is_damaged


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """Find nothing."""


def _no_files(*_arguments: Any, **_options: Any) -> Iterator[Any]:
    return iter(())


def _not_in_quarantine(name: str, **_options: Any) -> bool:
    return not name.startswith("quarantine/")


# Repairs that ignore one kind of evidence: what is replaced, and an example that shows it.
MUTANTS = {
    "index files": (facts, "_index_images", _no_files, "segments of some time ago"),
    "files under other names": (files, "find_files", _no_files, "a segment under another name"),
    "quarantine": (files, "_may_be_needed", _not_in_quarantine, "a segment in quarantine"),
    "what the catalog had not counted": (
        naming,
        "_nameless",
        lambda *_: set(),
        "a catalog of before all queues",
    ),
    "index files that are newer than their rows": (
        indexed._Index,
        "_read_unrowed",
        _nothing,
        "a catalog of before all queues",
    ),
    "the log": (facts.Facts, "log", _no_files, "a catalog newer than all files"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_repair_that_ignores_some_evidence_is_noticed(
    chronicles: list[Chronicle], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, attribute, mutant, example = MUTANTS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(AssertionError, match=r"lacks|again|nowhere|in order"):
        look_at(chronicles[EXAMPLES[example].seed], EXAMPLES[example])


def _without(kind: str) -> Callable[..., PassedOverRow]:
    """A start that does not note one kind of the numbers that it passes over."""
    return lambda *arguments: passed_over(*arguments)._replace(**{kind: []})


# Starts that ignore one kind of evidence, in the same way.
MUTANTS_OF_STARTS = {
    "ids of queues": (
        recovery._Recovery,
        "_queue_ids_passed_over",
        lambda _: range(0),
        "a segment of the log in the place of an index file, and a queue that only it has",
    ),
    "ids of queues in files in each other's place": (
        recovery,
        "evident_queues",
        lambda files, directory, store_id, _: evident_queues(files, directory, store_id, ()),
        "two segments of the log in each other's place, and a queue that only they have",
    ),
    "the note of ids of queues": (
        recovery,
        "passed_over",
        _without("queue_ids"),
        "two starts pass over something",
    ),
    "the note of ids of messages": (
        recovery,
        "passed_over",
        _without("message_ids"),
        "a catalog older than index files whose log is gone",
    ),
    "the note of batches": (
        recovery,
        "passed_over",
        _without("lsns"),
        "the last segment under another name",
    ),
    "compacted segments that are newer": (
        recovery,
        "find_newer",
        lambda *_: {},
        "a compacted segment that is newer than all else, and one of zeros",
    ),
    "what is passed over": (
        recovery._Recovery,
        "_pass_over",
        _nothing,
        "a catalog older than index files whose log is gone",
    ),
    "index files that are missing": (
        SegmentsToKeep,
        "numbers",
        lambda kept: frozenset(kept._damaged),
        "an index file is missing that the log can replace",
    ),
}


@pytest.mark.parametrize("name", MUTANTS_OF_STARTS)
def test_a_start_that_ignores_some_evidence_is_noticed(
    chronicles: list[Chronicle], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, attribute, mutant, example = MUTANTS_OF_STARTS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(AssertionError, match=r"the start removed the bytes of|lacks|nowhere"):
        look_at(chronicles[EXAMPLES[example].seed], EXAMPLES[example])


def test_losses_that_are_not_counted_are_noticed(
    chronicles: list[Chronicle], tmp_path: Path
) -> None:
    chronicle, directory = chronicles[0], str(tmp_path / "store")
    mixed(chronicle, _same(5, Damage("remove", 8, 0)), directory)
    evidence = Evidence.of(directory, chronicle.seed)
    plan = plan_of(directory)
    assert wrong_in_claims(chronicle, evidence, directory, plan) == []
    plan.steps = [step | {"messages": 0} for step in plan.steps]
    (wrong,) = wrong_in_claims(chronicle, evidence, directory, plan)
    assert wrong.startswith("0 messages are called lost")


def test_an_inspection_that_ignores_the_log_is_noticed(
    chronicles: list[Chronicle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueImage, "_of_run", _no_files)
    example = EXAMPLES["index files newer than the rest"]
    with pytest.raises(AssertionError, match="inspect lists"):
        look_at(chronicles[example.seed], example)


@settings(max_examples=20, derandomize=True, database=None)
@given(mixture=mixtures)
def test_some_mixtures(chronicles: list[Chronicle], mixture: Mixture) -> None:
    look_at(chronicles[mixture.seed], mixture)


@pytest.mark.long
@settings(max_examples=1200)
@given(mixture=mixtures)
def test_any_mixture(chronicles: list[Chronicle], mixture: Mixture) -> None:
    look_at(chronicles[mixture.seed], mixture)
