"""Unacked messages whose bodies have left memory are whole wherever they go."""

from collections.abc import Callable
from typing import Any

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.queues.pending_moves import PendingMoves
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_tools.simulation.memory_files import MemoryFile
from tests.simulated_broker import OPTIONS, SimulatedBroker, ack_until, reject_until
from tests.unit.broker.simulated import Client
from tests.unit.broker.test_read_later import Shortage

COUNT = 40
BODIES = [f"{number:02}" * 100_000 for number in range(COUNT)]
"""About 8 MB: they are read back in parts."""


@pytest.fixture
def simulated() -> SimulatedBroker:
    """A broker without room for anything in memory, with a queue "dead"."""
    simulated = SimulatedBroker(options=OPTIONS._replace(memory_bytes=0))
    simulated.queue("dead")
    return simulated


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


def holding(simulated: SimulatedBroker, *bodies: str, mode: int = 2, **arguments: Any) -> Client:
    """A client that has taken all messages of queue "q", whose dead letters go to "dead"."""
    dead: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    simulated.queue("q", **dead, **arguments)
    client = Client(simulated)
    client.publish("", "q", *(bodies or BODIES), delivery_mode=mode)
    client.consume("q", "c")
    simulated.settle()
    assert client.bodies("c") == list(bodies or BODIES)
    client.got.clear()
    simulated.store.upkeep.housekeep()
    assert all(delivery.run.messages is None for delivery in client.channel._unacked)
    return client


@pytest.mark.parametrize("mode", [2, 1])
def test_dead_letters_come_in_order(simulated: SimulatedBroker, mode: int) -> None:
    client = holding(simulated, mode=mode)
    client.channel.reject(1, requeue=False)
    reject_until(client.channel, 0, requeue=False)
    simulated.settle()
    assert simulated.ready("dead") == BODIES


def test_only_so_much_is_read_before_the_others_have_their_turn(
    simulated: SimulatedBroker,
) -> None:
    client = holding(simulated)
    reject_until(client.channel, 0, requeue=False)
    assert simulated.vhost.queue("q").pending_moves
    # And no more than the disk takes.
    simulated.services.limits = BROKER_LIMITS._replace(max_pending_bytes=1 << 20)
    pending = simulated.store.log.pending_bytes
    for _ in range(5):
        simulated.broker.pumping.pump()
    assert simulated.store.log.pending_bytes == pending
    simulated.settle()
    assert simulated.ready("dead") == BODIES


def test_what_was_delivered_too_often(simulated: SimulatedBroker) -> None:
    client = holding(simulated, delivery_limit=0)
    client.channel.close()
    simulated.settle()
    assert simulated.ready("dead") == BODIES


def test_what_is_sent_once_more(simulated: SimulatedBroker) -> None:
    client = holding(simulated)
    client.redelivered.clear()
    client.channel.recover(requeue=False)
    simulated.settle()
    assert client.bodies("c") == BODIES
    assert client.redelivered == [True] * COUNT
    ack_until(client.channel, 0)
    simulated.settle()
    assert client.channel.window.unacked == client.channel.consumers["c"].window.unacked_bytes == 0


def test_what_comes_back_counts_in_a_limit_of_bytes(simulated: SimulatedBroker) -> None:
    client = holding(simulated, "aaa", "b", "cc", max_length_bytes=100)
    client.ack("b")
    client.channel.close()
    simulated.settle()
    assert simulated.vhost.queue("q").backlog.ready_bytes == 5
    assert simulated.ready("q") == ["aaa", "cc"]


def test_what_is_consumed_is_in_the_history(simulated: SimulatedBroker) -> None:
    client = holding(simulated, history_length=100)
    ack_until(client.channel, 0)
    simulated.settle()
    simulated.restart()
    assert simulated.ready("q") == []
    assert simulated.ready("amq.consumed.q") == BODIES


