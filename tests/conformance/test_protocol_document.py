"""server/PROTOCOL.md says what the code does: its three tables against the codec, row by row."""

import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amqpstore import Envelope
from amqpstore_server.broker.channels.gets import MAX_WAITING
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.rules.settings import CHECKS
from amqpstore_server.broker.transactions.replay import ReplayRequest
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_server.protocol.bounds import MAX_ARGUMENTS_DEPTH, MAX_DEPTH, MAX_ENTRIES
from amqpstore_server.protocol.content import edit_properties
from amqpstore_server.protocol.errors import (
    AmqpError,
    ChannelException,
    ConnectionException,
    MalformedError,
)
from amqpstore_server.protocol.field_table import Timestamp, decode_table
from amqpstore_server.protocol.methods import METHODS, BasicGet
from tests.format.document import Row, code, table

PATH = Path(__file__).parents[2] / "server" / "PROTOCOL.md"

DIRECTIONS = {"C>S", "S>C", "both"}
STATUS = re.compile(r"supported|not sent|(?:refused|not yet) (\d{3})")
KINDS: dict[str, type[AmqpError]] = {"soft": ChannelException, "hard": ConnectionException}

PYTHON_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "str": str,
    "bytes": bytes,
    "Timestamp": Timestamp,
    "list": list,
    "dict": dict,
    "None": type(None),
}


class MethodRow(NamedTuple):
    """A row of the table of methods. `reply_code` is the one that its status names, or None."""

    name: str
    ids: tuple[int, int]
    direction: str
    status: str
    reply_code: int | None
    notes: str


def document() -> str:
    with open(PATH, encoding="utf-8") as file:
        return file.read()


def method_rows() -> list[MethodRow]:
    """The table of methods. Fails for a row that is not in its form."""
    rows = []
    for row in table(document(), "Methods"):
        cells = row.cells
        class_id, method_id = cells["ids (class, method)"].split(", ")
        status = STATUS.fullmatch(cells["status"])
        assert status, cells
        assert cells["direction"] in DIRECTIONS, cells
        rows.append(
            MethodRow(
                code(cells["method"]),
                (int(class_id), int(method_id)),
                cells["direction"],
                cells["status"],
                int(status[1]) if status[1] else None,
                cells["notes"],
            )
        )
    return rows


def rows_by_status() -> dict[str, list[MethodRow]]:
    """The table of methods by what becomes of them: `supported`, `not yet 540`, and so on."""
    by_status: dict[str, list[MethodRow]] = {}
    for row in method_rows():
        by_status.setdefault(row.status, []).append(row)
    return by_status


def reply_code_classes() -> dict[int, type[AmqpError]]:
    """Every exception that has a reply code."""
    return {cls.reply_code: cls for kind in KINDS.values() for cls in kind.__subclasses__()}


def test_every_method_has_one_row_with_its_ids() -> None:
    rows = [(row.name, row.ids) for row in method_rows()]
    assert sorted(rows) == sorted((cls.name, ids) for ids, cls in METHODS.items())


def test_rows_are_in_the_order_of_the_ids() -> None:
    ids = [row.ids for row in method_rows()]
    assert ids == sorted(ids)


def test_a_status_agrees_with_its_direction() -> None:
    """Only what clients send can be refused; only what they cannot send can be `not sent`."""
    for row in method_rows():
        if row.direction == "S>C":
            assert row.status in ("supported", "not sent"), row
        else:
            assert row.status != "not sent", row


def test_the_answers_to_what_is_not_there_are_not_sent() -> None:
    rows = {row.name: row for row in method_rows()}
    for row in rows.values():
        answer = rows.get(f"{row.name}-ok")
        if answer and row.direction == "C>S" and answer.direction == "S>C":
            assert answer.status == ("supported" if row.status == "supported" else "not sent")


def test_reply_codes_in_a_status_are_reply_codes() -> None:
    codes = {row.reply_code for row in method_rows()} - {None}
    assert codes <= set(reply_code_classes())


def encoded(tag: str, value: bytes) -> bytes:
    entry = b"\x01k" + tag.encode("latin-1") + value
    return struct.pack(">I", len(entry)) + entry


