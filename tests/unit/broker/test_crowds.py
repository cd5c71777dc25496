"""Dispatch where a queue has very many consumers: it looks at few of them."""

import pytest

from amqpstore_server.broker.queues.consumer import Consumer
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return SimulatedBroker()


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def publish(simulated: SimulatedBroker, queue: str, *bodies: str) -> None:
    Client(simulated).publish("", queue, *bodies)
    simulated.settle()


def test_one_message_concerns_few_of_many_consumers(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.queue("q")
    client = Client(simulated)
    for number in range(200):
        client.consume("q", str(number))
    simulated.settle()
    asked = count_asked(monkeypatch)
    publish(simulated, "q", "1", "2")
    assert client.got == [("0", "1"), ("1", "2")]
    assert len(asked) < 20


def count_asked(monkeypatch: pytest.MonkeyPatch) -> list[Consumer]:
    """Return the consumers that are asked from now on what they can take."""
    asked: list[Consumer] = []
    capacity = Consumer.capacity

    def counted(consumer: Consumer) -> int:
        asked.append(consumer)
        room: int = capacity.__get__(consumer)
        return room

    monkeypatch.setattr(Consumer, "capacity", property(counted))
    return asked


@pytest.mark.parametrize("waiting", [0, 1, 500])
def test_of_many_consumers_none_that_is_full_is_asked(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    simulated.queue("q")
    client, other = Client(simulated), Client(simulated)
    for number in range(200):
        client.consume("q", str(number), prefetch=1)
    publish(simulated, "q", *numbers(200 + waiting))
    publish(simulated, "q", "noticed")
    assert [len(client.bodies(str(number))) for number in range(200)] == [1] * 200
    asked = count_asked(monkeypatch)
    publish(simulated, "q", "later", "latest")
    client.ack("7")
    simulated.settle()
    assert client.got[200:] == [("7", "200" if waiting else "noticed")]
    other.consume("q", "other", priority=-1, prefetch=2)
    simulated.settle()
    assert len(other.got) == 2
    assert len(asked) < 40


@pytest.mark.parametrize("kind", ["ack", "requeue", "reject", "commit", "recover", "close"])
def test_whoever_was_full_is_served_again(simulated: SimulatedBroker, kind: str) -> None:
    simulated.queue("q")
    client, other = Client(simulated), Client(simulated)
    if kind == "commit":
        client.channel.select_transactions()
    client.consume("q", "a", prefetch=1)
    if kind == "close":
        other.consume("q", "b", prefetch=1)
        publish(simulated, "q", "0")
    publish(simulated, "q", "1")
    publish(simulated, "q", "2")
    publish(simulated, "q", "3")
    full = other if kind == "close" else client
    assert len(full.got) == 1
    match kind:
        case "ack" | "commit":
            client.ack("1")
        case "requeue":
            client.requeue("1")
        case "reject":
            client.reject("1")
        case "recover":
            client.channel.recover(requeue=True)
        case "close":
            client.channel.close()
            other.ack(other.got[0][1])
    if kind == "commit":
        client.channel.commit()
    simulated.settle()
    assert len(full.got) == 2


def test_a_single_active_consumer_that_was_full_is_served_again(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", single_active_consumer=True)
    first, second = Client(simulated), Client(simulated)
    first.consume("q", "first", prefetch=1)
    publish(simulated, "q", "1", "2", "3")
    second.consume("q", "second", prefetch=1)
    simulated.settle()
    second.channel.cancel("second")
    publish(simulated, "q", "4")
    first.ack("1")
    simulated.settle()
    assert (first.bodies("first"), second.got) == (["1", "2"], [])