@pytest.mark.parametrize("settle", ["ack", "reject"])
def test_a_transaction_has_them_in_memory_up_to_a_limit(
    simulated: SimulatedBroker, settle: str
) -> None:
    client = holding(simulated, history_length=100)
    channel = client.channel
    channel.select_transactions()

    def commit() -> None:
        ack_until(channel, 0) if settle == "ack" else reject_until(channel, 0, requeue=False)
        channel.commit()

    simulated.services.limits = BROKER_LIMITS._replace(max_read_back_bytes=1 << 20)
    with pytest.raises(PreconditionFailedError, match="undone; settle fewer"):
        commit()
    simulated.services.limits = BROKER_LIMITS
    channel.rollback()
    commit()
    simulated.settle()
    assert client.told[-1] == "committed"
    assert simulated.ready("amq.consumed.q" if settle == "ack" else "dead") == BODIES


def test_what_cannot_be_read_now_leaves_later(
    simulated: SimulatedBroker, shortage: Shortage
) -> None:
    client = holding(simulated)
    simulated.store.log._descriptors.close()
    shortage.is_there = True
    reject_until(client.channel, 0, requeue=False)
    for _ in range(3):
        simulated.pass_time(1000)
    shortage.is_there = False
    assert simulated.ready("dead") == []
    simulated.pass_time(1000)
    assert simulated.ready("dead") == BODIES


def test_what_cannot_be_read_now_goes_back_instead_of_being_sent_once_more(
    simulated: SimulatedBroker, shortage: Shortage
) -> None:
    client = holding(simulated)
    simulated.store.log._descriptors.close()
    shortage.is_there = True
    client.channel.recover(requeue=False)
    shortage.is_there = False
    simulated.pass_time(1000)
    assert client.bodies("c") == BODIES


def reject_all(client: Client) -> None:
    reject_until(client.channel, 0, requeue=False)


def recover_all(client: Client) -> None:
    client.channel.recover(requeue=False)


@pytest.mark.parametrize("leave", [reject_all, recover_all])
def test_one_that_is_damaged_is_left_to_the_next_start(
    simulated: SimulatedBroker,
    leave: Callable[[Client], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = holding(simulated, "good one", "rotten", "good two")
    read = MemoryFile.read

    def read_rotten(file: MemoryFile, offset: int, size: int) -> bytes:
        return read(file, offset, size).replace(b"rotten", b"rotted")

    with monkeypatch.context() as rot:
        rot.setattr(MemoryFile, "read", read_rotten)
        leave(client)
        simulated.settle()
        bodies = client.bodies("c") if leave is recover_all else simulated.ready("dead")
        assert bodies == ["good one", "good two"]
        assert "messages cannot be read" in caplog.text
    simulated.restart()
    assert "rotten" in simulated.ready("q")


def test_a_full_disk_has_them_stay(simulated: SimulatedBroker) -> None:
    client = holding(simulated)
    client.channel.cancel("c")
    simulated.fill_disk()
    reject_until(client.channel, 0, requeue=False)
    simulated.settle()
    simulated.free_disk()
    assert simulated.ready("q") == BODIES


def half_way(simulated: SimulatedBroker, client: Client) -> PendingMoves:
    """Some messages are dead letters, and the others are on their way."""
    client.channel.cancel("c")
    reject_until(client.channel, 0, requeue=False)
    leaving = simulated.vhost.queue("q").pending_moves
    assert leaving
    return leaving


def test_a_queue_that_is_set_aside_has_them_again(simulated: SimulatedBroker) -> None:
    half_way(simulated, holding(simulated))
    queue = simulated.vhost.queue("q")
    queue.set_aside(LookupError("for this test"))
    simulated.settle()
    gone = simulated.ready("dead")
    assert BODIES[: len(gone)] == gone
    simulated.restart()
    assert simulated.ready("q") == BODIES[len(gone) :]


@pytest.mark.parametrize("mode", [2, 1])
def test_a_queue_that_is_deleted_takes_them_along(simulated: SimulatedBroker, mode: int) -> None:
    leaving = half_way(simulated, holding(simulated, mode=mode))
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    assert not leaving
    simulated.settle()
    gone = simulated.ready("dead")
    assert 0 < len(gone) < COUNT
    assert BODIES[: len(gone)] == gone
