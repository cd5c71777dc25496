"""A channel's deliveries: what is acked, given back and sent again, and what the windows say then
(F07, F08, F12)."""

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    simulated.queue("q")
    return simulated


def publish(simulated: SimulatedBroker, *bodies: str) -> None:
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_recover_sends_again_takes_its_place_in_the_window_once(
    simulated: SimulatedBroker, client: Client, is_shared: bool
) -> None:
    publish(simulated, "a", "b", "c", "d", "e")
    if is_shared:
        client.channel.window.messages = 2
    client.consume("q", "t", prefetch=0 if is_shared else 2)
    simulated.settle()
    for _ in range(3):
        client.channel.recover(requeue=False)
        simulated.settle()
    assert client.bodies("t") == ["a", "b"] * 4
    client.ack("a")
    client.ack("b")
    simulated.settle()
    assert client.bodies("t")[8:] == ["c", "d"]


def test_an_ack_of_all_up_to_a_tag_leaves_the_next_whatever_was_given_back_before(
    simulated: SimulatedBroker, client: Client
) -> None:
    publish(simulated, "a", "b", "c", "d", "e")
    for _ in range(5):
        client.get("q")
    client.requeue("a")
    ack_until(client.channel, 3)
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == ["a", "d", "e"]


def test_all_of_nothing_is_no_error_and_a_tag_that_is_settled_is(
    simulated: SimulatedBroker, client: Client
) -> None:
    publish(simulated, "a", "b")
    ack_until(client.channel, 0)
    client.get("q")
    client.get("q")
    ack_until(client.channel, 1)
    with pytest.raises(PreconditionFailedError, match="unknown delivery tag 1"):
        ack_until(client.channel, 1)
    ack_until(client.channel, 0)
    ack_until(client.channel, 0)


def test_what_a_wrong_ack_does_not_reach_is_unacked(
    simulated: SimulatedBroker, client: Client
) -> None:
    publish(simulated, "a", "b", "c", "d")
    for _ in range(4):
        client.get("q")
    client.ack("b")
    with pytest.raises(PreconditionFailedError, match="unknown delivery tag 2"):
        client.channel.ack(1, 4)
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == ["c", "d"]


@pytest.mark.parametrize("how", ["consumed", "fetched", "to be sent again"])
def test_what_a_closed_channel_leaves_is_redelivered(
    simulated: SimulatedBroker, client: Client, how: str
) -> None:
    publish(simulated, "a", "b")
    if how == "fetched":
        client.get("q")
        client.get("q")
    else:
        client.consume("q", "t")
        simulated.settle()
    if how == "to be sent again":
        client.is_writable = False
        client.channel.recover(requeue=False)
    client.channel.close()
    other = Client(simulated)
    other.consume("q", "t")
    simulated.settle()
    assert other.bodies("t") == ["a", "b"]
    assert other.redelivered == [True, True]


def test_what_recover_sends_again_counts_for_the_delivery_limit(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("dead")
    simulated.queue(
        "few", delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    client.consume("few", "t")
    Client(simulated).publish("", "few", "a")
    simulated.settle()
    for _ in range(4):
        client.channel.recover(requeue=False)
        simulated.settle()
    assert client.bodies("t") == ["a"] * 3
    assert simulated.ready("dead") == ["a"]
