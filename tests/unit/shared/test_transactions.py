"""Transactions of a shared store: all of it or none, and nothing outside of one."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from amqpstore import (
    DiskFullError,
    Envelope,
    ForkedError,
    Message,
    MessageDamagedError,
    NotInTransactionError,
    OtherOwnerError,
    QueueDiffersError,
    QueueNotFoundError,
    SharedStore,
    Store,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    TransactionEndedError,
)
from amqpstore.queues.enqueue import Enqueues
from amqpstore_tools.offline.image import StoreImage
from tests.unit.shared.conftest import OPTIONS
from tests.unit.shared.waiting import ready, receive, send


class OopsError(Exception):
    pass


def fork() -> int:
    """Fork as `os.fork` does, of which newer Pythons warn where there are threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_what_is_sent_can_be_received_once_it_is_committed(shared: SharedStore) -> None:
    with shared.transaction() as transaction:
        transaction.send("q", [b"one", Message(Envelope("e", "k", b"\x01"), b"two")])
        assert transaction.peek("q") is None
        with pytest.raises(TimeoutError, match="'q'"):
            transaction.receive("q", timeout_s=0)
        assert ready(shared, "q") == 0
    with shared.transaction() as transaction:
        peeked = transaction.peek("q")
        assert peeked is not None
        assert peeked.body == b"one"
        first, second = transaction.receive("q", limit=5)
        assert (first.body, first.delivery_count, first.message.envelope.routing_key) == (
            b"one",
            0,
            "q",
        )
        assert second.message.envelope.properties == b"\x01"
    assert ready(shared, "q") == 0


def test_an_exception_undoes_what_was_sent_and_received(shared: SharedStore) -> None:
    send(shared, "q", b"one", b"two")
    with pytest.raises(OopsError), shared.transaction() as transaction:
        assert [one.body for one in transaction.receive("q")] == [b"one"]
        transaction.send("q", [b"three"])
        raise OopsError
    with shared.transaction() as transaction:
        found = transaction.receive("q", limit=9, timeout_s=0)
    assert [(one.body, one.delivery_count) for one in found] == [(b"one", 1), (b"two", 0)]


def test_what_was_not_committed_is_undone_by_a_crash(directory: str) -> None:
    shared = SharedStore.open(directory, options=OPTIONS)
    shared.declare("q")
    send(shared, "q", b"one")
    send(shared, "q", b"two")
    with pytest.raises(StoreClosedError), shared.transaction() as transaction:
        assert [one.body for one in transaction.receive("q")] == [b"one"]
        transaction.send("q", [b"three"])
        send(shared, "q", b"four")  # syncs: and with it that one was delivered
        shared.abandon()
    with SharedStore.open(directory, options=OPTIONS) as reopened:
        with reopened.transaction() as other:
            found = other.receive("q", limit=9, timeout_s=0)
        assert [one.body for one in found] == [b"one", b"two", b"four"]
        assert [one.delivery_count for one in found] == [1, 0, 0]
        assert [queue.name for queue in reopened.queues()] == ["q"]


def test_there_is_no_send_or_receive_outside_of_a_transaction(shared: SharedStore) -> None:
    assert not hasattr(shared, "send")
    assert not hasattr(shared, "receive")
    transaction = shared.transaction()
    for error in (NotInTransactionError, TransactionEndedError):
        with pytest.raises(error):
            transaction.send("q", [b"one"])
        with pytest.raises(error):
            transaction.receive("q", timeout_s=0)
        with pytest.raises(error):
            transaction.peek("q")
        with pytest.raises(error):
            transaction.commit()
        with pytest.raises(error):
            transaction.rollback()
        with pytest.raises(error):
            transaction.prepare("t")
        if error is NotInTransactionError:
            with transaction:
                pass
    with pytest.raises(TransactionEndedError), transaction:
        pass
    assert ready(shared, "q") == 0