def decoded(tag: str, value: bytes) -> Any:
    fields, _ = decode_table(encoded(tag, value), 0)
    return fields["k"]


def tag_rows() -> list[Row]:
    return table(document(), "Field tables")


def test_the_tags_are_those_that_are_decoded() -> None:
    known = set()
    for tag in map(chr, range(256)):
        try:
            decode_table(encoded(tag, b""), 0)
        except MalformedError as error:
            if "not a field type" in str(error):
                continue
        known.add(tag)
    tags = [code(row.cells["tag"]) for row in tag_rows()]
    assert len(set(tags)) == len(tags)
    assert set(tags) == known


@pytest.mark.parametrize("row", tag_rows(), ids=lambda row: row.cells["tag"])
def test_a_tag_has_the_bytes_and_the_python_type_of_its_row(row: Row) -> None:
    tag, size = code(row.cells["tag"]), row.cells["bytes"]
    python_type = PYTHON_TYPES[code(row.cells["python"])]
    if size == "4 + n":
        assert type(decoded(tag, bytes(4))) is python_type
        with pytest.raises(MalformedError):
            decoded(tag, struct.pack(">I", 1))
        return
    assert type(decoded(tag, bytes(int(size)))) is python_type
    if int(size):
        with pytest.raises(MalformedError):
            decoded(tag, bytes(int(size) - 1))
    with pytest.raises(MalformedError):
        decoded(tag, bytes(int(size) + 1))


@pytest.mark.parametrize("row", tag_rows(), ids=lambda row: row.cells["tag"])
def test_an_integer_is_signed_as_its_type_says(row: Row) -> None:
    found = re.fullmatch(r"(u?)int(\d+)", row.cells["type"])
    if found:
        bits = int(found[2])
        assert bits == 8 * int(row.cells["bytes"])
        expected = (1 << bits) - 1 if found[1] else -1
        assert decoded(code(row.cells["tag"]), b"\xff" * (bits // 8)) == expected


def test_text_that_is_not_utf_8_is_bytes() -> None:
    assert decoded("S", b"\x00\x00\x00\x01\xff") == b"\xff"


def test_the_limits_of_a_table_are_those_of_the_code() -> None:
    text = " ".join(document().split())
    assert f"{MAX_ENTRIES} entries, counting those of all tables" in text
    assert f"{MAX_DEPTH} levels, including itself ({MAX_ARGUMENTS_DEPTH} in the" in text


def test_reply_codes_are_the_exceptions() -> None:
    rows = [
        (int(row.cells["code"]), code(row.cells["name"]), row.cells["kind"])
        for row in table(document(), "Reply codes")
    ]
    expected = [
        (reply_code, cls.reply_name, kind)
        for reply_code, cls in sorted(reply_code_classes().items())
        for kind, base in KINDS.items()
        if issubclass(cls, base)
    ]
    assert rows == expected


def test_the_arguments_of_queues_are_those_that_are_checked() -> None:
    listed = {code(row.cells["argument"]) for row in table(document(), "Arguments of queues")}
    assert listed == CHECKS.keys()


def test_the_get_that_waits_is_on_the_wire_as_it_is_here() -> None:
    (line,) = re.findall(r"\n    (00 3c 00 46 .*)\n", document())
    get = BasicGet(queue="q", arguments={"x-wait": 1000})
    assert bytes.fromhex(line) == get.encode()
    assert f"one channel {MAX_WAITING} gets may wait" in document()


def test_the_headers_of_a_replay_are_those_that_it_reads() -> None:
    """Each is refused where it is of no type that it can have."""
    listed = [code(row.cells["header"]) for row in table(document(), "History and replays")]
    assert len(listed) == len(set(listed)) == len(ReplayRequest._fields) - 1
    for header in listed:
        raw = edit_properties(b"\0\0", headers={header: True})
        with pytest.raises(PreconditionFailedError, match=header):
            ReplayRequest.of(Envelope("amq.replay", "q", raw))
    assert f"more than {BROKER_LIMITS.max_replay_bytes >> 20} MiB" in document()
