"""FORMAT.md and the engine say the same; a changed document does not."""

import functools
import os
import re
import struct
import tempfile
from array import array
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import get_origin, get_type_hints

import msgpack
import pytest

from amqpstore import Message, Run
from amqpstore.catalog import definitions, rows, shapes, tables
from amqpstore.catalog.catalog import TABLES, LmdbCatalog
from amqpstore.catalog.tables import StoreRows
from amqpstore.evidence import durable_positions
from amqpstore.format.compression import decompress_columns
from amqpstore.format.index import BLOCK, COLUMNS, ENTRIES_A_FILE, encode_block, entries_of
from amqpstore.format.message import HEAD
from amqpstore.format.records import (
    COMMIT_TIME,
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    OPERATION,
    SEGMENT_PAYLOAD,
    Kind,
    Operation,
    OperationKind,
    checksum_seed,
    encode_messages,
    encode_segment_header,
    encode_transaction,
)
from amqpstore.provenance import client_trails
from amqpstore.system import filenames
from tests.format import decoder, document
from tests.format.stores import (
    CREATED_MS,
    ENVELOPE,
    EXPIRES_MS,
    SEALED_MS,
    STORE_ID,
    store_that_gave_up,
    store_that_passed_over,
    store_with_purge,
    written_store,
)

# What the parts of the example hold, by the names that the tables give to the fields.
HEADER_FIELDS = {
    "magic": MAGIC,
    "kind": Kind.MESSAGE,
    "flags": 0,
    "batch": 9,
    "number": 12,
    "segment": 3,
    "payload_length": 19,
    "header_checksum": 0x8F41EAF6,
    "payload_checksum": 0x394F0619,
}


SEGMENT_FIELDS = {"version": FORMAT_VERSION, "store_id": STORE_ID.bytes, "created_ms": CREATED_MS}


MESSAGE_FIELDS = {
    "exchange_length": 4,
    "routing_key_length": 2,
    "properties_length": 3,
    "exchange": b"logs",
    "routing_key": b"eu",
    "properties": bytes.fromhex("100002"),
    "body": b"four",
}


TRANSACTION_FIELDS = {"time_ms": SEALED_MS}


OPERATION_FIELDS = {
    "kind": OperationKind.ENQUEUE,
    "priority": 4,
    "-": 0,
    "message_count": 2,
    "queue_id": 7,
    "first_sequence": 5,
    "first_id": 11,
    "detail": EXPIRES_MS,
}


INDEX_FIELDS = {
    "queue_id": 7,
    "count": 2,
    "-": 0,
}


ROW_FIELDS = {
    "mark": rows.CHECKSUMMED,
    "checksum": 0x3418B5ED,
    "value": bytes.fromhex("81a3656e64ccf1"),
}


COLUMN_FIELDS = {
    "sequences": bytes.fromhex("0000000000000005 0000000000000001"),
    "ids": bytes.fromhex("000000000000000b 0000000000000001"),
    "sizes": bytes.fromhex("00000032 00000033"),
    "expires_ms": 2 * EXPIRES_MS.to_bytes(8, "big"),
    "delivery_counts": bytes(8),
    "priorities": b"\4\4",
    "flags": bytes(2),
    "body_sizes": bytes.fromhex("00000003 00000004"),
}


TRAIL_NOTES = [
    (1, SEALED_MS, ("here", 1, "ann"), "", 7, 5, 2),
    (2, SEALED_MS + 1, ("there", 2, "bob"), "worker", 7, 5, 1),
]


TRAIL_FIELDS: dict[str, object] = {
    "magic": client_trails.MAGIC,
    "number": 3,
    "count": 2,
    "names_length": 34,
}


POSITION = durable_positions.DurablePosition(3, 241, 10, 13, 9, 11, SEALED_MS)


