"""`amqpstore inspect`: every view for people and for machines, and what it refuses."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options
from amqpstore.provenance.client_trails import What
from amqpstore.system.filenames import SEGMENTS, segment_name
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from tests.unit.evidence.stores import killed_store, opened
from tests.unit.offline.stores import (
    FIXTURES,
    SMALL,
    Command,
    copied,
    create,
    files_of,
    open_store,
    publish,
    take,
)

ESCAPES = "evil\x1b[31m\x07\u202e\x9b\ud7ff\n\tname"


def facts(command: Command, *arguments: str) -> dict[str, Any]:
    found = command("inspect", *arguments, "--json")
    assert found.code == 0, found.err
    content: dict[str, Any] = json.loads(found.out)
    return content


def store_with(directory: str, messages: Sequence[Message], options: Options = SMALL) -> str:
    """A store with these messages in one queue, one a batch."""
    with open_store(directory, options) as store:
        queue = create(store, "orders")
        for message in messages:
            store.publish([queue], [message])
            store.sync()
    return directory


def test_the_whole(busy: str, command: Command) -> None:
    found = facts(command, busy)
    assert {queue["name"]: queue["ready"] for queue in found["queues"]} == {"o": 43, "a": 13}
    assert {queue["name"]: queue["delivered"] for queue in found["queues"]} == {"o": 20, "a": 2}
    assert {"open", "compacted"} <= {segment["state"] for segment in found["segments"]}
    assert (
        found["checkpoint"]["lsn"] + found["log_tail"]["batches"] == found["log_tail"]["end"]["lsn"]
    )
    assert found["damage"] == []
    text = command("inspect", busy)
    assert text.code == 0
    for line in text.out.replace(busy, "DIR").splitlines():
        assert len(line) <= 80
    for part in ("Queues: 2", "Segments: ", "compacted", "checkpoint at segment", "flagged"):
        assert part in text.out


def test_damage_lost_messages_and_unknown_files_are_named(tmp_path: Path, command: Command) -> None:
    directory = copied("damaged", tmp_path)
    found = facts(command, directory)
    assert len(found["damage"]) == 3
    assert (found["lost"], found["orphaned"]) == (2, 1)
    assert found["unknown_files"] == ["0000000002.segment.bak"]
    out = command("inspect", directory).out
    assert "3 places, 2 messages lost, 1 orphaned" in out
    assert "segments/0000000001.segment at 284, 303 bytes" in out
    assert "0000000002.segment.bak" in out


def test_a_torn_tail_is_no_damage(tmp_path: Path, command: Command) -> None:
    out = command("inspect", copied("torn", tmp_path)).out
    assert "torn tail: 312 bytes, 2 messages, left out" in out
    assert "Damage" not in out


def test_nothing_is_changed_by_looking(busy: str, command: Command) -> None:
    before = files_of(busy)
    first = facts(command, busy)["segments"][0]
    for arguments in (
        [],
        ["segment", str(first["number"])],
        ["queue", "o"],
        ["message", str(first["first_id"])],
    ):
        assert command("inspect", busy, *arguments).code == 0
    assert files_of(busy) == before


@pytest.mark.parametrize("name", ["golden", "torn", "damaged"])
def test_records_and_gaps_cover_a_segment(name: str, tmp_path: Path, command: Command) -> None:
    directory = copied(name, tmp_path)
    for segment in facts(command, directory)["segments"]:
        found = facts(command, directory, "segment", str(segment["number"]), "--limit", "0")
        ends = [0, *(one["offset"] + one["bytes"] for one in found["records"])]
        starts = [*(one["offset"] for one in found["records"]), segment["bytes"]]
        assert starts == ends
        assert sum(found["counts"].values()) == len(found["records"])
        assert bool(found["gaps"]) == ("gap" in found["counts"])
        out = command("inspect", directory, "segment", str(segment["number"])).out
        assert f"Segment {segment['number']}, {segment['state']}" in out
        assert ("Gaps" in out) == bool(found["gaps"])


def test_records_of_a_segment_from_an_offset_on(busy: str, command: Command) -> None:
    [number, *_] = [one["number"] for one in facts(command, busy)["segments"]]
    every = facts(command, busy, "segment", str(number), "--limit", "0")["records"]
    some = facts(
        command, busy, "segment", str(number), "--first", str(every[2]["offset"]), "--limit", "3"
    )
    assert some["records"] == every[2:5]


def test_the_messages_of_a_queue(tmp_path: Path, command: Command) -> None:
    directory = copied("golden", tmp_path)
    expected = json.loads((FIXTURES / "golden" / "expected.json").read_text())["queues"]
    for name in ("orders", "audit"):
        found = facts(command, directory, "queue", name, "--limit", "0")
        for key, other in (("sequence", "sequence"), ("message_id", "id"), ("priority",) * 2):
            wanted = [message[other] for message in expected[name]["messages"]]
            assert [message[key] for message in found["messages"]] == wanted
        assert all(message["segment"] for message in found["messages"])
        out = command("inspect", directory, "queue", name, "--limit", "0").out
        assert f"{found['ready']} messages" in out
    some = facts(command, directory, "queue", "audit", "--first", "50", "--limit", "2")
    assert [message["sequence"] for message in some["messages"]] == [50, 51]
    assert "show all with --limit 0" in command("inspect", directory, "queue", "audit").out


def test_a_queue_of_a_name_that_two_virtual_hosts_have(
    data_directory: str, command: Command
) -> None:
    with open_store(data_directory) as store:
        for vhost in ("/", "other"):
            publish(store, create(store, "orders", vhost), 3)
    found = command("inspect", data_directory, "queue", "orders")
    assert found.code == 1
    assert "--vhost" in found.err
    assert facts(command, data_directory, "queue", "orders", "--vhost", "other")["ready"] == 3
    assert facts(command, data_directory, "queue", "#1")["vhost"] == "/"
    assert command("inspect", data_directory, "queue", "orders", "--vhost", "no").code == 1


def test_a_queue_with_priorities_is_one(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        publish(store, create(store, "prio"), 2)
        publish(store, create(store, "prio", level=5), 3)
    [queue] = facts(command, data_directory)["queues"]
    assert (queue["ready"], queue["ids"]) == (5, [1, 2])
    found = facts(command, data_directory, "queue", "prio")
    # As they would be served: the highest first.
    assert [message["level"] for message in found["messages"]] == [5, 5, 5, 0, 0]


def test_a_message_with_everything(data_directory: str, command: Command) -> None:
    properties = BasicProperties(
        content_type="application/json",
        headers={"n": 1, "raw": b"\xff", "nested": {"list": [True, None, "x"]}},
        delivery_mode=2,
        timestamp=1_700_000_000,
        reply_to="back",
    )
    envelope = Envelope("logs", "eu.de", encode_properties(properties))
    body = json.dumps({"text": "grüße", "n": [1, 2]}).encode()
    store_with(data_directory, [Message(envelope, body)])
    shown = facts(command, data_directory, "message", "1", "--body", "json")
    assert (shown["exchange"], shown["routing_key"]) == ("logs", "eu.de")
    assert shown["properties"]["headers"] == {
        "n": 1,
        "raw": {"hex": "ff"},
        "nested": {"list": [True, None, "x"]},
    }
    assert shown["properties"]["timestamp"] == 1_700_000_000
    assert shown["body"] == {"text": "grüße", "n": [1, 2]}
    assert shown["lsn"] == 1
    assert shown["record"]["magic"] == "c7524543"
    assert (
        shown["record"]["payload_length"] == shown["record"]["end"] - shown["record"]["offset"] - 32
    )
    [queue] = shown["queues"]
    assert (queue["queue"], queue["sequence"]) == ("orders", 1)
    out = command("inspect", data_directory, "message", "1").out
    for part in ("exchange     logs", "routing key  eu.de", "2023-11-14 22:13:20", "header n"):
        assert part in out


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b"plain", "text", "plain"),
        (b"plain", "hex", "706c61696e"),
        (b'{"a": 1}', "json", {"a": 1}),
        (b"\xff\x00", "text", "\\xff\0"),
        (b"", "text", ""),
        (b"", "hex", ""),
        (b"x" * 5000, "text", "x" * 5000),
    ],
)
def test_forms_of_a_body(
    body: bytes, form: str, shown: object, data_directory: str, command: Command
) -> None:
    store_with(data_directory, [Message(Envelope("", "q"), body)])
    found = facts(command, data_directory, "message", "1", "--body", form)
    assert (found["body"], found["body_bytes"]) == (shown, len(body))
    assert command("inspect", data_directory, "message", "1", "--body", form).code == 0


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"text", "text"),
        ("ü".encode() * 200, "text"),
        (b"x" + "ü".encode() * 200, "text"),
        (b"\xff" * 300, "hex"),
        (b"a\0b", "hex"),
        (b"a" * 254 + b"\xff\xff\xff", "hex"),
    ],
)
def test_a_preview_is_text_where_the_body_is(
    body: bytes, form: str, data_directory: str, command: Command
) -> None:
    store_with(data_directory, [Message(Envelope("", "q"), body)])
    found = facts(command, data_directory, "message", "1")
    assert found["body_form"] == form
    assert found["body_is_cut"] == (len(body) > 256)


def test_a_body_that_is_not_json(data_directory: str, command: Command) -> None:
    bodies = [b"plain", b"\xff", b"[" * 100_000]
    store_with(data_directory, [Message(Envelope("", "q"), body) for body in bodies])
    for number in (1, 2, 3):
        found = command("inspect", data_directory, "message", str(number), "--body", "json")
        assert found.code == 1
        assert "is not JSON" in found.err


def test_a_compressed_body(data_directory: str, command: Command) -> None:
    options = SMALL._replace(compress_from_bytes=100)
    store_with(data_directory, [Message(Envelope("", "q"), b"again " * 100)], options)
    found = facts(command, data_directory, "message", "1", "--body", "text")
    assert found["body"] == "again " * 100
    assert found["stored_body_bytes"] < 100 < found["body_bytes"]
    assert "compressed to" in command("inspect", data_directory, "message", "1").out


def test_properties_that_are_not_those_of_amqp(data_directory: str, command: Command) -> None:
    store_with(data_directory, [Message(Envelope("", "q", b"\xff\xff own"), b"x")])
    found = facts(command, data_directory, "message", "1")
    assert found["properties_hex"] == b"\xff\xff own".hex()
    assert command("inspect", data_directory, "message", "1").code == 0


def test_nothing_that_a_client_chose_reaches_the_terminal_as_it_is(
    data_directory: str, command: Command
) -> None:
    properties = BasicProperties(type=ESCAPES, headers={ESCAPES: {ESCAPES: ESCAPES}})
    envelope = Envelope(ESCAPES, ESCAPES, encode_properties(properties))
    with open_store(data_directory) as store:
        queue = create(store, ESCAPES, ESCAPES, arguments={ESCAPES: ESCAPES})
        store.publish([queue], [Message(envelope, ESCAPES.encode())])
        store.sync()
    for arguments in (
        [],
        ["queue", ESCAPES],
        ["message", "1"],
        ["message", "1", "--body", "text"],
        ["transaction", "1"],
        ["queue", f"{ESCAPES}no"],
    ):
        outcome = command("inspect", data_directory, *arguments)
        # A terminal's width comes from the environment, colours only where it is one.
        for text in (outcome.out, outcome.err):
            assert not set("\x1b\x07\x9b\u202e") & set(text), arguments


def test_a_transaction_and_its_operations(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        orders, audit = create(store, "orders"), create(store, "audit")
        store.publish([orders, audit], [Message(Envelope("", "q"), b"x")] * 3, priority=4)
        store.sync()
        [run] = take(store, orders, 2)
        store.ack(orders, run)
        store.sync()
    found = facts(command, data_directory, "transaction", "1")
    assert found["messages"] == 3
    assert [
        (one["operation"], one["queue"], one["message_count"], one["first_id"], one["priority"])
        for one in found["operations"]
    ] == [("ENQUEUE", "orders", 3, 1, 4), ("ENQUEUE", "audit", 3, 1, 4)]
    found = facts(command, data_directory, "transaction", "2")
    assert found["operations"][0]["operation"] == "ACK"
    assert "#1..2" in command("inspect", data_directory, "transaction", "2").out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["segment", "77"], "no segment 77"),
        (["queue", "nowhere"], "no queue nowhere"),
        (["message", "0"], "no message 0"),
        (["message", "9999999999999999999999"], "not there yet|no message"),
        (["transaction", "0"], "no LSN 0"),
        (["transaction", "99999"], "no LSN 99999 yet"),
    ],
)
def test_what_is_not_there(arguments: list[str], reason: str, busy: str, command: Command) -> None:
    found = command("inspect", busy, *arguments)
    assert found.code == 1
    assert found.out == ""
    assert any(one in found.err for one in reason.split("|"))
    assert "Traceback" not in found.err


def test_the_clients_of_a_message_that_is_acked(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        queue = create(store, "orders")
        trails = store.provenance.client_trails(max_files=2)
        publish(store, queue, 2)
        trails.published(("here", 1, "ann"), queue, 1, 2, persistent=True)
        (run,) = take(store, queue, 1)
        bob = ("there", 7, "bob")
        for what in (What.DELIVERED, What.ACKED):
            trails.note(what, bob, "worker", queue.id, run)
        store.ack(queue, run)
        store.sync()
        trails.close()
    found = facts(command, data_directory, "message", "--queue", "orders", "--position", "1")
    told = [(one["what"], one["user"], one["queue"]) for one in found["provenance"]["clients"]]
    assert told == [(what, user, "orders") for what, user in TOLD]
    out = command("inspect", data_directory, "message", "1").out
    assert all(text in out for text in ("acked", "there (7)", "bob", "worker"))
    gone = command("inspect", data_directory, "message", "--queue", "orders", "--position", "9")
    assert "no message at position 9" in gone.err


def test_a_message_by_the_name_that_its_publisher_gave_it(
    data_directory: str, command: Command
) -> None:
    named = [BasicProperties(message_id=name) for name in ("a", "b", "twice", "twice")]
    envelopes = [Envelope("", "orders", encode_properties(one)) for one in named]
    unreadable = Envelope("", "orders", b"\xff")
    store_with(data_directory, [Message(one, b"x") for one in (*envelopes, unreadable)])
    assert facts(command, data_directory, "message", "--message-id", "b")["id"] == 2
    for name, said in (
        ("none", "no message in a queue has the message-id 'none'"),
        ("twice", "2 messages have this message-id: ask for one by its ID, as 3, 4"),
    ):
        assert said in command("inspect", data_directory, "message", "--message-id", name).err
    both = command("inspect", data_directory, "message", "1", "--message-id", "b")
    assert "takes an ID, or --queue and --position, or --message-id" in both.err


TOLD = [("published", "ann"), ("delivered", "bob"), ("acked", "bob")]


def test_a_message_whose_record_is_damaged(tmp_path: Path, command: Command) -> None:
    found = command("inspect", copied("damaged", tmp_path), "message", "4")
    assert found.code == 1
    assert "no sound record" in found.err


def test_a_segment_that_is_missing(busy: str, command: Command) -> None:
    [compacted] = [one for one in facts(command, busy)["segments"] if one["state"] == "compacted"]
    os.remove(compacted["path"])
    found = command("inspect", busy, "segment", str(compacted["number"]))
    assert found.code == 1
    assert compacted["path"] in found.err
    assert "missing" in command("inspect", busy).out


def test_a_broker_that_runs_is_left_alone(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        publish(store, create(store, "orders"), 3)
        found = command("inspect", data_directory)
        assert found.code == 3
        assert "--live" in found.err
        assert str(os.getpid()) in found.err
        found = command("inspect", data_directory, "--live")
        assert found.code == 0
        assert "a broker runs on it" in found.out
        assert facts(command, data_directory, "queue", "orders", "--live")["ready"] == 3


def test_what_is_no_store(tmp_path: Path, command: Command) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for arguments in (["inspect"], ["inspect", "--follow"]):
        found = command(*arguments, str(tmp_path))
        assert found.code == 4
        assert "not an amqpstore data directory" in found.err
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_store_of_a_newer_version(busy: str, command: Command) -> None:
    path = Path(busy) / "STORE"
    path.write_text(path.read_text().replace("format-version: 2", "format-version: 9"))
    found = command("inspect", busy)
    assert found.code == 5
    assert "format version 9" in found.err


def test_a_store_without_its_catalog(busy: str, command: Command) -> None:
    shutil.rmtree(os.path.join(busy, "catalog"))
    found = facts(command, busy)
    assert found["catalog_reason"] == "the file is missing"
    assert sum(queue["ready"] for queue in found["queues"]) >= 56
    assert all(segment["live_bytes"] is None for segment in found["segments"])
    out = command("inspect", busy).out
    assert "the catalog cannot be read" in out
    assert "what `amqpstore repair` would keep" in out
    assert "queues are named after their ids" in " ".join(out.split())
    assert "amq.recovered.1" in out


def test_many_segments_are_a_strip(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        publish(store, create(store, "orders"), 300)
    found = facts(command, data_directory)
    assert len(found["segments"]) > 15
    out = command("inspect", data_directory, "--limit", "5").out
    assert "live part of each" in out
    assert f"and {len(found['segments']) - 5} more: --limit 0 shows all" in out
    every = command("inspect", data_directory, "--limit", "0").out
    assert "more: " not in every


def test_the_last_recovery_is_told(busy: str, command: Command) -> None:
    reports = Path(busy) / "reports"
    reports.mkdir()
    for name, kept in (("20260101", 1), ("20260102", 2)):
        content = {"time": name, "messages": kept, "damage": []}
        (reports / f"recovery-{name}.json").write_text(json.dumps(content))
    assert facts(command, busy)["last_recovery"]["messages"] == 2
    assert "20260102: messages 2" in command("inspect", busy).out
    (reports / "recovery-20260103.json").write_text("{")
    assert "cannot be read" in command("inspect", busy).out


def test_usage(busy: str, command: Command) -> None:
    for arguments in (["segment", "x"], ["message", "-1"], ["message", "1", "--body", "no"]):
        assert command("inspect", busy, *arguments).code == 2
    assert command("inspect", busy, "--follow", "message", "1").code == 2


@pytest.mark.parametrize(
    "harm", ["nothing", "damaged segment", "missing index file", "segment elsewhere"]
)
def test_a_page_of_a_damaged_store_says_that_a_repair_may_keep_more(
    busy: str, command: Command, harm: str
) -> None:
    segment = Path(busy, "segments", max(os.listdir(f"{busy}/segments")))
    if harm == "damaged segment":
        end = json.loads(command("inspect", busy, "--json").out)["log_tail"]["end"]
        last = Path(busy, "segments", f"{end['segment']:010}.segment")
        content = bytearray(last.read_bytes())
        content[200] ^= 1
        last.write_bytes(content)
    elif harm == "missing index file":
        Path(busy, "index", min(os.listdir(f"{busy}/index"))).unlink()
    elif harm == "segment elsewhere":
        segment.rename(f"{busy}/segments/{segment.name}.bak")
    is_damaged = harm != "nothing"
    assert json.loads(command("inspect", busy, "--json").out)["is_damaged"] is is_damaged
    shown = command("inspect", busy).out
    assert ("a repair may keep" in shown) is is_damaged


def test_what_starts_have_passed_over_is_shown(command: Command, tmp_path: Path) -> None:
    directory = killed_store(tmp_path / "store")
    (directory / SEGMENTS / segment_name(3)).unlink()
    assert "5 messages that were durable are missing" in facts(command, str(directory))["shortfall"]
    with opened(directory) as store:
        publish(store, next(iter(store.queues.values())), 1)  # the log goes on
    found = facts(command, str(directory))
    assert not found["shortfall"]
    assert found["passed_over"].startswith("an earlier start passed over what was missing")
    assert found["passed_over"] in " ".join(command("inspect", str(directory)).out.split())
