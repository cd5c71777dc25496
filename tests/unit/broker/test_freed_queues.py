"""A deleted queue is freed at once, and not when the garbage collector comes.

It comes seldom here, by design: the reply queues of clients that are gone would add up.
"""

from collections import Counter
from collections.abc import Callable

import pytest

import amqpstore
from amqpstore import Message, Run
from amqpstore.format.runs import ReadyList
from amqpstore.queues.expiry import ExpiryHeap
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding
from amqpstore_server.broker.queues.backlog import Backlog
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.queues.dispatch import Dispatch
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.broker.work.timers import Timer
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.uncollected import living
from tests.unit.broker.simulated import Client

Deed = Callable[[SimulatedBroker, Client], None]


LATER_MS = 2000
"""The time in which unacked messages of deleted queues are freed."""

OF_A_QUEUE = (
    Queue,
    Backlog,
    Priorities,
    Dispatch,
    Timer,
    Delivery,
    Binding,
    Settings,
    amqpstore.Queue,
    ExpiryHeap,
    ReadyList,
    Run,
)


def of_queues() -> Counter[str]:
    return living(*OF_A_QUEUE)


def only_declared(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")


def transient(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", durable=False)
    client.publish("", "q", "1", delivery_mode=1)


def bound(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")
    for exchange in "amq.direct", "amq.topic", "amq.fanout", "amq.headers":
        simulated.bind(exchange, "q", "key.#")
    client.publish("amq.direct", "key.#", "1")
    client.publish("amq.topic", "key.word", "2")


def consumed(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")
    client.consume("q", "a", prefetch=1)
    client.consume("q", "b")
    client.publish("", "q", *"12345")
    simulated.settle()
    client.ack("2")
    simulated.settle()


def lost_its_consumer(simulated: SimulatedBroker, client: Client) -> None:
    consumed(simulated, client)
    for tag in "ab":
        client.channel.cancel(tag)
    client.requeue("1")
    client.reject("3")
    simulated.settle()


def with_timers(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", expires=60_000, message_ttl=1000, max_length_bytes=100, max_priority=3)
    client.publish("", "q", "1", expiration="500")
    client.publish("", "q", "2", priority=2)


def with_dead_letters(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", dead_letter_exchange="amq.fanout", max_length=2)
    client.publish("", "q", *"12345")
    simulated.settle()
    client.get("q")
    client.reject("4")


def keeps_a_history(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", history_length=10)
    client.publish("", "q", *"12")
    simulated.settle()
    client.get("q")
    client.ack("1")


def was_purged(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", purge_undo_seconds=60)
    client.publish("", "q", *"12")
    simulated.settle()
    simulated.vhost.queue("q").backlog.purge()


DEEDS = [
    only_declared,
    transient,
    bound,
    consumed,
    lost_its_consumer,
    with_timers,
    with_dead_letters,
    keeps_a_history,
    was_purged,
]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_nothing_stays_of_a_deleted_queue(deed: Deed) -> None:
    simulated = SimulatedBroker()

    def once() -> None:
        client = Client(simulated)
        deed(simulated, client)
        simulated.settle()
        simulated.vhost.delete_queue(simulated.vhost.queue("q"))
        client.channel.close()
        simulated.settle()
        simulated.store.upkeep.checkpoint()
        simulated.settle()

    once()  # what is made but once stays
    before = of_queues()
    for _ in range(3):
        once()
    assert of_queues() == before


def with_consumers(simulated: SimulatedBroker, client: Client) -> None:
    client.consume("q", "c")
    simulated.settle()


def gets(simulated: SimulatedBroker, client: Client) -> None:
    for _ in range(5):
        client.get("q")


def all_sent_again(simulated: SimulatedBroker, client: Client) -> None:
    with_consumers(simulated, client)
    client.channel.recover(requeue=False)


def lost_its_consumers(simulated: SimulatedBroker, client: Client) -> None:
    with_consumers(simulated, client)
    client.ack("2")
    client.channel.cancel("c")


def settled_in_a_transaction(simulated: SimulatedBroker, client: Client) -> None:
    if client.channel.transaction is None:
        client.channel.select_transactions()
    with_consumers(simulated, client)
    for body in "124":
        client.ack(body)
    client.reject("5")


def later(simulated: SimulatedBroker) -> None:
    simulated.clock.advance(LATER_MS)
    simulated.settle()
    simulated.store.upkeep.checkpoint()
    simulated.settle()


HOLDERS = [
    *(with_consumers, gets, all_sent_again, lost_its_consumers),
    settled_in_a_transaction,
]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize("holds", HOLDERS, ids=lambda holds: holds.__name__)
def test_what_is_unacked_of_deleted_queues_is_their_tags_alone(
    holds: Deed, *, durable: bool
) -> None:
    simulated = SimulatedBroker()
    client, other = Client(simulated), Client(simulated)

    def once() -> None:
        simulated.queue("q", durable=durable)
        other.publish("", "q", *"12345")
        simulated.settle()
        holds(simulated, client)
        simulated.settle()
        simulated.vhost.delete_queue(simulated.vhost.queue("q"))
        later(simulated)
        client.got.clear()
        client.record.clear()

    def of_all() -> Counter[str]:
        counted = of_queues() + living(Consumer, Message)
        # These are the tags, and how many they are.
        del counted["Delivery"], counted["Run"]
        return counted

    once()  # all refer to the first
    before = of_all()
    for _ in range(3):
        once()
    assert of_all() == before


def test_what_is_unacked_of_a_deleted_queue_is_settled_as_ever() -> None:
    simulated = SimulatedBroker()
    client = Client(simulated)
    client.channel.window.messages = 8
    for name, bodies in ("q", "1234"), ("r", "56"):
        simulated.queue(name)
        client.publish("", name, *bodies)
        simulated.settle()
        client.consume(name, name)
    simulated.settle()
    client.ack("2")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    later(simulated)
    channel = client.channel
    assert (channel.unacked_count, channel.window.unacked) == (5, 5)
    client.ack("1")
    with pytest.raises(PreconditionFailedError, match="unknown delivery tag 2"):
        client.ack("2")
    client.requeue("3")
    client.reject("4")
    client.requeue("5")
    simulated.settle()
    assert simulated.vhost.counters.late_ack == 1
    assert client.bodies("r") == ["5", "6", "5"]
    ack_until(channel, 0)
    assert (channel.unacked_count, channel.window.unacked, channel.window.unacked_bytes) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_what_a_transaction_settled_of_a_deleted_queue_ends_as_ever(*, commits: bool) -> None:
    simulated = SimulatedBroker()
    client = Client(simulated)
    client.channel.select_transactions()
    for name, bodies in ("q", "1234"), ("r", "56"):
        simulated.queue(name)
        client.publish("", name, *bodies)
        client.channel.commit()
        simulated.settle()
        client.consume(name, name)
    simulated.settle()
    client.ack("1")
    client.reject("2")
    client.requeue("3")
    client.ack("5")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    later(simulated)
    channel = client.channel
    assert channel.unacked_count == 2
    if commits:
        channel.commit()
    else:
        channel.rollback()
    simulated.settle()
    assert channel.unacked_count == (2 if commits else 6)
    ack_until(channel, 0)
    channel.commit()
    simulated.settle()
    assert channel.unacked_count == 0
    assert simulated.vhost.queue("r").ready_count == 0


def test_very_many_unacked_messages_of_a_deleted_queue_are_freed_in_steps() -> None:
    simulated = SimulatedBroker()
    client = Client(simulated)
    queue = simulated.queue("q")
    for number in range(600):
        client.publish("", "q", str(number))
        client.get("q")
    simulated.settle()
    simulated.vhost.delete_queue(queue)
    empty = [one.is_empty for one in client.channel.unacked_in(queue)]
    assert empty == [False] * 600
    simulated.clock.advance(LATER_MS)
    simulated.services.run_timers()
    simulated.broker.pumping.pump()
    empty = [one.is_empty for one in client.channel.unacked_in(queue)]
    assert 0 < sum(empty) <= 256
    ack_until(client.channel, 100)
    simulated.settle()
    assert all(one.is_empty for one in client.channel.unacked_in(queue))
    assert client.channel.unacked_count == 500
