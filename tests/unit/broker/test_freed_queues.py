"""A deleted queue is freed at once, and not when the garbage collector comes.

It comes seldom here, by design: the reply queues of clients that are gone would add up.
"""

import gc
from collections import Counter
from collections.abc import Callable, Generator

import pytest

import amqpstore
from amqpstore import Run
from amqpstore.expiry import ExpiryHeap
from amqpstore.runs import ReadyList
from amqpstore_server.broker.exchanges.base import Binding
from amqpstore_server.broker.queues.backlog import Backlog
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.queues.dispatch import Dispatch
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.settings import Settings
from amqpstore_server.broker.timers import Timer
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

Deed = Callable[[SimulatedBroker, Client], None]


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
    """Return how many objects there are of each kind that a queue has."""
    return Counter(
        type(found).__name__ for found in gc.get_objects() if isinstance(found, OF_A_QUEUE)
    )


@pytest.fixture(scope="module")
def only_what_is_new() -> Generator[None]:
    """Leave out of what `gc` looks through and shows what there was before: all that is loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_collections(only_what_is_new: None) -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_only_declared(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")


def is_transient(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", durable=False)
    client.publish("", "q", "1", delivery_mode=1)


def is_bound(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")
    for exchange in "amq.direct", "amq.topic", "amq.fanout", "amq.headers":
        simulated.bind(exchange, "q", "key.#")
    client.publish("amq.direct", "key.#", "1")
    client.publish("amq.topic", "key.word", "2")


def is_consumed(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q")
    client.consume("q", "a", prefetch=1)
    client.consume("q", "b")
    client.publish("", "q", *"12345")
    simulated.settle()
    client.ack("2")
    simulated.settle()


def lost_its_consumer(simulated: SimulatedBroker, client: Client) -> None:
    is_consumed(simulated, client)
    for tag in "ab":
        client.channel.cancel(tag)
    client.requeue("1")
    client.reject("3")
    simulated.settle()


def has_timers(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("q", expires=60_000, message_ttl=1000, max_length_bytes=100, max_priority=3)
    client.publish("", "q", "1", expiration="500")
    client.publish("", "q", "2", priority=2)


def has_dead_letters(simulated: SimulatedBroker, client: Client) -> None:
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
    is_only_declared,
    is_transient,
    is_bound,
    is_consumed,
    lost_its_consumer,
    has_timers,
    has_dead_letters,
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
        simulated.store.checkpoint()
        simulated.settle()

    once()  # what is made but once stays
    before = of_queues()
    for _ in range(3):
        once()
    assert of_queues() == before