TRAIL_COLUMN_FIELDS = {
    "times_ms": SEALED_MS.to_bytes(8, "big") + (SEALED_MS + 1).to_bytes(8, "big"),
    "queue_ids": 2 * (7).to_bytes(8, "big"),
    "first_sequences": 2 * (5).to_bytes(8, "big"),
    "message_counts": bytes.fromhex("00000002 00000001"),
    "clients": bytes.fromhex("0000 0001"),
    "consumer_tags": bytes.fromhex("0000 0001"),
    "what": b"\1\2",
    "names": msgpack.packb([[["here", 1, "ann"], ["there", 2, "bob"]], ["", "worker"]]),
}


def encoded_examples() -> list[bytes]:
    """The examples' segment, index file and catalog row, as the engine writes them."""
    buffers = [encode_segment_header(3, FORMAT_VERSION, STORE_ID.bytes, CREATED_MS)]
    messages = [Message(ENVELOPE, b"one"), Message(ENVELOPE, b"four")]
    seed = checksum_seed(STORE_ID.bytes)
    encode_messages(messages, 11, 3, buffers, [], seed=seed, batch=9)
    enqueue = Operation(OperationKind.ENQUEUE, 2, 7, 5, 11, EXPIRES_MS, 4)
    buffers.append(encode_transaction([enqueue], 9, 3, SEALED_MS, seed=seed))
    run = Run(5, 2, first_id=11, expires_ms=EXPIRES_MS, priority=4)
    entries = entries_of(run, array("I", [50, 51]), array("I", [3, 4]))
    block = encode_block(7, 1, entries, seed)
    content = b"".join(buffers)
    return [content, block, rows.encode_row("ends", b"0000000003", {"end": len(content)})]


