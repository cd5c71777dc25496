"""Views of a store against what `StoreImage`, the engine's own reader, says of it."""

import datetime
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThanOrEqual

from amqpstore import Envelope, Message, Options, Run
from amqpstore.format.records import Kind, OperationKind, Record
from amqpstore.system.filenames import FIRST_COMPACTED
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from amqpstore_server.protocol.field_table import Timestamp
from amqpstore_tools.check.engine import check
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.spark.reading.options import OptionError
from tests.unit.offline.stores import FIXTURES, create, open_store, publish, take
from tests.unit.spark.views import Row, files_read, read


def expected(directory: str) -> list[tuple[object, ...]]:
    """Every live message of every queue, one by one."""
    found: list[tuple[object, ...]] = []
    with StoreImage.open(directory) as image:
        for queue in image.queues:
            for entry in queue.entries():
                stored = image.message(entry.message_id)
                body = stored.message(image.decoder).body if stored else None
                name = None if queue.is_hidden else queue.name
                found.append((name, entry.sequence, entry.message_id, entry.delivery_count, body))
    return sorted(found, key=str)


def live(rows: list[Row]) -> list[tuple[object, ...]]:
    names = ("queue", "position", "id", "delivery_count", "body")
    found = [tuple(row[name] for name in names) for row in rows if row["state"] in LIVE]
    return sorted(found, key=str)


def finding_codes(directory: str) -> list[str]:
    return [row["code"] for row in read(directory, view="findings")]


VIEWS_OF_A_STORE = ("messages", "transactions", "queues", "segments", "findings")
LIVE = ("ready", "unacked", "prepared")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FIXTURES.iterdir() if (path / "store").is_dir())
)
def test_live_messages_are_those_of_the_engine_in_every_fixture(name: str, tmp_path: Path) -> None:
    store = str(shutil.copytree(FIXTURES / name / "store", tmp_path / name))
    try:
        wanted = expected(store)
    except Exception:  # noqa: BLE001 - whatever it is, Spark gets it too
        with pytest.raises(Exception):  # noqa: B017
            read(store)
        return
    assert live(read(store)) == wanted
    assert finding_codes(store) == [found.code for found in check(store).findings]


def test_a_busy_store_is_read_message_by_message(busy: str) -> None:
    rows = read(busy)
    assert live(rows) == expected(busy)
    assert all(row["checksum_ok"] for row in rows)
    assert {row["state"] for row in rows} == {"ready", "unacked", "acked-not-compacted"}
    assert any(row["segment"] >= FIRST_COMPACTED for row in rows)


def test_what_was_acked_and_is_there_still_says_of_which_queue_it_was(busy: str) -> None:
    with StoreImage.open(busy) as image:
        enqueued = {
            (operation.queue_id, operation.first_sequence + step)
            for segment in image.log_segments()
            if segment in image.segments
            for one in image.transactions(segment)
            for operation in one.operations
            if operation.kind == OperationKind.ENQUEUE
            for step in range(operation.message_count)
        }
    rows = [row for row in read(busy) if row["segment"] < FIRST_COMPACTED]
    assert {(row["queue_id"], row["position"]) for row in rows} == enqueued
    assert len(rows) == len(enqueued)


def test_every_sound_message_is_a_row_and_its_offset_leads_to_it(busy: str) -> None:
    with StoreImage.open(busy) as image:
        records = {
            (segment.number, found.offset): found.number
            for segment in image.segments
            for found in segment.scan()
            if isinstance(found, Record) and found.kind == Kind.MESSAGE
        }
    rows = read(busy)
    assert {(row["segment"], row["offset"]): row["id"] for row in rows} == records