def test_what_is_prepared_waits_through_a_restart_for_anybody(directory: str) -> None:
    with SharedStore.open(directory, options=OPTIONS) as shared:
        for name in ("q", "to"):
            shared.declare(name)
        send(shared, "q", b"one", b"two")
        for label in ("first", "second"):
            with shared.transaction() as transaction:
                (received,) = transaction.receive("q")
                transaction.send("to", [b"for " + received.body])
                transaction.prepare(label)
        assert (ready(shared, "q"), ready(shared, "to")) == (0, 0)
    with SharedStore.open(directory, options=OPTIONS) as shared:
        assert (ready(shared, "q"), ready(shared, "to")) == (0, 0)
        first, second = shared.prepared()
        assert (first.label, second.label) == ("first", "second")
        assert repr(first) == "<SharedPrepared 'first'>"
        first.commit()
        (again,) = shared.prepared()
        again.rollback()
        for ended in (first, second):
            with pytest.raises(TransactionEndedError):
                ended.commit()
            with pytest.raises(TransactionEndedError):
                ended.rollback()
        assert receive(shared, "to") == [b"for one"]
        with shared.transaction() as transaction:
            (received,) = transaction.receive("q", limit=9, timeout_s=0)
            assert (received.body, received.delivery_count) == (b"two", 1)
        assert shared.prepared() == []


def test_a_queue_that_was_deleted_is_a_rollback_and_of_what_is_prepared_no_part(
    shared: SharedStore,
) -> None:
    shared.declare("gone")
    send(shared, "q", b"one", b"two")
    with shared.transaction() as transaction:
        transaction.receive("q")
        transaction.send("gone", [b"never"])
        prepared = transaction.prepare("t")
    with pytest.raises(QueueNotFoundError, match="'gone'"), shared.transaction() as transaction:
        transaction.receive("q")
        transaction.send("gone", [b"never"])
        shared.delete("gone")
    assert ready(shared, "q") == 1
    prepared.commit()
    assert receive(shared, "q", 9) == [b"two"]
    for call in (shared.delete, shared.history):
        with pytest.raises(QueueNotFoundError):
            call("gone")


def test_a_full_disk_refuses_to_send_and_lets_receive(directory: str) -> None:
    with SharedStore.open(directory, options=OPTIONS) as shared:
        shared.declare("q", history_length=5)
        send(shared, "q", b"one", b"two")
    with SharedStore.open(directory, options=OPTIONS._replace(least_free_bytes=1 << 60)) as shared:
        with shared.transaction() as transaction:
            transaction.receive("q")
        with pytest.raises(DiskFullError), shared.transaction() as transaction:
            transaction.receive("q")
            transaction.send("q", [b"three"])
        with pytest.raises(DiskFullError), shared.transaction() as transaction:
            transaction.receive("q")
            transaction.prepare("t")
        assert receive(shared, "q", 9) == [b"two"]
        assert list(shared.history("q")) == []


def test_a_message_that_is_not_persistent_is_refused(shared: SharedStore) -> None:
    message = Message(Envelope("", "q", persistent=False), b"one")
    with shared.transaction() as transaction:
        with pytest.raises(StoreError, match="must be persistent"):
            transaction.send("q", [message])
        with pytest.raises(ValueError, match="limit"):
            transaction.receive("q", limit=0)


def test_a_bool_is_neither_a_count_nor_a_time(shared: SharedStore) -> None:
    with shared.transaction() as transaction:
        with pytest.raises(TypeError, match="a limit must be a whole number, not bool"):
            transaction.receive("q", limit=True)
        with pytest.raises(TypeError, match="a timeout in seconds must be a number, not bool"):
            transaction.receive("q", limit=1, timeout_s=True)
        with pytest.raises(TypeError, match="a time must be a number, not bool"):
            transaction.replay("q", first_ms=True)
    with pytest.raises(TypeError, match="a history limit must be a whole number, not bool"):
        shared.declare("h", history_length=True)


def test_what_is_received_is_equal_to_what_was_sent(shared: SharedStore) -> None:
    with shared.transaction() as transaction:
        transaction.send("q", [Message(Envelope("", "q", b"properties"), b"one")])
    with shared.transaction() as transaction:
        (received,) = transaction.receive("q")
        assert received.message == Message(Envelope("", "q", b"properties"), b"one")


