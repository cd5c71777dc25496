"""Arguments that the log cannot hold are refused at the call, and affect no other caller."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amqpstore import (
    DurabilityError,
    Envelope,
    Message,
    NotAStoreError,
    Options,
    Placement,
    Queue,
    SharedStore,
    Store,
)
from amqpstore.format.message import MAX_PROPERTIES_BYTES
from amqpstore.format.records import MAX_COUNT
from amqpstore.format.runs import Run
from amqpstore.log.batch import Batch
from amqpstore.options import check_options
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import ENVELOPE, TRANSIENT, Disk, drain, messages, queue_named, take

TOO_HIGH = 1 << 64


class Long(bytes):
    """Bytes that say that there are 4 GiB of them, and take no memory."""

    def __len__(self) -> int:
        return 1 << 32


BAD: dict[str, dict[str, Any]] = {
    "priority above": {"priority": 256},
    "priority below": {"priority": -1},
    "priority of no whole number": {"priority": 1.5},
    "priority of no number": {"priority": "1"},
    "expiry above": {"expires_ms": TOO_HIGH},
    "expiry below": {"expires_ms": -1},
    "expiry of no whole number": {"expires_ms": 1.5},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_bad_number_is_refused(disk: Disk, bad: dict[str, Any], *, in_transaction: bool) -> None:
    def publish(store: Store, queue: Queue) -> None:
        where = store.transaction() if in_transaction else store
        where.publish([queue], messages(b"bad"), **bad)

    check_refused(disk, publish)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_queue_that_is_named_twice_is_refused(disk: Disk, *, in_transaction: bool) -> None:
    """A queue's messages ascend in id: it could not hold one twice."""

    def publish(store: Store, queue: Queue) -> None:
        where = store.transaction() if in_transaction else store
        where.publish([queue, queue], messages(b"bad"))

    check_refused(disk, publish)


BAD_MESSAGES: dict[str, list[Any]] = {
    "none": [],
    "text": [Message(ENVELOPE, "text")],  # type: ignore[arg-type]
    "a view": [Message(ENVELOPE, memoryview(b"abc"))],  # type: ignore[arg-type]
    "changeable": [Message(ENVELOPE, bytearray(b"abc"))],  # type: ignore[arg-type]
    "nothing": [Message(ENVELOPE, None)],  # type: ignore[arg-type]
    "no message": ["text"],
    "no list": Message(ENVELOPE, b"abc"),  # type: ignore[dict-item]
    "one body": b"abc",  # type: ignore[dict-item]
    "no envelope": [Message(None, b"abc")],  # type: ignore[arg-type]
    "some persistent": [Message(ENVELOPE, b"abc"), Message(TRANSIENT, b"abc")],
}


@pytest.mark.parametrize("kind", [list, tuple, iter])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_messages_may_be_in_anything(
    disk: Disk, kind: Callable[[list[Message]], Any], *, in_transaction: bool
) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    if in_transaction:
        with store.transaction() as transaction:
            transaction.publish([queue], kind(messages(b"a", b"b")))
    else:
        store.publish([queue], kind(messages(b"a", b"b")))
    store.sync()
    assert drain(store, queue) == [b"a", b"b"]
    store.abandon()


@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_bad_body_is_refused(disk: Disk, bad: list[Message], *, in_transaction: bool) -> None:
    def publish(store: Store, queue: Queue) -> None:
        where = store.transaction() if in_transaction else store
        where.publish([queue], bad)

    check_refused(disk, publish)


def test_a_body_that_no_record_holds_is_refused(disk: Disk) -> None:
    def enqueue(store: Store, queue: Queue) -> None:
        store.enqueue([Placement(queue)], [Message(ENVELOPE, Long(b""))])

    check_refused(disk, enqueue)


def test_a_negative_number_of_messages_is_refused(disk: Disk) -> None:
    def enqueue(store: Store, queue: Queue) -> None:
        store.enqueue([Placement(queue, 0, -1)], messages(b"bad"))

    check_refused(disk, enqueue)