def test_a_message_in_three_queues_is_three_rows(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s"))
    queues = [create(store, name) for name in "abc"]
    store.publish(queues, [Message(Envelope("x", "k"), b"one"), Message(Envelope("x", "k"), b"2")])
    store.sync()
    taken = store.take(queues[1], limit=1)
    assert isinstance(taken, Run)
    store.ack(queues[1], taken)
    store.close()
    rows = read(str(tmp_path / "s"))
    found = sorted((row["queue"], row["body"], row["state"], row["refcount"]) for row in rows)
    assert found == [
        ("a", b"2", "ready", 3),
        ("a", b"one", "ready", 2),
        ("b", b"2", "ready", 3),
        ("b", b"one", "acked-not-compacted", 2),
        ("c", b"2", "ready", 3),
        ("c", b"one", "ready", 2),
    ]


def test_every_property_has_its_type(tmp_path: Path) -> None:
    properties = encode_properties(
        BasicProperties(
            content_type="text/plain",
            content_encoding="gzip",
            headers={"n": 7, "s": "ü", "t": {"a": [1, True]}, "v": None, "b": b"\xff"},
            delivery_mode=2,
            priority=9,
            correlation_id="c",
            reply_to="r",
            expiration="1000",
            message_id="m",
            timestamp=Timestamp(1_700_000_000),
            type="t",
            user_id="u",
            app_id="a",
            cluster_id="x",
        )
    )
    store = open_store(str(tmp_path / "s"))
    queue = create(store, "q")
    store.publish([queue], [Message(Envelope("e", "r.k", properties), b"b" * 300)])
    store.publish([queue], [Message(Envelope("e", "r.k", b"\xff\xff\xff"), b"odd")])
    store.sync()
    store.close()
    first, odd = read(str(tmp_path / "s"))
    assert dict(first["headers"]) == {
        "n": "7",
        "s": "ü",
        "t": '{"a": [1, true]}',
        "v": None,
        "b": '{"hex": "ff"}',
    }
    assert first["timestamp"] == datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    assert (first["delivery_mode"], first["priority"], first["expiration"]) == (2, 9, "1000")
    assert [first[name] for name in ("content_type", "user_id", "cluster_id")] == [
        "text/plain",
        "u",
        "x",
    ]
    assert (first["properties"], first["body_bytes"]) == (properties, 300)
    # Bytes that are not a list of properties are kept as they are.
    assert (odd["properties"], odd["content_type"], odd["body"]) == (b"\xff\xff\xff", None, b"odd")


def test_compressed_bodies_are_the_bodies(tmp_path: Path) -> None:
    options = Options(segment_bytes=4096, reserve_bytes=0, compress_from_bytes=64)
    store = open_store(str(tmp_path / "s"), options)
    publish(store, create(store, "q"), 60)
    store.close()
    rows = read(str(tmp_path / "s"))
    assert [row["body"] for row in rows] == [b"%d" % number * 100 for number in range(60)]
    assert [row["body_bytes"] for row in rows] == [len(row["body"]) for row in rows]
    without = read(str(tmp_path / "s"), bodies="false")
    assert [row["body_bytes"] for row in without] == [len(row["body"]) for row in rows]
    assert {row["body"] for row in without} == {None}


def test_only_columns_that_are_asked_for(busy: str) -> None:
    rows = read(busy, columns="queue,id")
    assert set(rows[0]) == {"id", "queue"}
    assert len(rows) == len(read(busy))
    with pytest.raises(OptionError, match="no column 'nope'"):
        read(busy, columns="nope")


def test_filters_leave_rows_and_segments_out_and_no_wanted_row(busy: str) -> None:
    rows = read(busy)
    cases: list[tuple[list[Filter], Callable[[Row], bool]]] = [
        ([EqualTo(("queue",), "o")], lambda row: row["queue"] == "o"),
        ([EqualTo(("state",), "ready")], lambda row: row["state"] == "ready"),
        ([In(("queue",), ("a", "zzz"))], lambda row: row["queue"] == "a"),
        ([EqualTo(("segment",), 3)], lambda row: row["segment"] == 3),
        (
            [GreaterThan(("segment",), 2), LessThanOrEqual(("segment",), 5)],
            lambda row: 2 < row["segment"] <= 5,
        ),
    ]
    for filters, wanted in cases:
        found = read(busy, *filters)
        assert [row for row in found if wanted(row)] == [row for row in rows if wanted(row)]
        assert len(found) < len(rows)
    assert set(files_read(busy, EqualTo(("segment",), 3))) <= {3}
    assert files_read(busy, EqualTo(("queue",), "zzz"), EqualTo(("state",), "ready")) == []


def test_options_ask_for_exactly_the_rows_that_a_filter_would_leave(busy: str) -> None:
    rows = read(busy)
    times = sorted(row["publish_time"] for row in rows if row["publish_time"])
    first, last = times[len(times) // 3], times[len(times) // 2]
    cases: list[tuple[Row, Callable[[Row], bool]]] = [
        ({"queue": "o"}, lambda row: row["queue"] == "o"),
        ({"queue": '["a", "o"]', "vhost": "/"}, lambda row: row["queue"] in ("a", "o")),
        ({"vhost": "nothing"}, lambda _row: False),
        ({"state": "ready"}, lambda row: row["state"] == "ready"),
        ({"segments": "2-5"}, lambda row: 2 <= row["segment"] <= 5),
        ({"segments": "4-"}, lambda row: row["segment"] >= 4),
        (
            {"from": first.isoformat(), "to": last.isoformat()},
            lambda row: row["publish_time"] and first <= row["publish_time"] < last,
        ),
    ]
    for options, wanted in cases:
        assert read(busy, **options) == [row for row in rows if wanted(row)], options
    segment = rows[0]["segment"]
    assert files_read(busy, segments=f"{segment}") == [segment]
    operations = read(busy, view="transactions")
    assert read(busy, view="transactions", queue="o") == [
        row for row in operations if row["queue"] == "o"
    ]
    # Both, where Spark pushes a filter down.
    both = read(busy, EqualTo(("state",), "ready"), queue="o")
    assert both == [row for row in rows if (row["queue"], row["state"]) == ("o", "ready")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"view": "transactions", "state": "ready"}, "option state is for messages, not for view"),
        ({"view": "queues", "queue": "q"}, "is for messages and transactions, not for view queues"),
        ({"segments": "a"}, "option segments is a number, or two"),
        ({"from": "yesterday"}, "option from: 'yesterday' is not a time"),
        ({"queue": "[1]"}, "a name or a JSON list of names"),
    ],
)
def test_options_that_say_what_cannot_be(busy: str, options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read(busy, **options)


def test_a_filter_by_time_leaves_out_what_is_older(busy: str) -> None:
    rows = read(busy)
    times = sorted(row["publish_time"] for row in rows if row["publish_time"])
    middle = times[len(times) // 2]
    found = read(busy, GreaterThan(("publish_time",), middle))
    wanted = [row for row in rows if row["publish_time"] and row["publish_time"] > middle]
    assert [row for row in found if row["publish_time"] > middle] == wanted
    later = times[-1] + datetime.timedelta(days=1)
    assert read(busy, GreaterThan(("publish_time",), later)) == []
    # Nothing says when the last one ends.
    assert len(files_read(busy, GreaterThan(("publish_time",), later))) == 1


def test_transactions_are_those_of_the_log(busy: str) -> None:
    with StoreImage.open(busy) as image:
        wanted = Counter(
            (one.lsn, operation.queue_id, operation.first_sequence, operation.message_count)
            for segment in image.log_segments()
            for one in image.transactions(segment)
            for operation in one.operations
        )
    rows = read(busy, view="transactions")
    names = ("lsn", "queue_id", "first_position", "count")
    assert Counter(tuple(row[name] for name in names) for row in rows) == wanted


@pytest.mark.parametrize("view", VIEWS_OF_A_STORE)
def test_a_store_that_has_nothing_has_no_rows(tmp_path: Path, view: str) -> None:
    store = str(tmp_path / "s")
    open_store(store, Options(reserve_bytes=0)).close()
    column = "time" if view == "transactions" else "publish_time"
    since = GreaterThan((column,), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    assert read(store, since, view=view) == []
    assert read(store, view=view) == []


def test_queues_and_segments(busy: str) -> None:
    queues = {row["queue"]: row for row in read(busy, view="queues")}
    rows = [row for row in read(busy) if row["state"] in LIVE]
    for name, row in queues.items():
        mine = [one for one in rows if one["queue"] == name]
        assert row["ready"] + row["unacked"] == len(mine)
        assert row["unacked"] == sum(one["delivery_count"] > 0 for one in mine)
    segments = {row["segment"]: row for row in read(busy, view="segments")}
    assert {row["segment"] for row in rows} <= set(segments)
    assert all(
        row["bytes"] == row["live_bytes"] + row["garbage_bytes"] for row in segments.values()
    )


def test_damage_is_a_finding_and_a_row_that_says_so(busy: str) -> None:
    before = read(busy)
    assert {row["code"] for row in read(busy, view="findings")} == {"file-left-over"}
    victim = next(row for row in before if row["state"] == "ready" and row["segment"] < 2**31)
    path = os.path.join(busy, "segments", f"{victim['segment']:010}.segment")
    with open(path, "r+b") as file:
        file.seek(victim["offset"] + 60)
        byte = file.read(1)[0]
        file.seek(victim["offset"] + 60)
        file.write(bytes([byte ^ 1]))
    after = read(busy)
    lost = [row for row in after if not row["checksum_ok"]]
    assert [(row["queue"], row["position"], row["id"]) for row in lost] == [
        (victim["queue"], victim["position"], victim["id"])
    ]
    assert lost[0]["body"] is None
    intact = [row for row in before if row != victim]
    assert sorted(map(str, intact)) == sorted(str(row) for row in after if row["checksum_ok"])
    findings = read(busy, view="findings")
    assert [row["code"] for row in findings] == [one.code for one in check(busy).findings]
    damaged = next(row for row in findings if row["code"] == "record-damaged")
    assert (damaged["file"], damaged["offset"], damaged["severity"]) == (
        f"segments/{victim['segment']:010}.segment",
        victim["offset"],
        "error",
    )
    lost = [row for row in findings if row["code"] == "message-lost"]
    assert [(row["queue"], row["position"], row["messages"]) for row in lost] == [
        (f"/{victim['queue']}", victim["position"], 1)
    ]


def test_a_record_across_windows_and_one_larger_than_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore_tools.offline.scanning.WINDOW_BYTES", 1000)
    store = open_store(str(tmp_path / "s"), Options(segment_bytes=1 << 20, reserve_bytes=0))
    queue = create(store, "q")
    bodies = [bytes([number]) * (number * 37 % 2500) for number in range(120)]
    for start in range(0, 120, 7):
        messages = [Message(Envelope("", "q"), body) for body in bodies[start : start + 7]]
        store.publish([queue], messages)
        store.sync()
    take(store, queue, 3)
    store.close()
    rows = read(str(tmp_path / "s"))
    assert [row["body"] for row in sorted(rows, key=lambda row: row["id"])] == bodies
    assert read(str(tmp_path / "s"), view="findings") == []
