"""Dispatch where there are very many consumers, or queues: it looks at few of them."""

import time

import pytest

from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, publish


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


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


@pytest.mark.usefixtures("no_garbage")
def test_many_priorities_cost_as_much_as_one(simulated: SimulatedBroker) -> None:
    """Each consumer has a priority of its own. Processor time counts: it is the same on a busy
    machine.
    """

    def cost_s(queue: str, priorities: list[int]) -> float:
        simulated.queue(queue)
        client = Client(simulated)
        for number, priority in enumerate(priorities[:-200]):
            client.consume(queue, str(number), priority=priority)
        began_s = time.thread_time()
        for number, priority in enumerate(priorities[-200:]):
            client.consume(queue, f"measured {number}", priority=priority)
        return time.thread_time() - began_s

    count = 3000
    many_s, one_s = (
        min(cost_s(f"{name} {round_}", priorities) for round_ in range(3))
        for name, priorities in (("many", [*range(count)]), ("one", [0] * count))
    )
    assert many_s < 5 * one_s


@pytest.mark.parametrize("why", ["full", "paused", "shared"])
def test_of_many_priorities_none_that_can_take_nothing_is_asked(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    simulated.queue("q")
    client = Client(simulated)
    for number in range(200):
        client.consume("q", str(number), priority=number, prefetch=why == "full")
    if why == "paused":
        client.channel.pause(paused=True)
    elif why == "shared":
        client.channel.window.messages = 20
    taken = {"full": 200, "paused": 0, "shared": 20}[why]
    publish(simulated, "q", *numbers(200))
    publish(simulated, "q", "noticed")
    assert len(client.got) == taken
    asked = count_asked(monkeypatch)
    publish(simulated, "q", "later", "latest")
    assert len(asked) < 20
    if why == "paused":
        client.channel.pause(paused=False)
    else:
        client.ack(client.got[0][1])
    simulated.settle()
    assert len(client.got) == (203 if why == "paused" else taken + 1)


def test_consumers_that_share_a_limit_are_looked_at_once_after_many_acks(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.channel.window.messages = 100
    for number in range(100):
        client.consume("q", str(number))
    publish(simulated, "q", *numbers(150))
    assert len(client.got) == 100
    touched = 0
    touch = Queue.touch

    def counted(queue: Queue) -> None:
        nonlocal touched
        touched += 1
        touch(queue)

    monkeypatch.setattr(Queue, "touch", counted)
    for number in range(100):
        client.ack(str(number))
    simulated.settle()
    assert len(client.got) == 150
    assert touched < 1000


@pytest.mark.parametrize("argument", ["max_length", "message_ttl"])
def test_whoever_has_room_after_an_ack_gets_what_would_be_dropped(
    simulated: SimulatedBroker, argument: str
) -> None:
    simulated.queue("q", durable=True, **{argument: 0})
    client = Client(simulated)
    client.channel.window.messages = 1
    for number in range(20):
        client.consume("q", str(number))
    simulated.settle()
    publish(simulated, "q", "1")
    publish(simulated, "q", "dropped")
    client.channel.cancel(client.got[0][0])
    client.ack("1")
    publish(simulated, "q", "2")
    assert [body for _, body in client.got] == ["1", "2"]


def test_a_turn_looks_at_some_of_many_queues(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(simulated)
    for name in numbers(40):
        simulated.queue(name)
        client.consume(name, name)
    simulated.settle()
    limits = BROKER_LIMITS._replace(max_pumped=16)
    monkeypatch.setattr(simulated.broker.services, "limits", limits)
    pumped = []
    pump = Queue.pump

    def counted(queue: Queue, *, yields: bool = False) -> None:
        pumped.append(queue.name)
        pump(queue, yields=yields)

    monkeypatch.setattr(Queue, "pump", counted)
    client.channel.resume()
    counts = []
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        counts.append(len(pumped))
    assert counts == [16, 32, 40]
    assert len(set(pumped)) == 40


def test_a_client_that_pauses_and_goes_on_again_and_again_is_served_once_a_turn(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(simulated)
    for name in numbers(40):
        simulated.queue(name)
        client.consume(name, name)
    simulated.settle()
    touched = []
    touch = Queue.touch

    def counted(queue: Queue) -> None:
        touched.append(queue.name)
        touch(queue)

    monkeypatch.setattr(Queue, "touch", counted)
    for _ in range(20):
        client.channel.pause(paused=True)
        client.channel.pause(paused=False)
    simulated.settle()
    assert sorted(touched) == sorted(numbers(40))
    publish(simulated, "7", "x")
    assert client.bodies("7") == ["x"]
