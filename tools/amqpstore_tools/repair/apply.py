"""Carries out a plan: builds files beside the store, checks the result, then replaces files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator

from amqpstore.system import ownership
from amqpstore.system.filenames import CATALOG, INDEX, QUARANTINE, SEGMENTS
from amqpstore.system.files import NotAFileError, OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.findings import Severity
from amqpstore_tools.check.store import Checked
from amqpstore_tools.offline.locations import require_directory
from amqpstore_tools.offline.locks import directory_lock, exclusive_lock
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.repair.build import Builder, build_marker
from amqpstore_tools.repair.errors import (
    NotCleanError,
    OtherStoreError,
    StateDiffersError,
)
from amqpstore_tools.repair.facts import Facts
from amqpstore_tools.repair.journal import (
    NEW,
    OLD,
    PLAN,
    Journal,
    Repair,
    State,
    clear_remains,
    next_repair,
    repairs,
    unfinished,
    write_durably,
)
from amqpstore_tools.repair.listing import Listing, differences, listing
from amqpstore_tools.repair.plan import Planned, RepairPlan, make_plan

_TRIAL = "trial"


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Lock the store exclusively; readers are kept out too.

    If something else is in the place of the lock, no broker starts: then other repairs are kept
    out.
    Raises: NotAStoreError, StoreLockedError, OSError.
    """
    require_directory(directory)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(directory, "repair"))
        except NotAFileError:
            stack.enter_context(directory_lock(directory, "repair"))
        yield


def apply_plan(directory: str, plan: RepairPlan, tell: Progress = lambda *_: None) -> Repair | None:
    """Carry out a plan; None if it has no step. It is durable on return.

    If an earlier call was interrupted, this finishes it.
    Raises: OtherStoreError, StateDiffersError, UnfinishedRepairError (with another plan),
    NotCleanError, NotAStoreError, FormatVersionError, StoreLockedError, OSError. Nothing was
    changed then; except after an OSError, after which it may be called again, or undone.
    """
    with locked(directory):
        if repair := unfinished(directory):
            journal = repair.journal
            if journal is None or (journal.state, journal.plan) != (State.APPLYING, plan.digest):
                raise repair.unfinished_error()
            repair.go_on()
            return repair
        clear_remains(repairs(directory))
        # The plan is made again, under the lock: it may have waited in its file for days.
        planned = make_plan(directory, tell, made_ms=plan.made_ms)
        _compare(directory, plan, planned.plan)
        if planned.facts is None:
            return None
        repair = _prepare(directory, planned, planned.facts, tell)
        repair.go_on()
        return repair


def _compare(directory: str, plan: RepairPlan, now: RepairPlan) -> None:
    """Raises: OtherStoreError, StateDiffersError."""
    if plan.store_id != now.store_id:
        raise OtherStoreError(directory, now.store_id, plan.store_id)
    if names := differences(plan.files, now.files):
        raise StateDiffersError(directory, names)
    if plan.digest != now.digest:
        raise StateDiffersError(directory, ["what this version would do about it"])


def _prepare(directory: str, planned: Planned, facts: Facts, tell: Progress) -> Repair:
    """Build everything new, check it, and write the journal."""
    plan = planned.plan
    repair = next_repair(directory)
    to = os.path.join(repair.path, NEW)
    repair.create()
    try:
        if planned.truth is not None and planned.layout is not None:
            numbers = plan.quarantined
            Builder(facts, planned.truth, planned.layout, numbers, to, plan.made_ms, tell).run()
        build_marker(facts, to)
        new = listing(to, tell)
        puts = sorted(name for name, row in new.items() if row[0] == "file")
        after = _after(plan, new)
        _try(directory, repair, after, puts, tell)
    # Whether this failed or was interrupted, nothing of the store was touched.
    except BaseException:
        repair.remove()
        raise
    directories = sorted(
        name for name, row in new.items() if row[0] == "directory" and plan.files.get(name) != row
    )
    # If the journal is lost, the moves are found out from the plan: see `_by_plan`.
    write_durably(os.path.join(repair.path, PLAN), _text(plan))
    OsFiles().make_directory(os.path.join(repair.path, OLD))
    # Last: a directory without a journal is a repair that was not begun, and is removed.
    repair.write(
        Journal(
            plan=plan.digest,
            store_id=plan.store_id,
            moves=plan.moves,
            puts=puts,
            directories=directories,
            before=plan.files,
            after=after,
        )
    )
    return repair


def _after(plan: RepairPlan, new: Listing) -> Listing:
    """Return the state of the store after the repair, as far as it is known."""
    gone = tuple(f"{name}/" for name in plan.moves)
    kept = {
        name: row
        for name, row in plan.files.items()
        if name not in plan.moves and not name.startswith(gone or ("\0",))
    }
    return {**kept, **new}


def _try(directory: str, repair: Repair, after: Listing, puts: list[str], tell: Progress) -> None:
    """Check the repaired store, put together of links. Raises: NotCleanError."""
    trial = os.path.join(repair.path, _TRIAL)
    for name in (SEGMENTS, INDEX, CATALOG, QUARANTINE):
        ownership.make_directories(os.path.join(trial, name))
    for name, row in after.items():
        source = os.path.join(repair.path, NEW) if name in puts else directory
        path = os.path.join(trial, name)
        if row[0] == "directory":
            ownership.make_directories(path)
        else:
            os.symlink(os.path.abspath(os.path.join(source, name)), path)
    try:
        found = check(trial, is_locked=True, tell=tell)
    finally:
        shutil.rmtree(trial)
    if found.is_damaged:
        raise NotCleanError(directory, _wrong(found))


def _wrong(checked: Checked) -> list[str]:
    return [
        f"{one.code}: {one.file}: {one.text}"
        for one in checked.findings
        if one.severity is not Severity.NOTE
    ]


def _text(plan: RepairPlan) -> str:

    return json.dumps(plan.as_json(), indent=1)
