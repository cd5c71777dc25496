"""The fix for each finding. FINDINGS.md has the same for people."""

from __future__ import annotations

_CATALOG = "the catalog is rewritten; this part is rebuilt from what is left"
_INDEX = "index files are rewritten; lost entries come from the log"
_SEGMENT = "its sound live messages go to a new segment, the file goes to quarantine"
_COUNT = "recounted"
_DROP = "omitted from the new catalog"

FIXES = {
    "marker-missing": "a marker is written",
    "marker-damaged": "a marker is written",
    "store-id-differs": "files of another store are replaced, or go to quarantine",
    "catalog-missing": _CATALOG,
    "catalog-damaged": _CATALOG,
    "catalog-old": "what is newer than the catalog is kept",
    "passed-over": "what is found of it is kept; the rest is lost",
    "row-damaged": _CATALOG,
    "row-orphaned": _DROP,
    "table-unknown": _DROP,
    "file-unreadable": "its readable part is kept, the file goes to quarantine",
    "file-wrong-kind": "it goes to quarantine",
    "file-foreign": "no repair: give it to the owner of the store first",
    "file-unknown": "it goes to quarantine",
    "file-misplaced": "it is read as what it is, and its live messages are kept",
    "file-left-over": "a segment or an index file goes to quarantine, any other file stays",
    "segment-missing": "its row is removed; messages that are in no other file are lost",
    "segment-short": _SEGMENT,
    "segment-header": _SEGMENT,
    "segment-copied": "it goes to quarantine",
    "segment-put-back": "what the last repair gave up is kept, where it was",
    "record-damaged": _SEGMENT,
    "message-malformed": _SEGMENT,
    "body-damaged": _SEGMENT,
    "batch-broken": _SEGMENT,
    "batch-torn": "its bytes lie after the segment's recorded end, and are ignored",
    "batch-behind-end": "it is adopted: the segment's recorded end moves behind it",
    "log-short": "what is missing is lost; its numbers are not given again",
    "log-order": _SEGMENT,
    "operation-malformed": "it is omitted",
    "operation-queue-unknown": "queue ids continue after it",
    "operation-sequence-unknown": "sequences continue after it",
    "sequence-reused": "the message that had it first keeps it",
    "index-missing": _INDEX,
    "index-damaged": _INDEX,
    "index-order": _INDEX,
    "index-row-differs": "the row is rewritten from entries, accounts and log",
    "index-behind-end": "omitted: the log has it",
    "message-lost": "the queue continues without it",
    "message-orphaned": "it goes to queue amq.lost-and-found",
    "message-size-differs": _COUNT,
    "references-differ": _COUNT,
    "account-differs": _COUNT,
    "marks-wrong": "rebuilt",
    "position-wrong": "the log continues in a new segment",
    "head-too-low": "sequences continue after the highest known",
    "queue-id-too-low": "ids continue after the highest known",
    "dictionary-damaged": "taken from the copy of the definitions if it is there, else omitted",
    "quarantine-missing": _DROP,
    "prepared-queue-missing": "the transaction is rolled back: the messages it locked are ready "
    "again",
    "prepared-incomplete": "it stays undecided, with the messages that are left",
}
"""The fixes, by code; findings with any other code do not cause a repair."""

NAMES_ONLY = frozenset({"file-unknown", "file-wrong-kind"})
"""Findings that are fixed by moving files away."""

MARKER_ONLY = frozenset({"marker-missing", "marker-damaged"})
"""Findings that are fixed by a new marker."""