def test_a_bool_is_not_a_count(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a"))
    for call in (store.take, store.withdrawals.withdraw_first, store.withdrawals.peek_many):
        with pytest.raises(TypeError, match="a limit must be a whole number, not bool"):
            call(queue, True)
    with pytest.raises(TypeError, match="a count must be a whole number, not bool"):
        store.withdrawals.withdraw_range(queue, 1, True)
    with pytest.raises(ValueError, match="must be 0 or more, not True"):
        store.enqueue([Placement(queue, 0, True)], messages(b"bad"))
    assert drain(store, queue) == [b"a"]
    store.abandon()


@pytest.mark.parametrize(
    "bad", [{"segment_bytes": True}, {"compression_level": True}, {"train_dictionary": 1}], ids=str
)
def test_a_bool_is_not_an_option_that_is_a_number(bad: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"option {next(iter(bad))} must be a"):
        check_options(Options(**bad))


def test_messages_with_the_same_content_are_equal() -> None:
    first = Message(Envelope("x", "k", b"p"), b"body")
    assert first == Message(Envelope("x", "k", b"p"), b"body")
    assert len({first, Message(Envelope("x", "k", b"p"), b"body")}) == 1
    for other in (
        Message(Envelope("y", "k", b"p"), b"body"),
        Message(Envelope("x", "l", b"p"), b"body"),
        Message(Envelope("x", "k", b"q"), b"body"),
        Message(Envelope("x", "k", b"p", persistent=False), b"body"),
        Message(Envelope("x", "k", b"p"), b"other"),
    ):
        assert first != other
    assert first != b"body"


def check_refused(disk: Disk, publish: Callable[[Store, Queue], None]) -> None:
    store = disk.open()
    queue, other = store.create_queue("q"), store.create_queue("other")
    told: list[str] = []
    store.publish([other], messages(b"somebody else's"))
    store.log.when_durable(lambda: told.append("somebody else's"))
    with pytest.raises((ValueError, TypeError)):
        publish(store, queue)
    assert queue.ready_count == 0
    store.sync()
    store.publish([other], messages(b"later"))
    store.sync()
    assert told == ["somebody else's"]
    store.abandon()
    store = disk.open()
    assert drain(store, queue_named(store, "other")) == [b"somebody else's", b"later"]
    assert queue_named(store, "q").ready_count == 0
    store.abandon()


@pytest.mark.parametrize(
    "parts",
    [("x" * 256, "", b""), ("", "é" * 128, b""), ("", "", bytes(MAX_PROPERTIES_BYTES + 1))],
    ids=["exchange", "routing key", "properties"],
)
def test_an_envelope_that_no_record_holds_is_refused(parts: tuple[str, str, bytes]) -> None:
    with pytest.raises(ValueError, match="at most"):
        Envelope(*parts)


def test_a_name_that_nothing_could_be_sent_to_is_refused(tmp_path: Path) -> None:
    with SharedStore.open(str(tmp_path / "shared")) as shared:
        with pytest.raises(ValueError, match="255 bytes"):
            shared.declare("é" * 128)
        assert shared.queues() == []


def test_a_label_that_cannot_be_kept_leaves_a_transaction_as_it_was(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"), worker=InlineWorker())
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a"))
    store.sync()
    run = take(store, queue)
    transaction = store.transaction()
    transaction.ack(queue, run)
    transaction.publish([queue], messages(b"b"))
    with pytest.raises(TypeError):
        transaction.prepare({"label": object()})
    assert transaction.rollback() == [(queue, run)]
    store.sync()
    assert store.prepared == {}
    store.abandon()


def test_who_takes_nothing_gets_nothing(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a"))
    for limit in (0, -1):
        assert store.take(queue, limit) is None
        assert store.withdrawals.withdraw(queue, limit) is None
    store.sync()
    assert queue.ready_count == 1
    store.abandon()


def test_deliveries_are_counted_as_far_as_four_bytes_go(disk: Disk) -> None:
    disk.options = disk.options._replace(checkpoint_messages=1)
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a"))
    store.sync()
    for before in (MAX_COUNT - 2, MAX_COUNT + 5, 1 << 64):
        run = take(store, queue)
        run.delivery_count = before
        store.requeue(queue, run)
        run = take(store, queue)
        store.redeliver(queue, run)
        store.requeue(queue, run)
        store.sync()
        store.upkeep.checkpoint()
    store.abandon()
    store = disk.open()
    run = take(store, queue_named(store, "q"))
    assert isinstance(run, Run)
    assert run.delivery_count == MAX_COUNT
    store.abandon()


def test_a_batch_that_cannot_be_encoded_ends_the_store(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is not left out: it has what others were promised."""
    store = disk.open()
    queue = store.create_queue("q")
    durable: list[str] = []
    store.publish([queue], messages(b"a"))
    store.log.when_durable(lambda: durable.append("a"))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "encode", fail)
        with pytest.raises(DurabilityError, match="MemoryError"):
            store.sync()
    assert store.failure is not None
    store.close()
    assert durable == []
    store = disk.open()
    assert drain(store, queue_named(store, "q")) == []
    store.abandon()


@pytest.mark.parametrize("wrong", [None, 5, 1.5, b"k", ["k"], {}])
def test_an_envelope_has_names_of_text(wrong: Any) -> None:
    kind = type(wrong).__name__
    for names in ((wrong, "k"), ("", wrong)):
        with pytest.raises(TypeError, match=f"type str, .*not .*{kind}"):
            Envelope(*names)


@pytest.mark.parametrize("wrong", [None, 5, "text", ["k"], {}])
def test_an_envelope_has_properties_of_bytes(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"bytes, not str, str and {type(wrong).__name__}"):
        Envelope("", "k", wrong)


def test_a_definition_has_numbers_that_a_row_can_hold(disk: Disk) -> None:
    def create(store: Store, _queue: Queue) -> None:
        store.create_queue({"name": "x", "limit": 10**20})

    check_refused(disk, create)


def test_a_label_has_numbers_that_a_row_can_hold(disk: Disk) -> None:
    def prepare(store: Store, queue: Queue) -> None:
        with store.transaction() as transaction:
            transaction.publish([queue], messages(b"bad"))
            transaction.prepare(10**20)

    check_refused(disk, prepare)


@pytest.mark.parametrize("opened", [Store.open, SharedStore.open])
@pytest.mark.parametrize("path", ["gone", "gone/x", "file/x", "x" * 300, "x/" * 3000, "/proc/x"])
def test_where_no_directory_can_be_is_not_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, opened: Callable[[str], Any]
) -> None:
    """A link that leads nowhere, and what is below it or a file; a name that is too long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match=r"cannot be created .*Name a directory"):
        opened(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "gone"]


@pytest.mark.parametrize("opened", [Store.open, SharedStore.open])
def test_a_path_from_a_directory_that_was_deleted_is_not_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[str], Any]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(NotAStoreError, match="current directory, which was deleted"):
        opened("store")


WRONG: list[Any] = [None, "q", 7, ["q"], object()]
OF_A_QUEUE: dict[str, Callable[[Store, Any], object]] = {
    "take": lambda store, queue: store.take(queue, 1),
    "peek": lambda store, queue: store.withdrawals.peek(queue),
    "peek_many": lambda store, queue: store.withdrawals.peek_many(queue, 1),
    "withdraw": lambda store, queue: store.withdrawals.withdraw(queue, 1),
    "withdraw_first": lambda store, queue: store.withdrawals.withdraw_first(queue, 1),
    "withdraw_range": lambda store, queue: store.withdrawals.withdraw_range(queue, 1, 1),
    "withdraw_expired": lambda store, queue: store.withdrawals.withdraw_expired(
        queue, 1, bodies=True
    ),
    "next_expiry": lambda store, queue: store.withdrawals.next_expiry(queue),
    "purge": lambda store, queue: store.purge(queue),
    "purge_aside": lambda store, queue: store.purge_aside([queue], "label"),
    "clear": lambda store, queue: store.clear(queue),
    "read_index": lambda store, queue: store.stored.paging.read_index(queue),
    "set_lazy": lambda store, queue: store.memory.set_lazy(queue, lazy=True),
    "set_keeps_transient": lambda store, queue: store.set_keeps_transient(queue, keeps=True),
    "delete_queue": lambda store, queue: store.delete_queue(queue),
    "publish": lambda store, queue: store.publish([queue], messages(b"bad")),
    "enqueue": lambda store, queue: store.enqueue([Placement(queue)], messages(b"bad")),
    "publish in a transaction": lambda store, queue: store.transaction().publish(
        [queue], messages(b"bad")
    ),
}
OF_A_RUN: dict[str, Callable[[Store, Any, Any], object]] = {
    "ack": lambda store, queue, run: store.ack(queue, run),
    "requeue": lambda store, queue, run: store.requeue(queue, run),
    "put_back": lambda store, queue, run: store.withdrawals.put_back(queue, run),
    "redeliver": lambda store, queue, run: store.redeliver(queue, run),
    "ack in a transaction": lambda store, queue, run: store.transaction().ack(queue, run),
}


@pytest.mark.parametrize("call", OF_A_QUEUE.values(), ids=OF_A_QUEUE)
def test_what_is_not_a_queue_is_refused_and_the_error_says_what_to_pass(
    disk: Disk, call: Callable[[Store, Any], object]
) -> None:
    store = disk.open()
    store.publish([store.create_queue("q")], messages(b"a"))
    for wrong in WRONG:
        with pytest.raises(TypeError, match=r"must be a Queue, from `Store\.create_queue`"):
            call(store, wrong)
    assert drain(store, queue_named(store, "q")) == [b"a"]
    store.abandon()


@pytest.mark.parametrize("call", OF_A_RUN.values(), ids=OF_A_RUN)
def test_what_is_not_a_run_is_refused_and_the_error_says_what_to_pass(
    disk: Disk, call: Callable[[Store, Any, Any], object]
) -> None:
    """Among the wrong values is what `take` returns if nothing is ready, or cannot be read."""
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a"))
    store.sync()
    run = take(store, queue, 1)
    for wrong in [*WRONG, queue, run.messages]:
        with pytest.raises(TypeError, match=r"must be a Run, as `Store\.take` returns it"):
            call(store, queue, wrong)
        with pytest.raises(TypeError, match="must be a Queue"):
            call(store, None, run)
    store.requeue(queue, run)
    assert drain(store, queue) == [b"a"]
    store.abandon()


OF_THE_STORES_QUEUE = [
    OF_A_QUEUE[name]
    for name in ("publish", "publish in a transaction", "delete_queue", "purge_aside")
]


@pytest.mark.parametrize("call", OF_THE_STORES_QUEUE)
def test_a_queue_of_another_store_or_one_that_was_deleted_is_refused(
    disk: Disk, tmp_path: Path, call: Callable[[Store, Any], object]
) -> None:
    """The store has a queue of its own with that id."""
    store, other = disk.open(), Disk(str(tmp_path / "other")).open()
    store.publish([store.create_queue("q")], messages(b"a"))
    deleted = store.create_queue("deleted")
    store.delete_queue(deleted)
    for wrong in (other.create_queue("q"), deleted):
        with pytest.raises(ValueError, match="was deleted, or is another store's"):
            call(store, wrong)
    assert drain(store, queue_named(store, "q")) == [b"a"]
    store.abandon()
    other.abandon()


def test_a_queue_is_not_deleted_twice_in_one_call(disk: Disk) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    with pytest.raises(ValueError, match="named twice"):
        store.delete_queue(queue, queue)
    store.delete_queue(queue)
    store.abandon()


@pytest.mark.parametrize("limit", ["1", 1.5, None])
def test_a_limit_that_is_not_a_whole_number_is_refused(disk: Disk, limit: Any) -> None:
    store = disk.open()
    queue = store.create_queue("q")
    store.publish([queue], messages(b"a", b"b"))
    for withdraw in (store.take, store.withdrawals.withdraw):
        with pytest.raises(TypeError, match="a limit must be a whole number"):
            withdraw(queue, limit)
    assert drain(store, queue) == [b"a", b"b"]
    store.abandon()
