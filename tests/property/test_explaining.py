"""The explanation of a route is what a publish does, on topologies of any shape."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.explaining import Explanation, explain
from amqpstore_server.protocol.content import BasicProperties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

QUEUES = ["q1", "q2", "q3", "q4"]
EXCHANGES = {
    "direct": "direct",
    "fanout": "fanout",
    "topic": "topic",
    "topic2": "topic",
    "headers": "headers",
    "hash": "x-consistent-hash",
    "recent": "x-recent-history",
    "delayed": "x-delayed-message",
}
WORDS = st.sampled_from(["a", "b", "*", "#"])
KEYS = st.lists(st.sampled_from(["a", "b"]), max_size=3).map(".".join)
PATTERNS = st.lists(WORDS, max_size=3).map(".".join)
VALUES = st.sampled_from([1, 2, "x"])
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"x-match": st.sampled_from(["all", "any"])}, optional={"h1": VALUES, "h2": VALUES}
    ),
)
NAMES = st.sampled_from(list(EXCHANGES))
BINDINGS = st.lists(
    st.tuples(NAMES, st.sampled_from([*QUEUES, *EXCHANGES]), PATTERNS, ARGUMENTS), max_size=14
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "h1": VALUES,
        "h2": VALUES,
        "CC": st.lists(KEYS, max_size=2),
        "BCC": st.lists(st.sampled_from(QUEUES), max_size=1),
        "x-delay": st.just(1000),
    },
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["", *EXCHANGES]), st.one_of(KEYS, st.sampled_from(QUEUES)), HEADERS),
    min_size=1,
    max_size=6,
)


def with_topology(
    bindings: list[tuple[str, str, str, dict[str, Any]]], alternates: dict[str, str]
) -> SimulatedBroker:
    simulated = SimulatedBroker()
    for queue in QUEUES:
        simulated.queue(queue, durable=queue != "q4")
    for name, kind in EXCHANGES.items():
        arguments = {"alternate_exchange": alternates[name]} if name in alternates else {}
        if kind == "x-delayed-message":
            arguments["x_delayed_type"] = "topic"
        simulated.exchange(name, kind, **arguments)
    vhost = simulated.vhost
    for source, name, key, arguments in bindings:
        destination = vhost.queues.get(name) or vhost.exchanges[name]
        key = str(1 + len(key)) if source == "hash" else key
        try:
            vhost.bindings.bind(destination, source, key, arguments)
        except BrokerError:
            assert source == "headers"
    return simulated


def holding(simulated: SimulatedBroker, body: str) -> set[str]:
    """The queues in which a message is."""
    return {
        queue.name
        for queue in simulated.vhost.queues.values()
        if any(message.body.decode() == body for message in stored(simulated, queue))
    }


def stored(simulated: SimulatedBroker, queue: Queue) -> list[Any]:
    return [
        message
        for store_queue in queue.priorities
        for part in simulated.store.stored.browse(store_queue)
        for message in part
    ]


def why_of(explanation: Explanation) -> dict[str, str]:
    """The reason for each queue."""
    return {
        match["name"]: match["why"]
        for step in explanation["steps"]
        for match in step["matches"]
        if match["to"] == "queue"
    }


@settings(max_examples=60)
@given(BINDINGS, st.dictionaries(NAMES, NAMES, max_size=4), MESSAGES)
def test_the_queues_are_those_that_a_publish_reaches(
    bindings: list[tuple[str, str, str, dict[str, Any]]],
    alternates: dict[str, str],
    messages: list[tuple[str, str, dict[str, Any]]],
) -> None:
    simulated = with_topology(bindings, alternates)
    client = Client(simulated)
    router = simulated.vhost.router
    for number, (exchange, key, headers) in enumerate(messages):
        known = dict(router._routes)
        explanation = explain(router, exchange, key, BasicProperties(headers=headers))
        assert router._routes == known
        assert holding(simulated, str(number)) == set()
        client.publish(exchange, key, str(number), headers=headers)
        reached = holding(simulated, str(number))
        assert {queue["name"] for queue in explanation["queues"]} == reached
        why = why_of(explanation)
        assert why.keys() == reached
        assert all(why.values())
        for place, step in enumerate(explanation["steps"]):
            # A tree: the way back from each step leads to the first one.
            assert (step["from"] is None) == (place == 0)
            assert place == 0 or step["from"] < place
    simulated.store.abandon()
