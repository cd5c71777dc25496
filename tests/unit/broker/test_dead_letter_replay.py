"""Dead letters go back to where they died, and none of them for ever."""

from collections.abc import Iterator
from typing import Any

import pytest

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


def test_a_letter_that_dies_again_and_again_stays_at_last(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    rejected(broker, client, "a")
    for _ in range(3):
        assert operator.replays("letters", filter=ALL, max_replays=3)["replayed"] == 1
        client.get("orders")
        client.reject("a")
        broker.settle()
    assert operator.replays("letters", filter=ALL, max_replays=3) == {
        "replayed": 0,
        "left": {"replayed 3 times already": 1},
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
    answer = operator.replays("letters", filter=ALL)
    assert answer == {"replayed": 2, "left": {why: 1}, "stopped": ""}
    assert (broker.ready("letters"), broker.ready("orders")) == (["odd"], ["a", "b"])


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
