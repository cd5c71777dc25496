"""Dead letters go back to where they died, and none of them does so endlessly."""

from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore_server.broker.transactions.dead_letter_replay import MAX_REPLAYS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client

ALL: dict[str, Any] = {}


@pytest.fixture
def broker() -> Iterator[SimulatedBroker]:
    simulated = SimulatedBroker()
    simulated.exchange("in", "topic")
    simulated.exchange("dead")
    simulated.queue("orders", dead_letter_exchange="dead")
    simulated.queue("audit")
    simulated.queue("letters")
    simulated.bind("in", "orders", "order.#")
    simulated.bind("in", "audit", "#")
    simulated.bind("dead", "letters")
    yield simulated
    simulated.store.abandon()


@pytest.fixture
def client(broker: SimulatedBroker) -> Client:
    return Client(broker)


@pytest.fixture
def operator(broker: SimulatedBroker) -> Operator:
    return Operator(broker)


def rejected(broker: SimulatedBroker, client: Client, *bodies: str, **properties: Any) -> None:
    client.publish("in", "order.new", *bodies, **properties)
    broker.settle()
    for body in bodies:
        assert client.get("orders") == body
        client.reject(body)
    broker.settle()


def test_letters_go_back_to_their_queue_as_they_were(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    rejected(broker, client, "a", "b", "c", headers={"mine": 1})
    assert broker.ready("letters") == ["a", "b", "c"]
    wanted = {"headers": {"x-first-death-reason": "rejected"}, "body": {"pattern": "[ac]"}}
    answer = operator.replays("letters", filter=wanted)
    assert answer == {"replayed": 2, "left": {}, "stopped": ""}
    assert broker.ready("letters") == ["b"]
    assert broker.ready("orders") == ["a", "c"]
    assert broker.ready("audit") == ["a", "b", "c"]
    assert broker.headers("orders") == [{"mine": 1, "x-replay-count": 1}] * 2
    row = operator.page("orders")["messages"][0]
    assert (row["exchange"], row["routing_key"]) == ("in", "order.new")
    broker.crash()
    assert (broker.ready("letters"), broker.ready("orders")) == (["b"], ["a", "c"])


def test_or_once_more_through_their_exchange(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    rejected(broker, client, "a")
    assert operator.replays("letters", filter=ALL, to="exchange")["replayed"] == 1
    assert (broker.ready("orders"), broker.ready("audit")) == (["a"], ["a", "a"])


@pytest.mark.parametrize("asked", [{"max_replays": 3}, {}], ids=["asked for", "by default"])
def test_a_letter_that_dies_again_and_again_stays_at_last(
    broker: SimulatedBroker, client: Client, operator: Operator, asked: dict[str, int]
) -> None:
    most = asked.get("max_replays", MAX_REPLAYS)
    rejected(broker, client, "a")
    for _ in range(most):
        assert operator.replays("letters", filter=ALL, **asked)["replayed"] == 1
        client.get("orders")
        client.reject("a")
        broker.settle()
    assert operator.replays("letters", filter=ALL, **asked) == {
        "replayed": 0,
        "left": {f"replayed {most} times already": 1},
        "stopped": "",
    }
    assert broker.ready("letters") == ["a"]


def test_a_letter_that_went_round_without_a_rejection_is_no_cycle_after_it(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    """With the deaths that it had it would be dropped as soon as it expires again."""
    broker.queue("retry", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="work")
    broker.queue("work", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="parked")
    broker.queue("parked")
    client.publish("", "retry", "a")
    for _ in range(2):
        broker.pass_time(11)
    assert broker.ready("parked") == ["a"]
    assert operator.replays("parked", filter=ALL)["replayed"] == 1
    broker.pass_time(11)
    assert broker.ready("parked") == ["a"]


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no x-death that says where it was"),
        ({"x-death": "nonsense"}, "no x-death that says where it was"),
        ({"x-death": [{"queue": 5}]}, "no x-death that says where it was"),
        (
            {"x-death": [{"queue": "gone", "exchange": "", "routing-keys": ["gone"]}]},
            "no queue 'gone'",
        ),
        (
            {"x-death": [{"queue": "letters", "exchange": "", "routing-keys": ["letters"]}]},
            "it would come back to this queue",
        ),
    ],
)
def test_what_cannot_go_back_stays_and_the_others_go(
    broker: SimulatedBroker,
    client: Client,
    operator: Operator,
    headers: dict[str, Any],
    why: str,
) -> None:
    rejected(broker, client, "a")
    client.publish("", "letters", "odd", headers=headers)
    rejected(broker, client, "b")
    answer = operator.replays("letters", filter=ALL, trusts_publishers=True)
    assert answer == {"replayed": 2, "left": {why: 1}, "stopped": ""}
    assert (broker.ready("letters"), broker.ready("orders")) == (["odd"], ["a", "b"])


def test_a_letter_that_goes_to_very_many_routing_keys_stays(
    client: Client, broker: SimulatedBroker, operator: Operator
) -> None:
    keys = [str(number) for number in range(65)]
    death = {"queue": "orders", "exchange": "amq.fanout", "routing-keys": keys}
    client.publish("", "letters", "odd", headers={"x-death": [death]})
    broker.settle()
    answer = operator.replays("letters", filter=ALL, to="exchange", trusts_publishers=True)
    assert answer == {"replayed": 0, "left": {"it has more than 64 routing keys": 1}, "stopped": ""}


def test_a_full_queue_and_a_missing_permission_leave_a_letter_where_it_is(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    rejected(broker, client, "a", "b")
    row = {"configure": "", "write": "^audit$", "read": ".*"}
    broker.broker.define_permissions("anna", "/", row)
    anna = Operator(broker, broker.broker.access("anna", "/"))
    assert anna.replays("letters", filter=ALL)["left"] == {
        "no permission to write to queue 'orders'": 2
    }
    assert anna.replays("letters", filter=ALL, to="exchange")["left"] == {
        "no permission to write to exchange 'in'": 2
    }
    full = {"max-length": 1, "overflow": "reject-publish"}
    broker.fill_disk()
    assert operator.replays("letters", filter=ALL)["stopped"] == "the disk is full"
    broker.free_disk()
    broker.vhost.queue("orders").apply(
        broker.vhost.policies.queue_settings(
            "orders", {f"x-{key}": value for key, value in full.items()}
        )
    )
    answer = operator.replays("letters", filter=ALL)
    assert (answer["replayed"], answer["left"]) == (1, {"a queue is full": 1})
    assert (broker.ready("orders"), broker.ready("letters")) == (["a"], ["b"])


def forged(exchange: str, *keys: str, queue: str = "orders") -> dict[str, Any]:
    """The headers of a letter that says it came by these routing keys."""
    death = {"queue": queue, "reason": "expired", "exchange": exchange, "routing-keys": list(keys)}
    return {"x-death": [{**death, "count": 1}]}


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (forged("amq.direct", "x" * 300), "no message can be published as its x-death says"),
        (forged("x" * 300, "k"), "no message can be published as its x-death says"),
        (forged("in", *["k"] * 65), "it has more than 64 routing keys"),
        (forged("gone", "k"), "no exchange 'gone' in vhost '/'"),
        (forged("inner", "k"), "cannot publish to internal exchange 'inner' in vhost '/'"),
        (
            forged("in", "order.new", "secret"),
            "write access to topic 'secret' in exchange 'in' in vhost '/' refused for user 'anna'",
        ),
    ],
    ids=["long key", "long name", "many keys", "gone", "internal", "topic"],
)
def test_a_letter_that_may_not_be_published_stays_and_those_behind_it_go(
    broker: SimulatedBroker, client: Client, headers: dict[str, Any], why: str
) -> None:
    broker.exchange("inner", "topic")
    broker.vhost.exchanges["inner"].internal = True
    broker.bind("inner", "audit", "#")
    topics = {"in": {"write": "^order", "read": ".*"}}
    row = {"configure": "", "write": ".*", "read": ".*", "topic": topics}
    broker.broker.define_permissions("anna", "/", row)
    client.publish("", "letters", "odd", headers=headers)
    rejected(broker, client, "a")
    anna = Operator(broker, broker.broker.access("anna", "/"))
    answer = anna.replays("letters", filter=ALL, to="exchange", trusts_publishers=True)
    assert answer == {"replayed": 1, "left": {why: 1}, "stopped": ""}
    assert (broker.ready("letters"), broker.ready("orders")) == (["odd"], ["a"])
    assert "odd" not in broker.ready("audit")


