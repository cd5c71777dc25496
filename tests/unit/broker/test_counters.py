"""Counters: every message that goes in or out is counted once, whichever way it takes."""

from typing import Any

import pytest

from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.channels.confirms import Flags
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled


@pytest.fixture
def simulated() -> SimulatedBroker:
    made = SimulatedBroker()
    made.queue("q")
    return made


def counted(counters: Any) -> dict[str, int]:
    """The counters that are not 0."""
    names = [name for kind in type(counters).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(counters, name) for name in sorted(names) if getattr(counters, name)}


def test_publishes_and_their_confirms(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "a", "b")
    client.channel.select_confirms()
    client.publish("", "q", "c")
    simulated.settle()
    expected = {"publish": 3, "confirmable": 1, "confirm": 1}
    assert counted(client.channel.counters) == counted(simulated.vhost.counters) == expected
    default = simulated.vhost.router.default_counters
    assert counted(default) == {"publish_in": 3, "publish_out": 3}
    assert simulated.vhost.queue("q").priorities.published_count == 3


def test_refused_publishes(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("full", max_length=1, overflow="reject-publish")
    client.channel.select_confirms()
    client.publish("", "full", "a", "b", "c")
    simulated.settle()
    expected = {"publish": 3, "confirmable": 3, "confirm": 1, "refuse": 2}
    assert counted(client.channel.counters) == counted(simulated.vhost.counters) == expected


def test_copies_are_counted_out_of_the_exchange_that_was_published_to(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("second")
    simulated.exchange("first")
    simulated.exchange("behind")
    simulated.bind("first", "q")
    simulated.bind("behind", "second")
    simulated.vhost.bindings.bind(simulated.vhost.exchange("behind"), "first", "", {})
    client.publish("first", "", "a", "b")
    assert counted(simulated.vhost.exchange("first").counters) == {
        "publish_in": 2,
        "publish_out": 4,
    }
    assert counted(simulated.vhost.exchange("behind").counters) == {}


def test_messages_without_a_queue(simulated: SimulatedBroker, client: Client) -> None:
    for flags in (Flags(mandatory=True), Flags()):
        client.channel.publish(*labelled("", "nowhere", "a"), flags)
    expected = {"publish": 2, "drop_unroutable": 1, "return_unroutable": 1}
    assert counted(client.channel.counters) == counted(simulated.vhost.counters) == expected


def test_deliveries_and_what_becomes_of_them(simulated: SimulatedBroker, client: Client) -> None:
    queue = simulated.vhost.queue("q")
    client.publish("", "q", "a", "b", "c")
    client.consume("q", "tag")
    simulated.settle()
    assert queue.unacked_count == 3
    client.ack("a")
    client.reject("b")
    client.requeue("c")
    simulated.settle()
    assert queue.unacked_count == 1
    expected = {"deliver": 4, "redeliver": 1, "ack": 1, "reject": 1, "requeue": 1}
    assert counted(queue.counters) == expected
    assert counted(client.channel.counters) == {**expected, "publish": 3}
    client.channel.close()
    assert queue.unacked_count == 0


def test_deliveries_without_acks(simulated: SimulatedBroker, client: Client) -> None:
    queue = simulated.vhost.queue("q")
    client.publish("", "q", "a", "b")
    client.consume("q", "tag", no_ack=True)
    simulated.settle()
    assert counted(queue.counters) == {"deliver_no_ack": 2}
    assert queue.unacked_count == 0


def test_gets(simulated: SimulatedBroker, client: Client) -> None:
    queue = simulated.vhost.queue("q")
    client.publish("", "q", "a", "b")
    client.get("q")
    client.channel.get(queue, no_ack=True)
    client.channel.found_nothing(queue)
    assert counted(queue.counters) == {"get": 1, "get_no_ack": 1, "get_empty": 1}
    assert queue.unacked_count == 1


def test_a_recover_delivers_again_what_is_unacked(
    simulated: SimulatedBroker, client: Client
) -> None:
    queue = simulated.vhost.queue("q")
    client.publish("", "q", "a", "b")
    client.consume("q", "tag")
    simulated.settle()
    client.channel.recover(requeue=False)
    simulated.settle()
    assert queue.unacked_count == 2
    assert counted(queue.counters) == {"deliver": 4, "redeliver": 2}


def test_a_transaction_is_counted_when_it_is_committed(
    simulated: SimulatedBroker, client: Client
) -> None:
    client.publish("", "q", "a", "b")
    client.consume("q", "tag")
    simulated.settle()
    before = counted(client.channel.counters)
    client.channel.select_transactions()
    client.publish("", "q", "c")
    client.ack("a")
    client.reject("b")
    client.channel.rollback()
    assert counted(client.channel.counters) == before
    client.publish("", "q", "d")
    client.publish("", "nowhere", "e")
    client.ack("a")
    client.reject("b")
    client.channel.commit()
    simulated.settle()
    assert counted(client.channel.counters) == {
        "publish": 4,
        "drop_unroutable": 1,
        "deliver": 3,
        "ack": 1,
        "reject": 1,
    }
    assert simulated.vhost.queue("q").unacked_count == 1


def test_messages_of_all_priorities_count_and_those_before_the_start_do_not(
    simulated: SimulatedBroker,
) -> None:
    queue = simulated.queue("p", max_priority=5)
    client = Client(simulated)
    client.publish("", "p", "a", priority=1)
    client.publish("", "p", "b", "c")
    assert queue.priorities.published_count == 3
    simulated.settle()
    simulated.restart()
    queue = simulated.vhost.queue("p")
    assert (queue.ready_count, queue.priorities.published_count) == (3, 0)
    Client(simulated).publish("", "p", "d", priority=1)
    assert queue.priorities.published_count == 1


def test_what_a_deleted_virtual_host_counted_stays(simulated: SimulatedBroker) -> None:
    simulated.broker.define(Defined(["gone"]))
    simulated.broker.vhost("gone").channel_totals.past.publish += 7
    simulated.broker.begin_deleting("gone")
    for _ in simulated.broker.deleting_vhost("gone"):
        pass
    assert simulated.broker.counters().publish == 7