def test_a_closed_store_does_nothing_more(shared: SharedStore) -> None:
    with pytest.raises(StoreClosedError, match="is closed"), shared.transaction() as begun:
        shared.close()
        shared.close()
        shared.abandon()
        for call in (shared.queues, shared.prepared, lambda: shared.declare("other")):
            with pytest.raises(StoreClosedError):
                call()
        with pytest.raises(StoreClosedError):
            begun.send("q", [b"one"])
        with pytest.raises(StoreClosedError):
            begun.rollback()
    with pytest.raises(OopsError), shared.transaction():
        raise OopsError  # and not what the rollback says


def test_an_exception_in_the_midst_of_the_engine_stops_the_store(
    shared: SharedStore, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shared, "q", b"one")

    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Enqueues, "enqueue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        send(shared, "q", b"two")
    with pytest.raises(StoreClosedError, match="interrupted"):
        send(shared, "q", b"three")
    monkeypatch.undo()
    shared.close()
    with SharedStore.open(directory, options=OPTIONS) as reopened:
        assert receive(reopened, "q", 9) == [b"one"]


def test_the_store_is_for_one_process(shared: SharedStore, directory: str) -> None:
    send(shared, "q", b"one")
    with pytest.raises(StoreLockedError):
        SharedStore.open(directory)
    child = fork()
    if not child:
        try:
            shared.close()
            shared.abandon()
            with pytest.raises(ForkedError, match="fork"):
                shared.queues()
            with pytest.raises(ForkedError), shared.transaction() as transaction:
                transaction.send("q", [b"two"])
            with pytest.raises(StoreLockedError):
                SharedStore.open(directory)
        except BaseException:  # noqa: BLE001 (the exit code says it)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert receive(shared, "q", 9) == [b"one"]


def test_a_fork_that_lives_on_does_not_keep_the_lock(shared: SharedStore, directory: str) -> None:
    reader, writer = os.pipe()
    child = fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)  # until the parent closes its end
        os._exit(0)
    os.close(reader)
    try:
        shared.close()
        SharedStore.open(directory, options=OPTIONS).close()
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_queue_is_declared_once_and_found_again(directory: str) -> None:
    for _ in range(2):
        with SharedStore.open(directory, options=OPTIONS) as shared:
            shared.declare("q", history_length=3, history_ttl_ms=50)
            with pytest.raises(QueueDiffersError, match="of up to 3 messages and of 50 ms"):
                shared.declare("q")
            with pytest.raises(QueueDiffersError, match="no history"):
                shared.declare("q")
            with pytest.raises(ValueError, match="0"):
                shared.declare("q", history_length=0)
            assert shared.find("q") == ("q", 0, 0, 3, 50)
            assert shared.find("other") is None
            assert shared.directory == directory
            assert shared.recovery_report.damage == []


@pytest.mark.parametrize(
    "definition",
    ["q", {"vhost": "/", "name": "q"}, {"library": 2, "name": "q"}, {"library": 1, "name": "q"}],
)
def test_queues_of_somebody_else_are_left_alone(directory: str, definition: object) -> None:
    with Store.open(directory, options=OPTIONS) as store:
        store.create_queue(definition)
    with pytest.raises(OtherOwnerError, match="not a `SharedStore`"):
        SharedStore.open(directory, options=OPTIONS)
    with Store.open(directory, options=OPTIONS) as store:
        assert [queue.definition for queue in store.queues.values()] == [definition]


def test_a_message_that_cannot_be_read_is_told_once(directory: str) -> None:
    with SharedStore.open(directory, options=OPTIONS) as shared:
        shared.declare("q")
        send(shared, "q", b"the first", b"the second", b"the third")
    (path,) = (Path(directory) / "segments").iterdir()
    path.write_bytes(path.read_bytes().replace(b"the second", b"THE second"))
    with SharedStore.open(directory, options=OPTIONS) as shared:
        with pytest.raises(MessageDamagedError), shared.transaction() as transaction:
            assert [one.body for one in transaction.receive("q")] == [b"the first"]
            transaction.receive("q")
        assert receive(shared, "q", 1) == [b"the first"]
        assert receive(shared, "q", 9) == [b"the third"]