def test_what_a_client_wrote_about_its_message_does_not_survive_a_death(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    """Otherwise the operator would publish it for a client to where the client may not."""
    broker.exchange("payments")
    broker.queue("paid")
    broker.bind("payments", "paid")
    lie = {**forged("payments", "k")["x-death"][0], "reason": "rejected", "count": 4}
    rejected(broker, client, "a", headers={"x-death": [lie]})
    (headers,) = broker.headers("letters")
    (death,) = headers["x-death"]
    assert (death["count"], death["exchange"], death["routing-keys"]) == (5, "in", ["order.new"])
    assert operator.replays("letters", filter=ALL, to="exchange")["replayed"] == 1
    assert (broker.ready("paid"), broker.ready("orders")) == ([], ["a"])


def test_deaths_since_the_publish_still_say_where_a_letter_came_from_first(
    broker: SimulatedBroker, client: Client
) -> None:
    """RabbitMQ says so as well: a letter retried by its queue's name first came through `in`."""
    broker.queue("retry", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="orders")
    broker.bind("dead", "retry")
    rejected(broker, client, "a")
    broker.pass_time(11)
    assert client.get("orders") == "a"
    client.reject("a")
    broker.settle()
    headers = broker.headers("retry")[-1]
    assert headers["x-death"][0]["count"] == 2
    assert headers["x-death"][0]["exchange"] == "in"


def test_reasons_why_letters_stay_are_counted_by_a_bounded_number_of_names(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    for number in range(120):
        client.publish("", "letters", "odd", headers=forged(f"gone {number}", "k"))
    asked = {"filter": ALL, "to": "exchange", "trusts_publishers": True}
    left = operator.replays("letters", **asked)["left"]
    assert (len(left), left["other reasons"]) == (101, 20)


UNTRUSTED = (
    "its x-death is not this broker's, but was published with it: the operator may say that "
    "publishers are trusted"
)


@pytest.mark.parametrize("to", ["queue", "exchange"])
def test_a_publisher_does_not_decide_where_a_replay_takes_its_message(
    broker: SimulatedBroker, client: Client, operator: Operator, to: str
) -> None:
    """A publisher needs no more than the right to publish into the queue of dead letters."""
    broker.exchange("payments")
    broker.queue("paid")
    broker.bind("payments", "paid")
    rejected(broker, client, "a")
    client.publish("", "letters", "forged", headers=forged("payments", "k", queue="paid"))
    answer = operator.replays("letters", filter=ALL, to=to)
    assert answer == {"replayed": 1, "left": {UNTRUSTED: 1}, "stopped": ""}
    assert (broker.ready("paid"), broker.ready("letters")) == ([], ["forged"])
    assert operator.replays("letters", filter=ALL, to=to, trusts_publishers=True)["replayed"] == 1
    assert broker.ready("paid") == ["forged"]


def test_a_letter_that_was_published_again_with_its_deaths_is_one_of_its_publisher(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    rejected(broker, client, "a")
    (headers,) = broker.headers("letters")
    assert client.get("letters") == "a"
    client.ack("a")
    client.publish("", "letters", "b", headers=headers)
    assert operator.replays("letters", filter=ALL)["left"] == {UNTRUSTED: 1}
    assert operator.replays("letters", filter=ALL, trusts_publishers=True)["replayed"] == 1
    assert broker.ready("orders") == ["b"]


@pytest.mark.parametrize("copies", [False, True], ids=["moved", "copied"])
def test_a_letter_that_an_operator_put_elsewhere_goes_back_all_the_same(
    broker: SimulatedBroker, client: Client, operator: Operator, *, copies: bool
) -> None:
    broker.queue("parked")
    rejected(broker, client, "a")
    operator.moves("letters", "parked", filter=ALL, copies=copies)
    broker.crash()
    assert operator.replays("parked", filter=ALL)["replayed"] == 1
    assert broker.ready("orders") == ["a"]
