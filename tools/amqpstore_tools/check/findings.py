"""Findings: everything that a check can report about a store. FINDINGS.md has the table for
people.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

WHERE_EXPLAINED = (
    "The file check/FINDINGS.md of the package amqpstore_tools explains each finding, and what a "
    "repair does about it."
)


class Severity(enum.StrEnum):
    """The severity of a finding.

    `ERROR`: something is lost, or will be, or the store does not open. `WARNING`: the store serves
    what it holds, but something in it is wrong. `NOTE`: normal after a crash or a repair.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ERROR, _WARNING, _NOTE = Severity

CODES = {
    "marker-missing": _ERROR,
    "marker-damaged": _ERROR,
    "store-id-differs": _ERROR,
    "catalog-missing": _ERROR,
    "catalog-damaged": _ERROR,
    "catalog-old": _ERROR,
    "row-damaged": _ERROR,
    "row-orphaned": _WARNING,
    "table-unknown": _WARNING,
    "file-unreadable": _ERROR,
    "file-wrong-kind": _ERROR,
    "file-foreign": _ERROR,
    "file-unknown": _WARNING,
    "file-misplaced": _ERROR,
    "file-left-over": _NOTE,
    "segment-missing": _ERROR,
    "segment-short": _ERROR,
    "segment-header": _ERROR,
    "segment-copied": _WARNING,
    "segment-put-back": _ERROR,
    "record-damaged": _ERROR,
    "message-malformed": _ERROR,
    "body-damaged": _ERROR,
    "batch-broken": _ERROR,
    "batch-torn": _NOTE,
    "batch-behind-end": _WARNING,
    "log-short": _ERROR,
    "log-order": _ERROR,
    "operation-malformed": _ERROR,
    "operation-queue-unknown": _ERROR,
    "operation-sequence-unknown": _ERROR,
    "sequence-reused": _ERROR,
    "index-missing": _ERROR,
    "index-damaged": _ERROR,
    "index-order": _ERROR,
    "index-row-differs": _ERROR,
    "index-behind-end": _NOTE,
    "message-lost": _ERROR,
    "message-orphaned": _ERROR,
    "message-size-differs": _WARNING,
    "references-differ": _ERROR,
    "account-differs": _WARNING,
    "marks-wrong": _ERROR,
    "position-wrong": _ERROR,
    "head-too-low": _ERROR,
    "queue-id-too-low": _ERROR,
    "dictionary-damaged": _ERROR,
    "quarantined": _NOTE,
    "quarantine-missing": _WARNING,
    "passed-over": _ERROR,
    "prepared-queue-missing": _ERROR,
    "prepared-incomplete": _ERROR,
    "repair-kept": _NOTE,
    "rejoin-kept": _NOTE,
    "not-compared": _NOTE,
}
"""Every code, and its severity. Codes are stable: scripts and repair plans name them."""


class Finding(NamedTuple):
    """One thing that a check found.

    `file` is relative to the store's directory; `offset` in it is in bytes, -1 if unknown. The
    other fields are the id and name of the queue, how many `messages` are concerned, and the id and
    sequence of the first one; 0 or empty if unknown.
    """

    code: str
    file: str
    text: str
    offset: int = -1
    queue_id: int = 0
    queue: str = ""
    message_id: int = 0
    sequence: int = 0
    messages: int = 0

    @property
    def severity(self) -> Severity:
        return CODES[self.code]

    def as_json(self) -> dict[str, Any]:
        """Return the finding without unknown fields."""
        unknown: dict[str, Any] = {"offset": -1}
        known = {
            name: value
            for name, value in self._asdict().items()
            if value != unknown.get(name, 0) and value != ""
        }
        return {"code": self.code, "severity": str(self.severity)} | known


class Findings:
    """All findings of a check, in the order in which they were found. `names` are names of
    queues.
    """

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self.names: dict[int, str] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def add(
        self,
        code: str,
        file: str,
        text: str,
        offset: int = -1,
        *,
        queue_id: int = 0,
        message_id: int = 0,
        sequence: int = 0,
        messages: int = 0,
    ) -> None:
        """Add a finding. Raises: KeyError, for a code that is not in `CODES`."""
        CODES[code]
        queue = self.names.get(queue_id, "")
        found = Finding(code, file, text, offset, queue_id, queue, message_id, sequence, messages)
        self._found.append(found)

    def extend(self, found: Iterable[Finding]) -> None:
        """Add findings that were made elsewhere."""
        self._found.extend(found)

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [found for found in self._found if found.severity is severity]

    def of_harm(self) -> list[Finding]:
        """Return errors and warnings: everything that is not normal after a crash or a repair."""
        return [found for found in self._found if found.severity is not Severity.NOTE]