def segment_bytes(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory, "segments").iterdir())


def test_a_message_to_several_queues_is_written_once(shared: SharedStore, directory: str) -> None:
    names = [f"q{number}" for number in range(10)]
    for name in names:
        shared.declare(name)
    body = os.urandom(100_000)
    with shared.transaction() as transaction:
        transaction.send(names, [body, b"second"])
        transaction.send(iter(["q"]), [body])
    shared.close()
    assert segment_bytes(directory) < 250_000
    with SharedStore.open(directory, options=OPTIONS) as again:
        for name in names:
            assert receive(again, name, 2) == [body, b"second"]
        assert receive(again, "q", 2) == [body]


def test_the_same_messages_to_one_queue_after_the_other_are_written_once(
    shared: SharedStore, directory: str
) -> None:
    for name in ("a", "b", "c"):
        shared.declare(name)
    large = Message(Envelope("", "x"), os.urandom(100_000))
    with shared.transaction() as transaction:
        for name in ("a", "b", "c"):
            transaction.send(name, [large])
        transaction.send("a", [b"between"])
        transaction.send("a", [b"last"])
    shared.close()
    assert segment_bytes(directory) < 150_000
    with SharedStore.open(directory, options=OPTIONS) as again:
        assert receive(again, "a", 5) == [large.body, b"between", b"last"]
        assert receive(again, "b", 5) == [large.body]
        assert receive(again, "c", 5) == [large.body]


def test_the_same_message_twice_to_one_queue_is_there_twice(shared: SharedStore) -> None:
    message = Message(Envelope("", "x"), b"again")
    with shared.transaction() as transaction:
        transaction.send("q", [message])
        transaction.send("q", [message, message])
    assert receive(shared, "q", 5) == [b"again"] * 3


def test_a_transaction_to_several_queues_needs_all_of_them(shared: SharedStore) -> None:
    shared.declare("other")
    with shared.transaction() as transaction:
        with pytest.raises(QueueNotFoundError, match="'missing'"):
            transaction.send(["q", "missing"], [b"none"])
        with pytest.raises(ValueError, match="twice"):
            transaction.send(["q", "q"], [b"none"])
    with pytest.raises(QueueNotFoundError, match="'other'"), shared.transaction() as transaction:
        transaction.send(["q", "other"], [b"none"])
        shared.delete("other")
    assert ready(shared, "q") == 0


def test_a_prepared_transaction_to_several_queues(shared: SharedStore, directory: str) -> None:
    shared.declare("other")
    with shared.transaction() as transaction:
        transaction.send(["q", "other"], [b"one"])
        transaction.prepare("both")
    shared.close()
    with SharedStore.open(directory, options=OPTIONS) as again:
        (prepared,) = again.prepared()
        prepared.commit()
        assert receive(again, "q", 5) == receive(again, "other", 5) == [b"one"]


def test_a_second_open_in_one_process_is_told_so(shared: SharedStore, directory: str) -> None:
    for opened in (SharedStore.open, Store.open):
        with pytest.raises(StoreLockedError, match="open in this process already") as raised:
            opened(directory)
        assert raised.value.is_own
    with pytest.raises(StoreLockedError, match="open in this process already"):
        StoreImage.open(directory)
    child = fork()
    if not child:
        try:
            SharedStore.open(directory)
        except StoreLockedError as error:
            os._exit(error.is_own)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    shared.close()
    SharedStore.open(directory, options=OPTIONS).close()


def test_messages_are_shown_as_they_are(shared: SharedStore) -> None:
    assert repr(Message(Envelope("e", "k", b"\x01", persistent=False), b"one")) == (
        "Message(Envelope('e', 'k', b'\\x01', persistent=False), b'one')"
    )
    assert repr(Message(Envelope("", "q"), bytes(1000))).endswith("...>)")
    assert len(repr(Message(Envelope("", "q"), bytes(1000)))) < 300
    send(shared, "q", b"one")
    with shared.transaction() as transaction:
        (received,) = transaction.receive("q")
    assert repr(received) == (
        "Received(message=Message(Envelope('', 'q', b''), b'one'), delivery_count=0)"
    )