def struct_spans(layout: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of each field of a struct; padding counts as a field."""
    spans = []
    offset = 0
    for field in re.findall(r"x+|[0-9]*[a-zA-Z]", layout.format):
        size = struct.calcsize(f">{field}")
        spans.append((offset, size))
        offset += size
    return spans


def evaluate(expression: str, sizes: dict[str, int]) -> int:
    """A size or an offset as the tables write it: sums and differences of numbers, letters, and
    letters that many times."""
    terms = re.findall(r"([+-]?)([0-9]*)([a-z]?)", expression)
    assert "".join(map("".join, terms)) == expression, expression
    total = 0
    for sign, factor, letter in terms:
        if factor or letter:
            value = int(factor or 1) * (sizes[letter] if letter else 1)
            total += -value if sign == "-" else value
    return total


def check_layout(
    text: str,
    heading: str,
    layout: struct.Struct,
    content: bytes,
    fields: Mapping[str, object],
    sizes: dict[str, int] | None = None,
) -> None:
    """Check that the table under a heading has the struct's spans, and that the content has the
    fields there.

    `sizes` are the letters in the table; rows that use them come after those of the struct.
    """
    rows = [row.cells for row in document.table(text, heading)]
    variable = {"e": 0, "k": 0, "p": 0, "c": 0, "n": len(content), **(sizes or {})}
    spans = [(evaluate(row["offset"], variable), evaluate(row["size"], variable)) for row in rows]
    fixed = struct_spans(layout)
    assert spans[: len(fixed)] == fixed, heading
    end = 0
    names = []
    for row, (offset, size) in zip(rows, spans, strict=True):
        assert offset == end, row
        end = offset + size
        name = row["field"].strip("`")
        names.append(name)
        if name == "operations":
            continue
        expected = fields[name]
        actual = content[offset:end]
        value = actual if isinstance(expected, bytes) else int.from_bytes(actual, "big")
        assert value == expected, row
    assert end == len(content), heading
    assert set(fields) <= set(names), heading


def check_layouts(text: str) -> None:
    content, index, row = document.examples(text)
    check_layout(text, "Catalog row", rows.HEAD, row, ROW_FIELDS)
    check_layout(text, "Record header", HEADER, content[0x6E:0x8E], HEADER_FIELDS)
    check_layout(text, "SEGMENT payload", SEGMENT_PAYLOAD, content[0x20:0x3C], SEGMENT_FIELDS)
    sizes = {"e": 4, "k": 2, "p": 3}
    check_layout(text, "MESSAGE payload", HEAD, content[0x8E:0xA1], MESSAGE_FIELDS, sizes)
    transaction = content[0xC1:]
    check_layout(text, "TRANSACTION payload", COMMIT_TIME, transaction, TRANSACTION_FIELDS)
    check_layout(text, "Operation", OPERATION, content[0xC9:], OPERATION_FIELDS)
    payload = index[HEADER.size :]
    frame = payload[BLOCK.size :]
    sizes = {"n": len(payload)}
    check_layout(text, "INDEX payload", BLOCK, payload, INDEX_FIELDS | {"columns": frame}, sizes)
    content = decompress_columns(frame, 2 * 38)
    check_layout(text, "INDEX columns", struct.Struct(">"), content, COLUMN_FIELDS, {"c": 2})
    trail = client_trails.encode_block(TRAIL_NOTES, 3, checksum_seed(STORE_ID.bytes))
    frame = trail[client_trails.BLOCK_HEADER.size :]
    sizes = {"n": len(trail)}
    fields = TRAIL_FIELDS | {
        "payload_length": len(frame),
        "header_checksum": decoder.crc32c(STORE_ID.bytes + trail[:20]),
        "payload_checksum": decoder.crc32c(STORE_ID.bytes + trail[:20] + frame),
        "payload": frame,
    }
    check_layout(text, "Trail block", client_trails.BLOCK_HEADER, trail, fields, sizes)
    names = TRAIL_COLUMN_FIELDS["names"]
    content = decompress_columns(frame, 2 * client_trails.NOTE_BYTES + len(names))
    sizes = {"n": len(content), "c": 2}
    no_struct = struct.Struct(">")
    check_layout(text, "Trail columns", no_struct, content, TRAIL_COLUMN_FIELDS, sizes)
    note = durable_positions.encode_note(POSITION, checksum_seed(STORE_ID.bytes))
    checksum = decoder.crc32c(STORE_ID.bytes + note[:-4])
    fields = POSITION._asdict() | {"magic": durable_positions.MAGIC, "checksum": checksum}
    check_layout(text, "Position note", durable_positions.NOTE, note, fields)
    columns = [one.cells["size"] for one in document.table(text, "INDEX columns")]
    widths = [array(code).itemsize for code in COLUMNS]
    assert columns == [f"{width}c" if width > 1 else "c" for width in widths]
    magic = document.table(text, "Record header")[0].cells["meaning"]
    assert bytes.fromhex(document.code(magic)) == MAGIC
    version = document.table(text, "SEGMENT payload")[0].cells["meaning"]
    assert int(version) == FORMAT_VERSION
    of_copy = document.table(text, "The copy of the definitions")[:-1]
    widths = [int(one.cells["size"]) for one in of_copy]
    assert [int(one.cells["offset"]) for one in of_copy] == list(accumulate([0, *widths[:-1]]))
    assert sum(widths) == definitions.HEADER.size
    assert bytes.fromhex(document.code(of_copy[0].cells["meaning"])) == definitions.MAGIC


def check_kinds(text: str) -> None:
    for heading, kinds in (
        ("Record kinds", Kind),
        ("Operation kinds", OperationKind),
        ("Trail kinds", client_trails.What),
    ):
        rows = [row.cells for row in document.table(text, heading)]
        listed = [(int(row["kind"]), document.code(row["name"])) for row in rows]
        assert listed == [(kind.value, kind.name) for kind in kinds], heading


def check_files(text: str) -> None:
    listed = [
        document.code(row.cells["name"]) for row in document.table(text, "The data directory")
    ]
    known = [
        filenames.MARKER,
        filenames.NEW_MARKER,
        filenames.MEMBER,
        filenames.NEW_MEMBER,
        filenames.REPLACEMENT,
        filenames.NEW_REPLACEMENT,
        filenames.LOCK,
        f"{filenames.CATALOG}/data.mdb",
        f"{filenames.CATALOG}/{filenames.DEFINITIONS}",
        f"{filenames.CATALOG}/{filenames.DEFINITIONS}.new",
        f"{filenames.CATALOG}/lock.mdb",
        f"{filenames.SEGMENTS}/%010d.segment",
        f"{filenames.SEGMENTS}/%010d.segment.new",
        f"{filenames.SEGMENTS}/%010d.spare",
        f"{filenames.INDEX}/%020d-%010d.index",
        f"{filenames.INDEX}/%020d-%010d.index.new",
        f"{filenames.QUARANTINE}/%010d.segment",
        f"{filenames.QUARANTINE}/%010d.segment.%d",
        f"{filenames.QUARANTINE}/repair-%010d/",
        f"{filenames.QUARANTINE}/rejoin-%010d/",
        f"{filenames.TRANSIENT}/%010d.segment",
        f"{filenames.KEPT}/%010d-%d.segment",
        f"{filenames.KEPT}/copies/%d/",
        f"{filenames.TRAILS}/%010d.trail",
        f"{filenames.TRAILS}/%010d.position",
        filenames.RESERVE,
    ]
    assert listed == known
    for path in (
        filenames.segment_path("", 12),
        filenames.new_segment_path("", 12),
        filenames.spare_path("", 12),
        filenames.index_path("", 7, 12),
        f"{filenames.rejoin_path('', 12)}/",
        filenames.kept_path("", 12, 345),
        f"{filenames.TRAILS}/{filenames.trail_name(12)}",
        f"{filenames.TRAILS}/{filenames.position_name(12)}",
    ):
        numbers = (7, 12) if path.startswith("index") else (12, 345)
        forms = [form % numbers[: form.count("%")] for form in listed]
        assert path in forms
    assert f"compacted ones from {filenames.FIRST_COMPACTED} (2^31)" in text
    assert f"A file has up to {ENTRIES_A_FILE} entries." in text


def check_catalog_tables(text: str) -> None:
    rows = [row.cells for row in document.table(text, "Catalog tables")]
    assert list(dict.fromkeys(document.code(row["table"]) for row in rows)) == list(TABLES)
    keys = [
        (document.code(row["table"]), document.code(row["key"]))
        for row in rows
        if row["key"].startswith("`")
    ]
    assert keys == [
        ("store", "store_id"),
        ("store", "next_queue_id"),
        ("store", "position"),
        ("store", "next_compacted"),
        ("store", "term"),
        ("store", "definitions"),
        ("queues", "%020d"),
        ("prepared", "%020d"),
        ("heads", "%020d"),
        ("index", "%020d-%010d"),
        ("segments", "%010d"),
        ("marks", "%010d"),
        ("ends", "%010d"),
        ("dictionaries", "%010d"),
        ("quarantine", "%010d"),
        ("passed_over", "%020d"),
        ("given_up", "%020d"),
    ]
    assert [form for table, form in keys if table == "store"] == list(StoreRows._fields)
    assert [(one.name, one.keys.form) for one in tables.TABLES] == keys[6:]
    for name, form in keys[6:]:
        table = next(table for table in tables.TABLES if table.name == name)
        numbers = (7, 12) if form.count("%") == 2 else 7
        assert table.key(numbers) == form % numbers
        assert table.parse_key(form % numbers) == numbers
    types = [document.code(row["value"]) for row in rows]
    assert types == [
        "bin",
        "int",
        "map",
        "int",
        "int",
        "int",
        "any",
        *["map"] * 6,
        "bin",
        "list",
        *["map"] * 2,
        *["any"] * 6,
    ]
    assert {one.name: one.keys for one in tables.TABLES} == shapes.KEYS
    with_file = [
        document.code(row["table"])
        for row in rows
        if row["key"].startswith("`%010d`") and row["written when"].endswith("with the file.")
    ]
    assert with_file == [one.name for one in tables.OF_SEGMENTS]
    (copied,) = re.findall(r"the tables that only the catalog has: (.*?)\. ", text, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", copied)) == definitions.COPIED
    *others, last = tables.DamageRow._fields
    (damage,) = [row["value"] for row in rows if document.code(row["table"]) == "quarantine"]
    assert damage.endswith(f"each as {', '.join(others)} and {last}")


def check_catalog_maps(text: str) -> None:
    rows = [row.cells for row in document.table(text, "Catalog maps")]
    listed = [tuple(document.code(row[name]) for name in ("table", "key", "type")) for row in rows]
    written = [
        (table, key, TYPES[type(value)])
        for table, found in written_maps().items()
        for key, value in found.items()
    ]
    assert [table for table, *_ in listed] == [table for table, *_ in written]
    assert sorted(listed) == sorted(written)
    position = StoreRows.read({"store": {"position": written_maps()["store"]}}.__getitem__).position
    assert position is not None
    assert list(position._fields) == [key for table, key, _ in listed if table == "store"]
    for row_class, table in ROW_CLASSES.items():
        hints = [TYPES[get_origin(one) or one] for one in get_type_hints(row_class).values()]
        assert sorted(hints) == sorted(type_ for name, _, type_ in listed if name == table), table
    for table, numbers in shapes.INTEGERS.items():
        of_table = [row for row in rows if document.code(row["table"]) == table]
        always = [row for row in of_table if "absent" not in row["meaning"]]
        integers = [document.code(row["key"]) for row in always if row["type"] == "`int`"]
        assert sorted(numbers) == sorted(integers), table


ROW_CLASSES = {
    tables.Position: "store",
    tables.NextSequenceRow: "heads",
    tables.SegmentRow: "segments",
    tables.OffsetTableRow: "marks",
    tables.SegmentEndRow: "ends",
}
"""Rows whose fields have the types of the map; others have sequences, or what their owner says."""

TYPES = {int: "int", bool: "bool", bytes: "bin", dict: "map", list: "list"}


@functools.cache
def written_maps() -> dict[str, dict[str, object]]:
    """Return a row of each table whose values are maps, as a store wrote it."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = written_store(scratch)
        catalog = LmdbCatalog(os.path.join(directory, filenames.CATALOG), False)
        names = ("prepared", "heads", "index", "segments", "marks", "ends")
        maps = {table: next(iter(catalog.rows(table).values())) for table in names}
        position = catalog.rows("store")["position"]
        catalog.close()
        purged = os.path.join(store_with_purge(scratch), filenames.CATALOG)
        catalog = LmdbCatalog(purged, False)
        # The row of a purge has one key more than that of a transaction.
        maps["prepared"] = next(iter(catalog.rows("prepared").values()))
        catalog.close()
        passed = os.path.join(store_that_passed_over(scratch), filenames.CATALOG)
        catalog = LmdbCatalog(passed, False)
        maps["passed_over"] = next(iter(catalog.rows("passed_over").values()))
        catalog.close()
        given_up = os.path.join(store_that_gave_up(scratch), filenames.CATALOG)
        catalog = LmdbCatalog(given_up, False)
        maps["given_up"] = next(iter(catalog.rows("given_up").values()))
        catalog.close()
    return {"store": position} | maps


def check_example(text: str) -> None:
    content, index, row = document.examples(text)
    assert [content, index, row] == encoded_examples()
    assert decoder.decode_row("ends", "0000000003", row) == {"end": len(content)}
    enqueue = decoder.StoredOperation("ENQUEUE", 2, 7, 5, 11, EXPIRES_MS, 4)
    assert decoder.decode_segment(content, 3) == [
        decoder.SegmentHeader(3, FORMAT_VERSION, STORE_ID.bytes, CREATED_MS),
        decoder.StoredMessage(11, "logs", "eu", ENVELOPE.properties, b"one"),
        decoder.StoredMessage(12, "logs", "eu", ENVELOPE.properties, b"four"),
        decoder.StoredTransaction(9, SEALED_MS, [enqueue]),
    ]
    entries = [
        decoder.StoredEntry(5, 11, 50, EXPIRES_MS, 0, 4, 0, 3),
        decoder.StoredEntry(6, 12, 51, EXPIRES_MS, 0, 4, 0, 4),
    ]
    assert decoder.decode_index(index, 1, STORE_ID.bytes) == [decoder.StoredBlock(7, entries)]


CHECKS: list[Callable[[str], None]] = [
    check_layouts,
    check_kinds,
    check_files,
    check_catalog_tables,
    check_catalog_maps,
    check_example,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_document_says_what_the_code_does(check: Callable[[str], None]) -> None:
    check(document.text())


def is_refused(text: str) -> bool:
    """Tell whether any check fails on the document."""
    for check in CHECKS:
        try:
            check(text)
        except (AssertionError, ValueError, LookupError):
            return True
    return False


def test_the_document_as_it_is_is_not_refused() -> None:
    assert not is_refused(document.text())


CHECKED_CELLS = {
    "Record header": ["offset", "size", "field"],
    "SEGMENT payload": ["offset", "size", "field"],
    "MESSAGE payload": ["offset", "size", "field"],
    "TRANSACTION payload": ["offset", "size", "field"],
    "Operation": ["offset", "size", "field"],
    "INDEX payload": ["offset", "size", "field"],
    "Trail block": ["offset", "size", "field"],
    "Position note": ["offset", "size", "field"],
    "Record kinds": ["kind", "name"],
    "Operation kinds": ["kind", "name"],
    "Trail kinds": ["kind", "name"],
    "The data directory": ["name"],
    "Catalog tables": ["table", "value"],
    "Catalog maps": ["table", "key", "type"],
}


@pytest.mark.parametrize("heading", CHECKED_CELLS)
def test_a_removed_row_is_noticed(heading: str) -> None:
    lines = document.text().splitlines()
    for row in document.table(document.text(), heading):
        rest = lines[: row.line] + lines[row.line + 1 :]
        assert is_refused("\n".join(rest)), row


@pytest.mark.parametrize("heading", CHECKED_CELLS)
def test_two_rows_in_each_others_place_are_noticed(heading: str) -> None:
    rows = document.table(document.text(), heading)
    for row in rows[1:]:
        if rows[0].cells.get("table", "first") == row.cells.get("table"):
            continue  # in the order of the keys of one table nothing is said
        lines = document.text().splitlines()
        first, other = rows[0].line, row.line
        lines[first], lines[other] = lines[other], lines[first]
        assert is_refused("\n".join(lines)), row


@pytest.mark.parametrize(
    ("heading", "column"),
    [(heading, column) for heading, columns in CHECKED_CELLS.items() for column in columns],
)
def test_an_altered_cell_is_noticed(heading: str, column: str) -> None:
    for row in document.table(document.text(), heading):
        cell = row.cells[column]
        if cell.isdecimal():
            altered = str(int(cell) + 1)
        elif cell.startswith("`"):
            altered = f"`x{cell[1:]}"
        else:
            altered = f"{cell}+1"
        lines = document.text().splitlines()
        line = lines[row.line]
        cells = line.split("|")
        place = list(row.cells).index(column) + 1
        cells[place] = f" {altered} "
        lines[row.line] = "|".join(cells)
        assert lines[row.line] != line
        assert is_refused("\n".join(lines)), row


def test_a_catalog_key_that_is_altered_is_noticed() -> None:
    for row in document.table(document.text(), "Catalog tables"):
        if row.cells["key"].startswith("`"):
            lines = document.text().splitlines()
            lines[row.line] = lines[row.line].replace("` | `", "` | `x", 1)
            assert is_refused("\n".join(lines)), row


def test_each_altered_byte_of_the_example_is_noticed() -> None:
    text = document.text()
    start = text.index("```hex")
    everything = b"".join(document.examples(text))
    places = [
        start + line.start() + found.start()
        for line in re.finditer(r"(?m)^[0-9a-f]{4}  .*?\|", text[start:])
        for found in re.finditer(r"(?<= )[0-9a-f]{2}(?= )", line[0])
    ]
    assert len(places) == len(everything)
    for place in places:
        digit = int(text[place], 16) ^ 1
        altered = f"{text[:place]}{digit:x}{text[place + 1 :]}"
        with pytest.raises(AssertionError):
            check_example(altered)


def test_an_altered_offset_of_the_example_is_noticed() -> None:
    with pytest.raises(AssertionError):
        document.examples(document.text().replace("\n006b  ", "\n006c  "))
