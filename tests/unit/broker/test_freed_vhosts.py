"""A deleted virtual host is freed at once, with all that was in it."""

from collections import Counter
from collections.abc import Callable

import pytest

from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.vhost import VirtualHost
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

NAME = "shop"

Deed = Callable[[SimulatedBroker, Client], None]


class InVhost(SimulatedBroker):
    """A simulated broker whose tools work in a virtual host that comes and goes."""

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhost(NAME)


def nothing(simulated: SimulatedBroker, client: Client) -> None:
    pass


def queues(simulated: SimulatedBroker, client: Client) -> None:
    for name in "qr":
        simulated.queue(name, history_length=5, max_priority=3)
        simulated.bind("amq.topic", name, "a.#")
        client.publish("amq.topic", "a.b", name)
        client.consume(name, name, prefetch=1)
    simulated.settle()
    client.ack("q")


def exchanges(simulated: SimulatedBroker, client: Client) -> None:
    simulated.exchange("later", "x-delayed-message", x_delayed_type="topic")
    simulated.queue("q")
    simulated.bind("later", "q", "#")
    client.publish("later", "key", "1", headers={"x-delay": 60_000})


def letters_that_wait(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue(
        "q",
        queue_type="quorum",
        overflow="reject-publish",
        dead_letter_exchange="none",
        dead_letter_strategy="at-least-once",
    )
    client.publish("", "q", *"12")
    simulated.settle()
    client.get("q")
    client.reject("1")
    simulated.settle()
    assert simulated.vhost.queue("q").letter_count == 1


def policies(simulated: SimulatedBroker, client: Client) -> None:
    policy = Policy("p", "^q", "queues", 0, {"max-length-bytes": 10_000})
    simulated.vhost.policy_settings.define([policy], operator=False)
    queues(simulated, client)


def tracing(simulated: SimulatedBroker, client: Client) -> None:
    simulated.vhost.firehose.is_on = True
    queues(simulated, client)


DEEDS = [nothing, queues, exchanges, letters_that_wait, policies, tracing]


@pytest.fixture(scope="module")
def simulated() -> InVhost:
    return InVhost()


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_nothing_of_a_deleted_virtual_host_waits_for_a_collection(
    simulated: InVhost, deed: Deed, unreachable: Callable[[], Counter[str]]
) -> None:
    for _ in range(3):
        simulated.broker.define(Defined([NAME]))
        client = Client(simulated)
        deed(simulated, client)
        simulated.settle()
        simulated.broker.begin_deleting(NAME)
        client.channel.close()
        del client.channel  # which refers to its client
        for _ in simulated.broker.deleting_vhost(NAME):
            simulated.settle()
        simulated.settle()
    del client
    assert unreachable() == {}
