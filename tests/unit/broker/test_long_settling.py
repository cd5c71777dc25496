"""Acks and rejections of very many deliveries: they take several turns."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.channels import unacked as unacked_module
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.unit.broker.simulated import Client

AT_ONCE = 10
BODIES = [f"{number:02}" for number in range(60)]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedBroker:
    monkeypatch.setattr(unacked_module, "AT_ONCE", AT_ONCE)
    simulated = SimulatedBroker()
    simulated.queue("q")
    return simulated


def client_of(simulated: SimulatedBroker, *, transacted: bool = False) -> Client:
    """A client that has fetched everything from queue `q`, one at a time."""
    publisher = Client(simulated)
    for body in BODIES:
        publisher.publish("", "q", body, message_id=body)
    simulated.settle()
    client = Client(simulated)
    if transacted:
        client.channel.select_transactions()
    while client.get("q"):
        pass
    return client


def unacked(simulated: SimulatedBroker) -> int:
    return simulated.vhost.queue("q").unacked_count


def test_an_ack_of_many_deliveries_takes_several_turns(simulated: SimulatedBroker) -> None:
    client = client_of(simulated)
    left = [unacked(simulated) for _ in client.channel.settling_until(0, requeue=None) or ()]
    assert left == [40, 30, 20, 10]
    simulated.settle()
    assert (unacked(simulated), simulated.ready("q")) == (0, [])
    simulated.crash()
    assert simulated.ready("q") == []


@pytest.mark.parametrize("how", ["nack", "recover"])
def test_what_is_back_is_delivered_in_order_before_the_rest_is(
    simulated: SimulatedBroker, how: str
) -> None:
    client, other = client_of(simulated), Client(simulated)
    # So that the order of its tags is not that of the queue.
    client.requeue("05")
    assert client.get("q") == "05"
    other.consume("q", "t")
    channel = client.channel
    steps = (
        channel.settling_until(0, requeue=True)
        if how == "nack"
        else channel.recovering(requeue=True)
    )
    counts = []
    for _ in steps or ():
        simulated.settle()
        counts.append(len(other.bodies("t")))
    simulated.settle()
    assert counts == [20, 30, 40, 50]
    assert other.bodies("t") == BODIES
    assert all(other.redelivered)


@pytest.mark.parametrize("requeue", [None, True, False])
def test_the_rest_follows_when_the_channel_goes(
    simulated: SimulatedBroker, requeue: bool | None
) -> None:
    client = client_of(simulated)
    steps = client.channel.settling_until(0, requeue=requeue)
    assert steps is not None
    next(steps)
    client.channel.close()
    del steps
    simulated.settle()
    assert unacked(simulated) == 0
    assert simulated.ready("q") == (BODIES if requeue else [])


def test_what_a_closed_channel_had_returns_in_several_turns(simulated: SimulatedBroker) -> None:
    client = client_of(simulated)
    client.channel.close()
    assert simulated.ready("q") == BODIES[:AT_ONCE]
    simulated.settle()
    assert simulated.ready("q") == BODIES
    assert not simulated.services.agenda.background


@pytest.mark.parametrize("steps_taken", [0, 2, 5])
def test_acks_of_a_transaction_whose_channel_goes_are_undone(
    simulated: SimulatedBroker, steps_taken: int
) -> None:
    client = client_of(simulated, transacted=True)
    ack_until(client.channel, 0)
    steps = client.channel.rolling_back()
    for _ in range(steps_taken):
        next(steps)
    client.channel.close()
    del steps
    simulated.settle()
    assert simulated.ready("q") == BODIES
    assert unacked(simulated) == 0


def test_a_rollback_takes_several_turns_and_all_is_unacked_again(
    simulated: SimulatedBroker,
) -> None:
    client = client_of(simulated, transacted=True)
    for body in reversed(BODIES):
        client.ack(body)
    counts = [client.channel.unacked_count for _ in client.channel.rolling_back()]
    assert counts == [10, 20, 30, 40, 50]
    assert client.channel.unacked_count == len(BODIES)
    ack_until(client.channel, 0)
    client.channel.commit()
    simulated.settle()
    simulated.crash()
    assert simulated.ready("q") == []
