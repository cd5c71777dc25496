"""What a repair does about each finding. FINDINGS.md shows the same to people."""

from __future__ import annotations

_CATALOG = "the catalog is written anew, with this from what is left"
_INDEX = "index files are written anew; entries that are lost come from the log"
_SEGMENT = "its live messages that are sound go to a new segment, it goes to quarantine"
_COUNT = "counted anew"
_DROP = "left out of the new catalog"

FIXES = {
    "marker-missing": "a marker is written",
    "marker-damaged": "a marker is written",
    "store-id-differs": "what says another store is replaced, or goes to quarantine",
    "catalog-missing": _CATALOG,
    "catalog-damaged": _CATALOG,
    "row-damaged": _CATALOG,
    "row-orphaned": _DROP,
    "table-unknown": _DROP,
    "file-unreadable": "what can be read of it is kept, it goes to quarantine",
    "file-unknown": "it goes to quarantine",
    "file-left-over": "it goes to quarantine",
    "segment-missing": "its row goes, and the messages it had are lost",
    "segment-short": _SEGMENT,
    "segment-header": _SEGMENT,
    "segment-copied": "it goes to quarantine",
    "record-damaged": _SEGMENT,
    "message-malformed": _SEGMENT,
    "body-damaged": _SEGMENT,
    "batch-broken": _SEGMENT,
    "batch-torn": "its bytes are behind the end that is noted",
    "batch-behind-end": "it is adopted: its end is noted behind it",
    "log-order": _SEGMENT,
    "operation-malformed": "it is left out",
    "operation-queue-unknown": "ids of queues go on behind it",
    "operation-sequence-unknown": "sequences go on behind it",
    "sequence-reused": "the message that had it first keeps it",
    "index-missing": _INDEX,
    "index-damaged": _INDEX,
    "index-order": _INDEX,
    "index-row-differs": "the row is written anew, from entries, accounts and log",
    "index-behind-end": "left out: the log has it",
    "message-lost": "the queue goes on without it",
    "message-orphaned": "it goes to queue amq.lost-and-found",
    "message-size-differs": _COUNT,
    "references-differ": _COUNT,
    "account-differs": _COUNT,
    "marks-wrong": "looked for anew",
    "position-wrong": "the log goes on in a new segment",
    "head-too-low": "sequences go on behind the highest that is known",
    "queue-id-too-low": "ids go on behind the highest that is known",
    "dictionary-damaged": "taken from the copy of the definitions, if it is there, else left out",
    "quarantine-missing": _DROP,
    "prepared-queue-missing": "the transaction is rolled back: what it locked is ready again",
    "prepared-incomplete": "it stays undecided, with what is left of it",
}
"""By code; a finding of any other is no reason for a repair."""

NAMES_ONLY = frozenset({"file-unknown"})
"""Findings that are mended by moving files away."""

MARKER_ONLY = frozenset({"marker-missing", "marker-damaged"})
"""Findings that are mended by a new marker."""
