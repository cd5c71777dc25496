"""The form of the rows of each catalog table (FORMAT.md, "Catalog maps").

Every row is checked when it is read, so no later code has to expect a wrong type, an impossible
number, or a count that is too high. Unknown keys of a map are those of a newer version, and are
ignored.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from amqpstore.catalog.keys import (
    DICTIONARY_KEYS,
    INDEX_KEYS,
    LSN_KEYS,
    QUEUE_KEYS,
    SEGMENT_KEYS,
    Keys,
)
from amqpstore.format.index import ENTRIES_A_FILE, MAX_FILE_BYTES
from amqpstore.system.filenames import FIRST_COMPACTED

Rows = dict[str, dict[str, Any]]
"""Tables of rows, by key."""

MAX_KEY_BYTES = 511
"""LMDB's limit."""

_MAX_NUMBER = (1 << 63) - 1
_MAX_TIME_MS = (1 << 64) - 1
_MAX_DELIVERIES = (1 << 32) - 1
_MAX_REFERENCES = (1 << 32) - 1
_MAX_PRIORITY = 255

INTEGERS = {
    "heads": ("next_sequence",),
    "index": ("number", "end_bytes", "entries", "first", "end", "acked_count", "expires_ms"),
    "segments": (
        *("number", "first_id", "end_id", "end_bytes"),
        *("count", "total_bytes", "live_count", "live_bytes"),
    ),
    "marks": ("first_id", "end_id"),
    "ends": ("end",),
}
"""The integers in the maps of a table."""

KEYS: dict[str, Keys[Any]] = {
    "queues": QUEUE_KEYS,
    "heads": QUEUE_KEYS,
    "index": INDEX_KEYS,
    "segments": SEGMENT_KEYS,
    "marks": SEGMENT_KEYS,
    "ends": SEGMENT_KEYS,
    "dictionaries": DICTIONARY_KEYS,
    "quarantine": SEGMENT_KEYS,
    "passed_over": LSN_KEYS,
    "given_up": LSN_KEYS,
    "prepared": QUEUE_KEYS,
}


def misshapen(table: str, key: str, row: Any) -> str:
    """Return why a row is not as FORMAT.md says; empty if it is."""
    if row is None:
        return "it is nil"
    if not 0 < len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES:
        return f"a key has 1 to {MAX_KEY_BYTES} bytes"
    if keys := KEYS.get(table):
        try:
            keys.parse(key)
        except ValueError as error:
            return str(error)
    if table in INTEGERS and not isinstance(row, dict):
        return "it is not a map"
    for name in INTEGERS.get(table, ()):
        most = _MAX_TIME_MS if name == "expires_ms" else _MAX_NUMBER
        if not _is_number(row.get(name), most):
            return f"{name} is {_shown(row.get(name))}"
    look = _LOOKS.get(table)
    return look(key, row) if look else ""


def _is_number(value: object, most: int = _MAX_NUMBER) -> bool:
    # True and False are integers to Python, and would pass as counts.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _store(key: str, row: Any) -> str:
    if key == "store_id":
        return "" if isinstance(row, bytes) and len(row) == 16 else "it is not a store id"
    if key in ("next_queue_id", "term", "definitions"):
        return "" if _is_number(row) and row else f"it is {_shown(row)}"
    if key == "next_compacted":
        return "" if _is_number(row) and row > FIRST_COMPACTED else f"it is {_shown(row)}"
    if key != "position":
        return "this is not a row of this table"
    if not isinstance(row, dict):
        return "it is not a position in the log"
    for name in ("segment", "offset", "lsn", "message_id"):
        # The log never goes on in a compacted segment; a position there would have recovery scan
        # from the wrong file.
        if not _is_number(row.get(name), FIRST_COMPACTED - 1 if name == "segment" else _MAX_NUMBER):
            return f"{name} is {_shown(row.get(name))}"
    return ""


def _index(key: str, row: Any) -> str:
    entries = row["entries"]
    if INDEX_KEYS.parse(key).number != row["number"]:
        return f"it is of index file {row['number']}"
    if not 0 < entries <= ENTRIES_A_FILE:
        return f"{entries} entries: a file has at least one, and no more than {ENTRIES_A_FILE}"
    # Paging works by these ranges alone, without reading the file.
    if row["end"] <= row["first"]:
        return f"its entries claim the range {row['first']} to {row['end'] - 1}"
    if row["end_bytes"] > MAX_FILE_BYTES:
        return f"no index file has {row['end_bytes']} bytes"
    if row.get("body_bytes") is not None and not _is_number(row["body_bytes"]):
        return f"body_bytes is {_shown(row['body_bytes'])}"
    acked = row.get("acked")
    if not isinstance(acked, bytes) or len(acked) not in (0, (entries + 7) // 8):
        return f"acked is not a bitmap of {entries} entries"
    # A bit without an entry would be counted as an ack, and the file be dropped with live messages
    # in it.
    if int.from_bytes(acked, "little").bit_length() > entries:
        return f"acked has bits beyond those of {entries} entries"
    delivered = row.get("delivered")
    if not isinstance(delivered, dict) or not all(
        _is_number(place, entries - 1) and _is_number(times, _MAX_DELIVERIES)
        for place, times in delivered.items()
    ):
        return f"delivered is not a map of positions among {entries} entries"
    if not _are_ranges(row.get("postponed"), 2):
        return "postponed is not a list of ranges"
    deliveries = row.get("postponed_deliveries", [])
    if not _are_ranges(deliveries, 3) or not all(
        0 < times <= _MAX_DELIVERIES for _, _, times in deliveries
    ):
        return "postponed_deliveries is not a list of ranges with a count"
    # Then each entry is checked once, however many ranges a forged row has.
    if any(after[0] < before[1] for before, after in pairwise(deliveries)):
        return "ranges of postponed_deliveries overlap"
    return ""


def _are_ranges(value: object, size: int) -> bool:
    """Tell whether a value is a list of lists of `size` numbers, the first two of which are a
    range.
    """
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == size and all(map(_is_number, one)) and one[0] < one[1]
        for one in value
    )


