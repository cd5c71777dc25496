"""A plan: the faults of a store, the changes, and the losses."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from amqpstore.evidence import find_wrong_kinds
from amqpstore.system.filenames import (
    CATALOG,
    DEFINITIONS,
    INDEX,
    MARKER,
    QUARANTINE,
    SEGMENTS,
    index_key,
    segment_numbers,
)
from amqpstore.system.files import FileType
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.executor import Executor
from amqpstore_tools.check.findings import CODES, Finding, Severity
from amqpstore_tools.check.segments import segment_name
from amqpstore_tools.check.store import Checked, ReadableStore, named, queue_name
from amqpstore_tools.offline.foreign_files import find_foreign
from amqpstore_tools.offline.locations import require_directory
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.repair.errors import BadPlanError, ForeignFilesError, UnknownStoreError
from amqpstore_tools.repair.facts import Facts, gather
from amqpstore_tools.repair.fixes import FIXES, MARKER_ONLY, NAMES_ONLY
from amqpstore_tools.repair.journal import unfinished
from amqpstore_tools.repair.layout import Layout, lay_out
from amqpstore_tools.repair.listing import Listing, digest_of, listing
from amqpstore_tools.repair.truth.finding import find_truth
from amqpstore_tools.repair.truth.values import QueueTruth, Truth

VERSION = 1


@dataclass
class RepairPlan:
    """The plan of a repair of the store `store_id`, hexadecimal, in the state that `files` list.

    `steps` have the `code` of a finding, what is `found`, what changes (`does`) and, if messages
    are lost, from which `queue` and how many `messages`. `queues` have their content afterwards.
    `moves` go to quarantine, `makes` are written; `notes` concern the whole plan. `is_log_lost`:
    messages that were published in a missing part of the log are lost: `missing_messages` at least.
    """

    store_id: str
    made_ms: int
    files: Listing
    steps: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_rebuild: bool = False
    is_log_lost: bool = False
    missing_messages: int = 0

    @property
    def digest(self) -> str:
        """The digest of the plan and of the state for which it was made."""
        return digest_of({"plan": [json.dumps(self.as_json(), sort_keys=True)]})

    @property
    def quarantined(self) -> list[int]:
        """The numbers of the segments in quarantine, as far as they stay there."""
        names = [name.rpartition("/") for name in self.files if name not in self.moves]
        return segment_numbers([name for folder, _, name in names if folder == QUARANTINE])

    def as_json(self) -> dict[str, Any]:
        """Return the plan as it is written to a file."""
        return {
            "amqpstore_repair_plan": VERSION,
            "state": digest_of(self.files),
            **asdict(self),
        }


@dataclass
class Planned:
    """A plan and its basis; of a sound store it has none, and without a rebuild only `facts`."""

    plan: RepairPlan
    facts: Facts | None = None
    truth: Truth | None = None
    layout: Layout | None = None


def make_plan(
    directory: str,
    tell: Progress,
    *,
    made_ms: int | None = None,
    executor: Executor | None = None,
) -> Planned:
    """Check a store that the caller keeps brokers out of, and plan its repair.

    Args: executor, of the check, if not this process.
    Raises: NotAStoreError, FormatVersionError, UnfinishedRepairError, UnknownStoreError,
    ForeignFilesError, OSError.
    """
    require_directory(directory)
    if repair := unfinished(directory):
        raise repair.unfinished_error()
    _refuse_what_may_not_be_read(directory)
    checked = check(directory, is_locked=True, executor=executor, tell=tell)
    if checked.store_id is None:
        raise UnknownStoreError(directory)
    made = time.time_ns() // 1_000_000 if made_ms is None else made_ms
    if not checked.is_damaged:
        # Nothing is to be done, whatever state the store will be in by then.
        return Planned(RepairPlan(checked.store_id.hex(), made, {}))
    files = listing(directory, tell)
    plan = RepairPlan(checked.store_id.hex(), made, files)
    facts = gather(ReadableStore.stopped(directory), checked, tell)
    planned = Planned(plan, facts)
    wrong = [one for one in checked.findings if one.severity is not Severity.NOTE]
    plan.steps = [_step(one) for one in _in_order(wrong)]
    codes = {one.code for one in wrong}
    foreign = [one.file for one in wrong if one.code in NAMES_ONLY or _is_in_the_way(one)]
    foreign += [one.file for one in checked.findings if _is_copied_index(one)]
    plan.moves = [name for name in foreign if _may_be_moved(directory, name)]
    plan.is_rebuild = not codes <= NAMES_ONLY | MARKER_ONLY
    if codes - NAMES_ONLY:
        plan.makes = [MARKER]
    if plan.is_rebuild:
        planned.truth = find_truth(facts)
        plan.steps = [step for step in plan.steps if not _is_refuted(step, planned.truth)]
        planned.layout = lay_out(facts, planned.truth)
        _tell_of_files(plan, planned.layout)
        _tell_of_queues(plan, planned.truth, checked)
    else:
        # The marker is moved away first and returns last: no broker starts meanwhile.
        plan.makes = [MARKER]
    if MARKER in files:
        plan.moves.append(MARKER)
    plan.moves = sorted(set(plan.moves))
    return planned


def _refuse_what_may_not_be_read(directory: str) -> None:
    """Make sure that no messages are given up which another user can read, and that the broker can
    read what is kept. Raises: ForeignFilesError, OSError.
    """
    for found in find_wrong_kinds(ReadOnlyFiles(), directory):
        if found.found is FileType.FORBIDDEN:
            path = os.path.join(directory, found.name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    if foreign := list(find_foreign(ReadOnlyFiles(), directory)):
        raise ForeignFilesError(directory, [one.cure for one in foreign])


def _may_be_moved(directory: str, name: str) -> bool:
    """Tell whether a repair moves something to its own directory: all but what is in the place of
    `quarantine/`, which it has to replace before it has one.
    """
    return name != QUARANTINE and os.path.lexists(os.path.join(directory, name))


def _is_in_the_way(finding: Finding) -> bool:
    """Tell whether a file is under a wrong name where the store would find it again, or in
    quarantine although its messages are needed.
    """
    folder, _, _ = finding.file.rpartition("/")
    if finding.code == "catalog-old":
        return folder == QUARANTINE
    return finding.code == "file-misplaced" and folder in ("", SEGMENTS, INDEX, QUARANTINE)


def _is_copied_index(finding: Finding) -> bool:
    """Tell whether it is the copy of an index file that a start has put in quarantine."""
    return finding.code == "quarantined" and index_key(os.path.basename(finding.file)) is not None


def read_plan(path: str) -> RepairPlan:
    """Raises: BadPlanError, OSError."""
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except (ValueError, RecursionError) as error:
            raise BadPlanError(path, str(error)) from None
    if not isinstance(content, dict) or "amqpstore_repair_plan" not in content:
        raise BadPlanError(path, "it does not identify itself as one")
    if content.pop("amqpstore_repair_plan") != VERSION:
        raise BadPlanError(path, "another version made it")
    state = content.pop("state", None)
    try:
        plan = msgspec.convert(content, RepairPlan)
    except msgspec.ValidationError as error:
        raise BadPlanError(path, str(error)) from None
    try:
        plan.as_json()
    except RecursionError:
        raise BadPlanError(path, "it is nested too deep") from None
    # With another list of files the plan could be applied to another state.
    if digest_of(plan.files) != state:
        raise BadPlanError(path, "it was edited")
    return plan


def _in_order(found: Sequence[Finding]) -> list[Finding]:
    indexes = {code: index for index, code in enumerate(CODES)}
    return sorted(found, key=lambda one: indexes[one.code])


def _step(finding: Finding) -> dict[str, Any]:
    row = finding.as_json()
    row["found"] = row.pop("text")
    row["does"] = FIXES.get(finding.code, "looked at by a person")
    if finding.code != "message-lost":
        row.pop("messages", None)
    return row


def _is_refuted(step: dict[str, Any], truth: Truth) -> bool:
    """Tell whether a repair has found what a check misses, which reads no file under another name
    than its own.
    """
    if step["code"] == "log-short":
        return not truth.shortfall
    queue = truth.queues.get(step.get("queue_id", 0))
    if step["code"] != "message-lost" or queue is None or not step.get("message_id"):
        return False
    first, end = step["message_id"], step["message_id"] + step["messages"]
    return not any(
        lost.first_id < end and first < lost.first_id + lost.message_count for lost in queue.lost
    )


def _tell_of_files(plan: RepairPlan, layout: Layout) -> None:
    replaced = {one.name for one in (*layout.gone, *layout.replaced)}
    plan.moves += sorted(name for name in plan.files if name in replaced)
    for name in plan.files:
        directory, _, rest = name.partition("/")
        if directory == INDEX and rest and name not in plan.moves:
            plan.moves.append(name)
    for name in (f"{CATALOG}/data.mdb", f"{CATALOG}/{DEFINITIONS}"):
        plan.makes.append(name)
        if name in plan.files:
            plan.moves.append(name)
    numbers = [*(one.number for one in layout.rewrites), layout.log_segment]
    plan.makes += [segment_name(number) for number in numbers]
    copied = {source.name: one.number for one in layout.rewrites for source in one.sources}
    for step in plan.steps:
        if number := copied.get(step["file"]):
            step["into"] = segment_name(number)


def _tell_of_queues(plan: RepairPlan, truth: Truth, checked: Checked) -> None:
    plan.notes = list(truth.notes)
    plan.is_log_lost = truth.is_log_lost
    plan.missing_messages = truth.shortfall.lost
    told_lost = {
        (one.queue_id, one.message_id + index)
        for one in checked.findings
        if one.code == "message-lost"
        for index in range(one.messages)
    }
    for queue in truth.queues.values():
        name = _name(queue)
        for lost in queue.lost:
            ids = range(lost.first_id, lost.first_id + lost.message_count)
            if any((queue.id, one) not in told_lost for one in ids):
                plan.steps.append(_lost_step(queue, name, lost.first_id, lost))
        if queue.absent:
            plan.steps.append(_absent_step(queue, name))
    plan.queues = _queue_rows(truth.queues.values())
    count = sum(end - first for first, end in truth.orphans)
    if count:
        plan.notes.append(
            f"{count} messages whose queue is no longer known go to a queue of their own; some "
            "of them may have been acked"
        )


def _lost_step(queue: QueueTruth, name: str, first_id: int, lost: Any) -> dict[str, Any]:
    return {
        "code": "message-lost",
        "severity": "error",
        "file": SEGMENTS,
        "queue_id": queue.id,
        "queue": name,
        "message_id": first_id,
        "sequence": lost.first_sequence,
        "messages": lost.message_count,
        "found": f"message {first_id}: no sound record of it exists",
        "does": FIXES["message-lost"],
    }


def _absent_step(queue: QueueTruth, name: str) -> dict[str, Any]:
    return {
        "code": "message-lost",
        "severity": "error",
        "file": INDEX,
        "queue_id": queue.id,
        "queue": name,
        "messages": queue.absent,
        "found": f"{queue.absent} more messages are in rows of the catalog, and in no file",
        "does": FIXES["message-lost"],
    }


def _queue_rows(queues: Iterable[QueueTruth]) -> list[dict[str, Any]]:
    """Return the content of each queue of the broker: one with priorities is several stored
    queues, whose `ids` it has.
    """
    rows: dict[object, dict[str, Any]] = {}
    for queue in queues:
        row = rows.setdefault(
            named(queue.definition) or queue.id,
            {
                "ids": [],
                "name": _name(queue),
                **dict.fromkeys(("kept", "redelivered", "again", "lost"), 0),
                "lost_messages": [],
                "is_recovered": False,
            },
        )
        row["ids"].append(queue.id)
        row["kept"] += queue.ready.count
        row["redelivered"] += sum(run.count for run in queue.ready if run.delivery_count)
        row["again"] += queue.again
        row["lost"] += queue.lost_count
        row["lost_messages"] += [{"queue_id": queue.id, **one._asdict()} for one in queue.lost]
        row["is_recovered"] |= queue.is_recovered
    return list(rows.values())


def _name(queue: QueueTruth) -> str:
    return queue_name(queue.definition) or f"#{queue.id}"
