"""Messages go from one store to another: each as it was, and all of them or none."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from amqpstore import Envelope, Message, Run, Store
from amqpstore.catalog.catalog import Change
from amqpstore.errors import NotAStoreError, StoreLockedError
from amqpstore.evidence import read_positions
from amqpstore.identity import marker
from amqpstore.system.filenames import is_spare, segment_name
from amqpstore.system.files import OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.short_log import ShortLogError
from amqpstore_tools.transfer.exporting import export, queues_of
from amqpstore_tools.transfer.importing import import_lines
from amqpstore_tools.transfer.lines import (
    FORMATS,
    EndLine,
    ExportLine,
    Line,
    LineWriter,
    MessageLine,
    QueueKey,
    QueueLine,
    TransferError,
    read_lines,
)
from tests.unit.copying.stores import contents, open_store, publish, queue_of
from tests.unit.evidence.stores import killed_store
from tests.unit.offline.stores import write_spares
from tests.unit.repair.mending import mend

Paths = Callable[[str], str]


@pytest.fixture
def path(tmp_path: Path) -> Paths:
    return lambda name: str(tmp_path / name)


@pytest.fixture
def store(path: Paths) -> str:
    with open_store(path("store")) as store:
        store.definitions.define([_vhost()])
        orders = queue_of(store, "orders")
        for number in range(20):
            store.publish(
                [orders, queue_of(store, "audit")],
                [Message(Envelope("ex", f"key.{number % 3}", b"\x10\0\2"), b"%d" % number)],
                priority=number % 2,
                expires_ms=4_000_000_000_000 if number % 5 == 0 else 0,
            )
        store.publish([orders], [Message(Envelope("", "é", b"no properties"), b"\xff\0" * 50)])
        store.publish([orders], [Message(Envelope("", "orders", b""), b"")])
        store.sync()
        for _ in range(2):
            run = store.take(orders, 1)
            assert run
            assert not isinstance(run, Exception)
            store.redeliver(orders, run)
            store.requeue(orders, run)
        store.upkeep.checkpoint()
        store.take(orders, 1, acked=True, first_sequence=4)
    return path("store")


def nested(depth: int) -> dict[str, Any]:
    """A definition of queue `new` with lists in lists."""
    arguments: list[Any] = []
    for _ in range(depth):
        arguments = [arguments]
    return {"vhost": "/", "name": "new", "arguments": arguments}


def _vhost() -> Change:
    return Change("vhosts", "/", {})


def exported(directory: str, format_name: str = "jsonl") -> bytes:
    file = io.BytesIO()
    with StoreImage.open(directory) as image:
        export("", LineWriter(file, format_name), queues_of(image))
    return file.getvalue()


def lines(content: bytes) -> list[Line]:
    return [line for line, _ in read_lines(io.BytesIO(content))]


def messages(content: bytes) -> list[tuple[object, ...]]:
    """All of them, but for where they were in their store."""
    return [
        (
            line.key,
            line.exchange,
            line.routing_key,
            line.properties,
            line.body,
            line.priority,
            line.expires_ms,
            line.deliveries,
        )
        for line in lines(content)
        if isinstance(line, MessageLine)
    ]


def test_both_formats_say_the_same(store: str) -> None:
    as_json, as_msgpack = lines(exported(store)), lines(exported(store, "msgpack"))
    assert as_json[1:] == as_msgpack[1:]
    assert isinstance(as_json[0], ExportLine)
    assert as_json[-1] == EndLine(41)
    found = [line for line in as_json if isinstance(line, MessageLine)]
    assert [line.body for line in found if line.key.name == "orders"][:4] == [
        b"0",
        b"1",
        b"2",
        b"4",
    ]
    assert found[20].deliveries == 4
    assert {line.expires_ms for line in found} == {0, 4_000_000_000_000}


def test_the_levels_of_a_queue_with_priorities_are_one_queue(path: Paths) -> None:
    with open_store(path("store")) as store:
        store.definitions.define([_vhost()])
        for more in ({}, {"level": 3}, {"level": 5}):
            queue = store.create_queue({"vhost": "/", "name": "prio", **more})
            store.publish([queue], [Message(Envelope("", "prio", b""), b"x")] * 2)
        store.sync()
    file = io.BytesIO()
    with StoreImage.open(path("store")) as image:
        out = export("", LineWriter(file, "jsonl"), queues_of(image))
    counts = {"'prio' in virtual host '/'": 6}
    assert out.messages == counts
    with open_store(path("other")):
        pass
    imported = import_lines(path("other"), lines(file.getvalue()), create=True)
    assert (imported.messages, imported.created) == (counts, [*counts])
    again = import_lines(path("other"), lines(file.getvalue()), create=False)
    assert (again.messages, again.created) == (counts, [])


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_is_imported_is_what_was_exported(path: Paths, store: str, format_name: str) -> None:
    content = exported(store, format_name)
    with open_store(path("other")) as other:
        other.definitions.define([_vhost()])
        publish(other, "orders", [b"old"])
    imported = import_lines(path("other"), lines(content), create=True)
    assert sum(imported.messages.values()) == 41
    assert imported.created == ["'audit' in virtual host '/'"]
    found = messages(exported(path("other"), format_name))
    old = next(one for one in found if one[4] == b"old")
    found.remove(old)
    assert found == messages(content)
    with Store.open(path("other")) as other:
        assert other.recovery_report.is_clean
        queue = queue_of(other, "orders")
        assert queue.ready_count == 22
    assert os.listdir(os.path.dirname(path("other"))).count("other.importing") == 0
    assert not [name for name in os.listdir(os.path.dirname(store)) if "before" in name]


def test_other_files_stay_where_they_are(path: Paths, store: str) -> None:
    os.makedirs(f"{store}/reports/old")
    Path(store, "reports", "old", "one.json").write_text("{}")
    Path(store, "segments", "notes.txt").write_text("mine")
    os.symlink("/nowhere", f"{store}/link")
    write_spares(store)
    import_lines(store, lines(exported(store)), create=False)
    assert Path(store, "reports", "old", "one.json").read_text() == "{}"
    assert Path(store, "segments", "notes.txt").read_text() == "mine"
    assert os.readlink(f"{store}/link") == "/nowhere"
    assert not [name for name in os.listdir(f"{store}/segments") if is_spare(name)]
    with open_store(store) as opened:
        assert queue_of(opened, "audit").ready_count == 40


def test_no_number_that_the_log_has_lost_is_given_to_what_is_imported(
    tmp_path: Path, store: str
) -> None:
    """Notes beside the log know of them: they go on beside the log of the new directory."""
    short = killed_store(tmp_path / "short")
    stored_marker = marker.read(OsFiles(), str(short))
    assert stored_marker is not None
    *_, noted = read_positions(OsFiles(), str(short), stored_marker.seed)
    os.remove(short / "segments" / segment_name(4))
    notes = sorted(os.listdir(short / "trails"))
    with pytest.raises(ShortLogError, match="at least 5 messages that were durable are missing"):
        import_lines(str(short), lines(exported(store)), create=True)
    assert check(str(short)).shortfall.lost == 5
    mend(str(short))
    import_lines(str(short), lines(exported(store)), create=True)
    assert set(notes) < set(os.listdir(short / "trails"))
    with open_store(str(short)) as opened:
        for queue in opened.queues.values():
            first = 0 if queue.definition == {"name": "orders"} else noted.message_id
            run = opened.take(queue, 100)
            assert isinstance(run, Run)
            assert run.first_id >= first


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (QueueLine(QueueKey("/", "new"), {}), "no queue 'new' in virtual host '/'"),
        (QueueLine(QueueKey("other", "new"), {}), "no virtual host 'other'"),
        (MessageLine(QueueKey("/", "new"), "", "", b"", b""), "come before its own line"),
        (None, "incomplete"),
    ],
)
def test_a_file_that_cannot_be_imported_changes_nothing(
    store: str, wrong: Line | None, says: str
) -> None:
    content = exported(store)
    before = contents(store)

    def some() -> list[Line]:
        first = lines(content)
        return [*first[:-1], wrong] if wrong else []

    def cut() -> object:
        for line, _ in read_lines(io.BytesIO(content.rpartition(b'{"type":"end"')[0])):
            yield line

    with pytest.raises(TransferError, match=says):
        import_lines(store, some() if wrong else cut(), create=False)  # type: ignore[arg-type]
    assert contents(store) == before
    assert os.listdir(os.path.dirname(store)) == ["store"]


def test_a_store_that_is_open_is_not_imported_into(path: Paths, store: str) -> None:
    content = lines(exported(store))
    with open_store(store), pytest.raises(StoreLockedError):
        import_lines(store, content, create=False)
    with pytest.raises(NotAStoreError):
        import_lines(path("nowhere"), content, create=False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ends at line 0"),
        (b"{}\n", "line 1 does not belong in an export: 'type' is missing"),
        (b"{\n", "after byte 0"),
        (b'{"a":' + b"[" * 100_000, "after byte 0"),
        (b"\x91" * 100_000, "after byte"),
        (b'{"type":"end","messages":0}\n', "line 1 is not the first line"),
        (b'{"type":"export","format":2,"store_id":"","exported_at":""}\n', "it has format 2"),
        (
            b'{"type":"export","format":1,"store_id":"","exported_at":""}\n5\n',
            "line 2 does not belong",
        ),
        (b"\x93\1\2\3", "it is not an object"),
        (b"\xc1", "after byte 0"),
        (msgpack.packb({"type": "export"})[:-3], "ends at line 0"),
    ],
)
def test_a_file_that_is_none_of_messages_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(TransferError, match=says):
        lines(content)


@pytest.mark.parametrize("name", ["exchange", "routing_key"])
def test_a_name_that_no_message_can_have_is_refused(store: str, name: str) -> None:
    found = exported(store).splitlines(keepends=True)
    place = next(place for place, line in enumerate(found) if b'"message"' in line)
    plain = {**msgspec.json.decode(found[place]), name: "é" * 128}
    found[place] = msgspec.json.encode(plain) + b"\n"
    with pytest.raises(
        TransferError,
        match=f"line {place + 1} does not belong .* {name} has at most 255 bytes, not 256",
    ):
        lines(b"".join(found))


@pytest.mark.parametrize("definition", [None, 5, {}, {"vhost": "/", "name": "other"}, nested(200)])
def test_a_queue_that_is_not_what_its_line_says_is_refused(store: str, definition: Any) -> None:
    before = contents(store)
    wrong = QueueLine(QueueKey("/", "new"), definition)
    with pytest.raises(TransferError, match="queue 'new' in virtual host '/'"):
        import_lines(store, [*lines(exported(store))[:-1], wrong], create=True)
    assert contents(store) == before


def test_a_file_with_a_line_too_few_is_refused(store: str) -> None:
    parts = exported(store).splitlines(keepends=True)
    with pytest.raises(TransferError, match="has 40 messages, but 41 were written"):
        lines(b"".join(parts[:5] + parts[6:]))


def test_a_message_that_cannot_be_read_is_counted(store: str) -> None:
    path = f"{store}/segments/0000000001.segment"
    content = Path(path).read_bytes()
    place = content.index(b"\xff\0" * 50)
    Path(path).write_bytes(content[:place] + b"\xfe" + content[place + 1 :])
    assert lines(exported(store))[-1] == EndLine(40, unreadable=1)


def test_what_a_transaction_in_doubt_would_publish_is_copied_and_not_exported(
    path: Paths, store: str
) -> None:
    with open_store(store) as opened:
        orders = queue_of(opened, "orders")
        transaction = opened.transaction()
        transaction.publish([orders], [Message(Envelope("", "orders", b""), b"in doubt")])
        transaction.prepare({"xid": "1"})
        opened.sync()
    content = exported(store)
    assert b"in doubt" not in content
    copy_store(store, path("copy"), CopyOptions())
    import_lines(path("copy"), lines(content), create=False)
    with open_store(path("copy")) as copy:
        assert queue_of(copy, "orders").ready_count == 2 * 21
        (prepared,) = copy.prepared.values()
        prepared.commit(prepared.publishes())
        copy.sync()
        assert queue_of(copy, "orders").ready_count == 2 * 21 + 1


@pytest.mark.parametrize("deliveries", [1, 2, 3, (1 << 32) - 1])
def test_what_was_delivered_very_often_is_imported_at_once(store: str, deliveries: int) -> None:
    found = lines(exported(store))
    key = QueueKey("/", "audit")
    message = MessageLine(key, "", "new", b"", b"new", deliveries=deliveries)
    queue = next(line for line in found if isinstance(line, QueueLine) and line.key == key)
    import_lines(store, [found[0], queue, message], create=False)
    (imported,) = [one for one in lines(exported(store)) if getattr(one, "body", b"") == b"new"]
    assert isinstance(imported, MessageLine)
    assert imported.deliveries == deliveries
