"""The reports in `reports/` of a data directory: what starts found after a crash, and what drills
found. The last 20 of each kind are kept.

They are read again from files that anybody may have put there: only names that this module gives
are looked at, and only what the types here say is taken out of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from amqpstore.system import ownership
from amqpstore.system.files import naming

DIRECTORY = "reports"

ReportKind = Literal["recovery", "drill"]

_KEPT = 20
_MAX_BYTES = 16 << 20
_NAME = re.compile(r"(recovery|drill)-(\d{8}T\d{6}\.\d{6})Z\.json", re.ASCII)
_TIME = "%Y%m%dT%H%M%S.%f"


class ReportError(Exception):
    """A report cannot be read. The message says why."""


class RecoveredQueue(msgspec.Struct):
    """The messages that a start found in one queue."""

    vhost: str | None = None
    queue: str | None = None
    kept: int = 0
    redelivered: int = 0
    lost: int = 0
    quarantined: int = 0
    unreadable: int = 0


class DamagedRange(msgspec.Struct):
    """A place in a file that could not be used."""

    path: str = ""
    offset: int = 0
    bytes: int = 0
    reason: str = ""


class DoubtfulBranch(msgspec.Struct):
    """A transaction that was prepared and is not decided, and the messages it has locked."""

    vhost: str = ""
    xid: str = ""
    user: str = ""
    locked: dict[str, int] = {}


class SetAsideQueue(msgspec.Struct):
    """A queue that failed at a start."""

    vhost: str = ""
    queue: str = ""


class RecoveryContent(msgspec.Struct):
    """The findings of a start after a crash: see `recovery_reports`."""

    segments: int
    scanned_bytes: int
    messages: int
    redelivered: int
    torn_bytes: int
    rolled_back: int
    lost: int
    orphaned: int
    queues: list[RecoveredQueue] = []
    set_aside: list[SetAsideQueue] = []
    in_doubt: list[DoubtfulBranch] = []
    damage: list[DamagedRange] = []
    unknown_files: list[str] = []
    passed_over: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost, damaged, or passed over by an earlier start."""
        is_lost = self.lost or self.orphaned or self.passed_over
        return not (is_lost or self.damage or self.set_aside)


class BrokenPromise(msgspec.Struct):
    """A promise that was broken, and the command that shows it again."""

    invariant: str
    text: str = ""
    where: str = ""
    reproduce: str = ""


class DrillStep(msgspec.Struct):
    """A step of a drill, and how many of the promised messages survived it."""

    round: int
    number: int
    did: str
    promised: int
    least: int
    most: int
    named: int = 0
    is_violated: bool = False


class DrilledScenario(msgspec.Struct):
    """One scenario of a drill. `left_out` says why nothing was done."""

    scenario: str
    seed: str = ""
    left_out: str = ""
    seconds: float = 0.0
    did: dict[str, int] = {}
    verdicts: dict[str, str] = {}
    checks: dict[str, int] = {}
    findings: list[BrokenPromise] = []
    timeline: list[DrillStep] = []


class DrillContent(msgspec.Struct):
    """The findings of a drill."""

    version: str
    violated: bool
    invariants: dict[str, str]
    scenarios: list[DrilledScenario]

    @property
    def is_sound(self) -> bool:
        """Whether every promise was kept."""
        return not self.violated


_CONTENTS: dict[str, type[RecoveryContent] | type[DrillContent]] = {
    "recovery": RecoveryContent,
    "drill": DrillContent,
}


def write_report(data_directory: str, kind: ReportKind, now: datetime, content: str) -> str:
    """Write a report, and remove those that are too many. Returns its path. Raises: OSError."""
    directory = os.path.join(data_directory, DIRECTORY)
    ownership.make_directories(directory)
    path = os.path.join(directory, f"{kind}-{now.astimezone(UTC):{_TIME}}Z.json")
    with naming(path), open(path, "w", encoding="utf-8") as file:
        ownership.give(file.fileno(), directory)
        file.write(content)
        file.write("\n")
    for old in _names(directory, kind)[:-_KEPT]:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(directory, old))
    return path


def list_reports(data_directory: str) -> list[dict[str, Any]]:
    """Return the reports, the last one first: `name`, `kind`, `time_ms`, `size_bytes`, whether it
    `is_sound`, and the `problem` if it cannot be read.
    """
    directory = os.path.join(data_directory, DIRECTORY)
    rows = []
    for name in [one for kind in _CONTENTS for one in _names(directory, kind)]:
        row = _row(name)
        try:
            content, row["size_bytes"] = _read(directory, name)
            row["is_sound"] = content.is_sound
        except ReportError as error:
            row["problem"] = str(error)
        rows.append(row)
    return sorted(rows, key=lambda row: int(row["time_ms"]), reverse=True)


def read_report(data_directory: str, name: str) -> dict[str, Any] | None:
    """Return a report as `list_reports` does, with its `content`; None if there is none.

    Raises: ReportError.
    """
    directory = os.path.join(data_directory, DIRECTORY)
    if not _NAME.fullmatch(name) or not os.path.lexists(os.path.join(directory, name)):
        return None
    content, size = _read(directory, name)
    found = {"size_bytes": size, "is_sound": content.is_sound}
    return {**_row(name), **found, "content": msgspec.to_builtins(content)}


def _names(directory: str, kind: str) -> list[str]:
    """Return the reports of a kind, oldest first."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(one for one in names if one.startswith(f"{kind}-") and _NAME.fullmatch(one))


def _row(name: str) -> dict[str, Any]:
    kind, at = name.removesuffix("Z.json").split("-")
    try:
        time = datetime.strptime(at, _TIME).replace(tzinfo=UTC)
    except ValueError:  # no such day
        time = datetime.fromtimestamp(0, UTC)
    return {
        "name": name,
        "kind": kind,
        "time_ms": int(time.timestamp() * 1000),
        "size_bytes": None,
        "is_sound": None,
        "problem": "",
    }


def _read(directory: str, name: str) -> tuple[RecoveryContent | DrillContent, int]:
    """Raises: ReportError."""
    # A pipe in its place would keep the reader waiting, and a link may lead anywhere.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(os.path.join(directory, name), flags), "rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ReportError(f"it cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise ReportError(f"it has more than {_MAX_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(raw, type=_CONTENTS[name.partition("-")[0]]), len(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReportError(f"it is not a report: {error}") from None
