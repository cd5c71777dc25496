"""The kinds of queues: what their rows say, rows from before there was a `kind`, and types of
other packages that keep messages."""

from collections.abc import Iterable
from typing import Any

import pytest

from amqpstore_server.broker.errors import NotFoundError, PreconditionFailedError
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.plugins import HISTORY, BasicProperties, Exchange, Settings
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

KINDS = {
    "amq.delayed.later": "delayed",
    "amq.history.news": "history",
    "amq.consumed.q": "consumed",
    "q": None,
}


def rows(simulated: SimulatedBroker) -> dict[str, Any]:
    definitions: list[Any] = [queue.definition for queue in simulated.store.queues.values()]
    return {row["name"]: row for row in definitions if "level" not in row}


def test_the_brokers_own_queues_say_their_kind_and_those_of_clients_none() -> None:
    simulated = SimulatedBroker()
    simulated.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    simulated.exchange("news", "x-recent-history")
    simulated.queue("q", history_length=1)
    simulated.vhost.reply_queue("connection")
    replies = "amq.rabbitmq.reply-to.0000000000000000000001"
    assert {name: row.get("kind") for name, row in rows(simulated).items()} == {
        **KINDS,
        replies: "reply",
    }
    assert rows(simulated)["q"].keys() == {"vhost", "name", "auto_delete", "arguments"}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_row_without_a_kind_is_found_by_its_name(name: str, kind: str | None) -> None:
    simulated = SimulatedBroker()
    simulated.store.create_queue(
        {"vhost": "/", "name": name, "auto_delete": False, "arguments": {}}
    )
    simulated.restart()
    assert simulated.vhost.queue(name).kind == (kind or "")


def test_a_delayed_exchange_of_an_older_store_goes_on() -> None:
    simulated = SimulatedBroker()
    row = {"vhost": "/", "name": "amq.delayed.later", "auto_delete": False, "arguments": {}}
    simulated.store.create_queue(row)
    simulated.restart()
    simulated.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    simulated.queue("q")
    simulated.bind("later", "q")
    Client(simulated).publish("later", "", "a", headers={"x-delay": 100})
    simulated.settle()
    simulated.restart()
    assert simulated.ready("amq.delayed.later") == ["a"]
    simulated.pass_time(100)
    assert simulated.ready("q") == ["a"]
    assert rows(simulated)["amq.delayed.later"] == row


class LastExchange(FanoutExchange):
    """An exchange of a package: it keeps the last message, and sends it to what is bound next."""

    type = "x-last"
    queue_kind = HISTORY

    def own_queue_settings(self) -> Settings:
        return Settings(max_length=1)

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Any]:
        yield from super().route(routing_key, properties)
        if self.own_queue is not None:
            yield self.own_queue


def test_the_type_of_a_package_keeps_messages() -> None:
    simulated = SimulatedBroker({"x-last": LastExchange})
    simulated.exchange("latest", "x-last")
    client = Client(simulated)
    client.publish("latest", "", "a", "b")
    simulated.settle()
    simulated.restart()
    simulated.queue("q")
    simulated.bind("latest", "q")
    simulated.settle()
    assert simulated.ready("q") == ["b"]
    assert simulated.ready("amq.history.latest") == ["b"]


def test_the_queue_of_a_type_that_is_gone_keeps_its_messages() -> None:
    types: dict[str, type[Exchange]] = {"x-last": LastExchange}
    simulated = SimulatedBroker(types)
    simulated.exchange("latest", "x-last")
    Client(simulated).publish("latest", "", "a")
    simulated.settle()
    types.clear()
    simulated.restart()
    assert simulated.ready("amq.history.latest") == ["a"]
    types["x-last"] = LastExchange
    simulated.restart()
    simulated.queue("q")
    simulated.bind("latest", "q")
    simulated.settle()
    assert simulated.ready("q") == ["a"]


def test_only_what_clients_declare_counts_towards_max_queues() -> None:
    simulated = SimulatedBroker()
    vhost = simulated.vhost
    vhost.limits = {"max-queues": 2}
    simulated.exchange("delayed", "x-delayed-message", x_delayed_type="direct")
    for _ in range(3):
        vhost.reply_queue("connection")
    simulated.queue("a", history_length=10)
    simulated.queue("b")
    with pytest.raises(PreconditionFailedError, match="queue limit in vhost"):
        simulated.queue("c")
    assert simulated.services.statistics.churn.queue_created == 2
    vhost.owned_queues.end("connection")
    assert simulated.services.statistics.churn.queue_deleted == 0


def test_an_address_of_direct_replies_is_no_queue() -> None:
    simulated = SimulatedBroker()
    address = simulated.vhost.reply_queue("connection").name
    with pytest.raises(NotFoundError):
        simulated.vhost.queue(address)
