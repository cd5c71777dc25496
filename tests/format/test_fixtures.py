"""The stores in fixtures/ are read as on the day when they were made."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Store
from amqpstore.filenames import segment_path
from fixtures import make_v1
from fixtures.contents import contents
from tests.format import decoder

FIXTURES = Path(make_v1.__file__).parent
V1 = FIXTURES / "v1"
STORES = ("golden", "torn", "damaged")
PAIRS = [(name, name) for name in STORES]


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A copy of the store that the test's parameter names, to be opened and changed."""
    return str(shutil.copytree(V1 / request.param / "store", tmp_path / "store"))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((V1 / name / "expected.json").read_text("utf-8"))
    return found


def test_no_fixture_was_written_again() -> None:
    assert "".join(make_v1.sums(str(V1))) == (V1 / "SHA256SUMS").read_text("utf-8")


def test_no_fixture_was_left_open() -> None:
    assert not list(FIXTURES.rglob("lock*"))


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), PAIRS, indirect=["copy"])
def test_a_store_of_version_1_holds_what_it_held(copy: str, name: str) -> None:
    assert contents(copy) == expected(name)


@pytest.mark.skipif(sys.byteorder != "little", reason="the catalogs are of little-endian machines")
@pytest.mark.parametrize(("copy", "name"), PAIRS, indirect=["copy"])
def test_opening_a_store_twice_finds_the_same_messages(copy: str, name: str) -> None:
    contents(copy)
    again = contents(copy)
    first = expected(name)
    assert again["queues"] == first["queues"]
    assert again["definitions"] == first["definitions"]
    torn = {"torn_bytes": 0, "rolled_back": 0}
    # What was taken back is behind the segment's end by now, and is not read again.
    read = first["report"]["scanned_bytes"] - first["report"]["torn_bytes"]
    assert again["report"] == first["report"] | torn | {"scanned_bytes": read}


@pytest.mark.parametrize("copy", STORES, indirect=True)
def test_opening_a_store_changes_no_segment(copy: str) -> None:
    before = {path.name: path.read_bytes() for path in Path(copy, "segments").iterdir()}
    Store.open(copy).abandon()
    assert {path.name: path.read_bytes() for path in Path(copy, "segments").iterdir()} == before


def test_the_independent_decoder_reads_the_same_messages_from_the_golden_store() -> None:
    stored: dict[int, decoder.StoredMessage] = {}
    queues: dict[int, dict[int, int]] = {}
    delivered: dict[tuple[int, int], int] = {}
    for number in range(1, 5):
        content = Path(segment_path(str(V1 / "golden" / "store"), number)).read_bytes()
        for record in decoder.decode_segment(content, number):
            if isinstance(record, decoder.StoredMessage):
                stored[record.id] = record
            elif isinstance(record, decoder.StoredTransaction):
                for operation in record.operations:
                    _apply(queues.setdefault(operation.queue_id, {}), delivered, operation)
    for queue in expected("golden")["queues"].values():
        assert queue["messages"] == [
            {
                "sequence": sequence,
                "id": message_id,
                "delivery_count": delivered.get((queue["id"], sequence), 0),
                "exchange": stored[message_id].exchange,
                "routing_key": stored[message_id].routing_key,
                "properties": stored[message_id].properties.hex(),
                "body": stored[message_id].body.hex(),
            }
            for sequence, message_id in queues.get(queue["id"], {}).items()
        ]


def test_the_generator_still_writes_the_same_segments(tmp_path: Path) -> None:
    # As long as version 1 is the one that is written; a later version drops this test.
    made = tmp_path / "v1"
    make_v1.make(str(made))
    for name in STORES:
        for path in sorted((V1 / name / "store" / "segments").iterdir()):
            assert (made / name / "store" / "segments" / path.name).read_bytes() == (
                path.read_bytes()
            ), path
        assert sorted(os.listdir(made / name)) == sorted(os.listdir(V1 / name))


def _apply(
    queue: dict[int, int],
    delivered: dict[tuple[int, int], int],
    operation: decoder.StoredOperation,
) -> None:
    for place in range(operation.message_count):
        sequence = operation.first_sequence + place
        if operation.kind == "ENQUEUE":
            queue[sequence] = operation.first_id + place
        elif operation.kind == "DELIVERED":
            key = operation.queue_id, sequence
            delivered[key] = delivered.get(key, 0) + 1
        else:
            queue.pop(sequence, None)