def _segments(key: str, row: Any) -> str:
    if SEGMENT_KEYS.parse(key) != row["number"]:
        return f"it is of segment {row['number']}"
    try:
        ids, references = unpacked(row.get("ids")), unpacked(row.get("references"))
    except ValueError as error:
        return str(error)
    # The two are equal in a segment without messages: a crash has left it, or it was created and
    # never filled.
    if not row["first_id"] <= row["end_id"]:
        return f"its ids claim the range {row['first_id']} to {row['end_id']}, exclusive"
    size = row["end_id"] - row["first_id"]
    if ids is not None:
        size = len(ids)
        if not ids or any(after <= before for before, after in pairwise(ids)):
            return "its ids are not in ascending order"
        if (ids[0], ids[-1] + 1) != (row["first_id"], row["end_id"]):
            return f"its ids are from {ids[0]} to {ids[-1]}"
    if references is not None and max(references, default=0) > _MAX_REFERENCES:
        return f"it claims that {max(references)} queues hold one of its messages"
    if references is not None and len(references) != size:
        return f"it has {size} ids and {len(references)} reference counts"
    # If nothing is live there is no table, whatever gaps are between the ids.
    if references is None and size != row["count"] and row["live_count"]:
        return f"it has {size} ids and {row['count']} messages"
    return ""


def _marks(_key: str, row: Any) -> str:
    ids, offsets = row.get("ids"), row.get("offsets")
    for column in (ids, offsets):
        if not isinstance(column, list) or not all(map(_is_number, column)):
            return "it does not hold a list of numbers"
        if any(after <= before for before, after in pairwise(column)):
            return "its numbers are not in ascending order"
    if len(ids) != len(offsets):
        return f"it has {len(ids)} ids and {len(offsets)} offsets"
    return ""


def _quarantine(_key: str, row: Any) -> str:
    if not isinstance(row, list) or not all(
        isinstance(one, list)
        and len(one) == 3
        and all(map(_is_number, one[:2]))
        and isinstance(one[2], str)
        for one in row
    ):
        return "it is not a list of damaged places"
    return ""


def _passed_over(_key: str, row: Any) -> str:
    if not isinstance(row, dict):
        return "it is not a map"
    for name in ("lsns", "message_ids", "queue_ids"):
        if not isinstance(row.get(name), list) or not all(
            isinstance(one, list) and len(one) == 2 and all(map(_is_number, one))
            for one in row[name]
        ):
            return f"{name} is not a list of ranges"
    return ""


def _given_up(_key: str, row: Any) -> str:
    if not isinstance(row, dict):
        return "it is not a map"
    for name, size in (("lsns", 2), ("message_ids", 2), ("places", 4)):
        if not isinstance(row.get(name), list) or not all(
            isinstance(one, list) and len(one) == size and all(map(_is_number, one))
            for one in row[name]
        ):
            return f"{name} is not a list of {size} numbers each"
    return ""


def _dictionaries(_key: str, row: Any) -> str:
    return "" if isinstance(row, bytes) else "it is not a dictionary"


def _prepared(_key: str, row: Any) -> str:
    if not isinstance(row, dict) or "label" not in row:
        return "it is not a transaction"
    for name, size in (("locked", 3), ("publishes", 4)):
        if not isinstance(row.get(name), list) or not all(
            isinstance(one, list) and len(one) == size and all(map(_is_number, one[:3]))
            for one in row[name]
        ):
            return f"{name} is not a list of {size} values each"
    if not isinstance(row.get("purged", False), bool):
        return "purged is not a boolean"
    placements = (one for publish in row["publishes"] for one in _list(publish[3]))
    if not all(
        isinstance(one, list)
        and len(one) == 3
        and _is_number(one[0])
        and _is_number(one[1], _MAX_TIME_MS)
        and (one[2] is None or _is_number(one[2]))
        for one in placements
    ):
        return "publishes does not name its queues"
    if any(publish[2] > _MAX_PRIORITY for publish in row["publishes"]):
        return f"publishes has a priority above {_MAX_PRIORITY}"
    return ""


def _list(value: object) -> list[Any]:
    """Return a list; for any other value, a list with one invalid element."""
    return value if isinstance(value, list) else [None]


_LOOKS: dict[str, Callable[[str, Any], str]] = {
    "store": _store,
    "index": _index,
    "segments": _segments,
    "marks": _marks,
    "quarantine": _quarantine,
    "passed_over": _passed_over,
    "given_up": _given_up,
    "dictionaries": _dictionaries,
    "prepared": _prepared,
}


def unpacked(packed: object) -> array[int] | None:
    """Return the numbers of a column `ids` or `references`; None if it is empty. Raises:
    ValueError.
    """
    if not isinstance(packed, bytes) or packed[:1] not in (b"", b"B", b"H", b"I", b"Q"):
        raise ValueError("it does not hold a column of numbers")
    if not packed:
        return None
    column = array(packed[:1].decode())
    if (len(packed) - 1) % column.itemsize:
        raise ValueError(f"{len(packed) - 1} bytes are not a column of numbers")
    column.frombytes(packed[1:])
    if sys.byteorder == "little":
        column.byteswap()
    return array("Q", column)
