"""Transactions of a client: nothing of them is seen before all of it is on disk (I06, I08, I13)."""

import random
from typing import Any

import pytest

from amqpstore import Message
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.transactions.transaction import Plan, Transaction
from amqpstore_server.protocol.content import BasicProperties, decode_properties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    for queue in ("q", "r"):
        simulated.queue(queue)
    simulated.queue("transient", durable=False)
    return simulated


@pytest.fixture
def client(simulated: SimulatedBroker) -> Client:
    client = Client(simulated)
    client.channel.select_transactions()
    return client


def test_what_is_published_is_nowhere_before_the_commit(
    simulated: SimulatedBroker, client: Client
) -> None:
    client.publish("", "q", "a")
    simulated.settle()
    assert simulated.ready("q") == []
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == ["a"]
    assert client.told == ["committed"]


@pytest.mark.parametrize(
    "publishes",
    [
        [("q", 2), ("r", 2)],
        [("q", 2), ("q", 1)],
        [("q", 2), ("transient", 2)],
        [("q", 1), ("q", 2)],
        [("transient", 2), ("q", 2)],
    ],
)
def test_nothing_of_it_is_seen_before_all_of_it_is_durable(
    simulated: SimulatedBroker, client: Client, publishes: list[tuple[str, int]]
) -> None:
    for queue, mode in publishes:
        client.publish("", queue, "a", delivery_mode=mode)
    client.channel.commit()
    assert client.told == []
    for name in ("q", "r", "transient"):
        assert simulated.vhost.queue(name).ready_count == 0
    simulated.settle()
    assert client.told == ["committed"]
    ready = [body for name in ("q", "r", "transient") for body in simulated.ready(name)]
    assert ready == ["a"] * len(publishes)


def test_a_purge_before_it_is_durable_does_not_miscount(
    simulated: SimulatedBroker, client: Client
) -> None:
    queue = simulated.queue("limited", max_length_bytes=10)
    client.publish("", "limited", "12345", delivery_mode=1)
    client.publish("", "q", "a")
    client.channel.commit()
    queue.backlog.purge()
    simulated.settle()
    left = simulated.ready("limited")
    assert queue.backlog.ready_bytes == sum(map(len, left))


def test_the_order_of_a_queue_is_that_of_the_publishes(
    simulated: SimulatedBroker, client: Client
) -> None:
    for body, mode in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
        client.publish("", "q", body, delivery_mode=mode)
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == ["a", "b", "c", "d"]


def test_a_commit_of_many_messages_is_few_publishes(
    simulated: SimulatedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn does the work of a few publishes, even if messages differ in what no queue reads."""
    published: list[int] = []
    publish = Transaction.publish

    def counted(self: Transaction, plan: Plan) -> None:
        published.append(len(plan.messages))
        publish(self, plan)

    monkeypatch.setattr(Transaction, "publish", counted)
    for number in range(500):
        client.publish("", "qr"[number % 2], str(number), message_id=str(number))
    client.channel.commit()
    assert published == [250, 250]
    simulated.settle()
    assert simulated.ready("q") == [str(number) for number in range(0, 500, 2)]
    found = [envelope_of(one).message_id for one in simulated.messages("r")]
    assert found == [str(number) for number in range(1, 500, 2)]


def test_large_transactions_are_cut_where_they_may_leave_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []
    monkeypatch.setattr(Transaction, "publish", lambda _, one: published.append(len(one.messages)))
    for _ in range(4):
        client.publish("", "q", "x" * (600 << 10))
    client.channel.commit()
    assert published == [2, 2]


@pytest.mark.parametrize("seed", range(10))
def test_each_queue_has_the_order_of_the_publishes_whatever_their_routes(
    simulated: SimulatedBroker, client: Client, seed: int
) -> None:
    simulated.exchange("both")
    simulated.bind("both", "q")
    simulated.bind("both", "r")
    rng = random.Random(seed)
    expected: dict[str, list[str]] = {"q": [], "r": [], "transient": []}
    for number in range(100):
        exchange, key, queues = rng.choice(
            [("both", "", "qr"), ("", "q", "q"), ("", "r", "r"), ("", "transient", ())]
        )
        choices: list[dict[str, Any]] = [{}, {"priority": 3}, {"expiration": "60000"}]
        properties = rng.choice([*choices, {"delivery_mode": 1}, {}, {}])
        client.publish(exchange, key, str(number), message_id=str(number), **properties)
        for queue in queues or ["transient"]:
            expected[queue].append(str(number))
    client.channel.commit()
    simulated.settle()
    for queue, bodies in expected.items():
        assert simulated.ready(queue) == bodies
        for message in simulated.messages(queue):
            assert envelope_of(message).message_id == message.body.decode()


def envelope_of(message: Message) -> BasicProperties:
    return decode_properties(message.envelope.properties)


def test_what_expires_and_what_has_a_priority_is_not_mixed_with_others(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("p", max_priority=5)
    client.publish("", "p", "a")
    client.publish("", "p", "b", priority=4)
    client.publish("", "p", "c", expiration="1000")
    client.publish("", "p", "d")
    client.channel.commit()
    simulated.settle()
    assert set(simulated.ready("p")) == {"a", "b", "c", "d"}
    other = Client(simulated)
    assert other.get("p") == "b"
    simulated.pass_time(1000)
    assert [other.get("p"), other.get("p"), other.get("p")] == ["a", "d", None]


def test_a_queue_that_is_deleted_before_the_commit_gets_nothing_and_the_rest_is_done(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.exchange("both")
    for queue in ("q", "r"):
        simulated.bind("both", queue)
    Client(simulated).publish("", "q", "old")
    simulated.settle()
    client.get("q")
    client.publish("both", "", "a")
    client.ack("old")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    simulated.queue("q")
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("r") == ["a"]
    assert simulated.ready("q") == []
    assert client.told == ["committed"]


def test_after_a_rollback_the_client_has_what_it_had(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.vhost.queue("q")
    Client(simulated).publish("", "q", "a", "b", "c")
    simulated.settle()
    for _ in range(3):
        client.get("q")
    client.ack("a")
    client.reject("b")
    client.requeue("c")
    client.publish("", "r", "d")
    client.channel.rollback()
    simulated.settle()
    assert simulated.ready("q") == simulated.ready("r") == []
    client.ack("a")
    client.ack("b")
    client.channel.commit()
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == ["c"]


def test_what_was_settled_in_it_cannot_be_settled_twice(
    simulated: SimulatedBroker, client: Client
) -> None:
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    client.get("q")
    client.ack("a")
    with pytest.raises(PreconditionFailedError, match="unknown delivery tag"):
        client.ack("a")


def test_what_is_given_back_in_it_is_given_back_at_the_commit(
    simulated: SimulatedBroker, client: Client
) -> None:
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    client.get("q")
    client.requeue("a")
    simulated.settle()
    assert simulated.ready("q") == []
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == ["a"]


def test_a_channel_that_is_closed_rolls_back(simulated: SimulatedBroker, client: Client) -> None:
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    client.get("q")
    client.ack("a")
    client.publish("", "r", "b")
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == ["a"]
    assert simulated.ready("r") == []


def test_transactions_and_confirms_exclude_each_other(simulated: SimulatedBroker) -> None:
    one, other = Client(simulated).channel, Client(simulated).channel
    one.select_transactions()
    one.select_transactions()
    with pytest.raises(PreconditionFailedError, match="cannot switch from tx to confirm mode"):
        one.select_confirms()
    other.select_confirms()
    with pytest.raises(PreconditionFailedError, match="cannot switch from confirm to tx mode"):
        other.select_transactions()
    for call in (other.commit, other.rollback):
        with pytest.raises(PreconditionFailedError, match="channel is not transactional"):
            call()


def test_nothing_comes_back_of_a_commit_that_is_refused(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("full", max_length=0, overflow="reject-publish")
    for key in ("nowhere", "full"):
        client.channel.publish(*labelled("", key, "a", delivery_mode=2), Flags(mandatory=True))
    with pytest.raises(PreconditionFailedError, match="full"):
        client.channel.commit()
    simulated.settle()
    assert client.told == []


def test_what_a_commit_brings_counts_once_for_the_length(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("two", max_length=2, overflow="reject-publish")
    for _ in range(3):
        client.publish("", "two", "a", "b")
        client.channel.commit()
        simulated.settle()
        for body in (client.get("two"), client.get("two")):
            assert body is not None
            client.ack(body)
        client.channel.commit()
        simulated.settle()
    assert client.told == ["committed"] * 6


def test_what_a_refused_commit_would_have_brought_counts_for_nothing(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("two", max_length=2, overflow="reject-publish")
    simulated.queue("full", max_length=0, overflow="reject-publish")
    for _ in range(3):
        client.publish("", "two", "a", "b")
        client.publish("", "full", "c")
        with pytest.raises(PreconditionFailedError, match="full"):
            client.channel.commit()
        client.channel.rollback()
    client.publish("", "two", "a", "b")
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("two") == ["a", "b"]


def test_what_is_given_back_in_it_is_no_dead_letter(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("dead")
    simulated.queue("d", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("", "d", "a", "b")
    client.channel.commit()
    simulated.settle()
    for _ in range(2):
        client.get("d")
    client.requeue("a")
    client.reject("b")
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("d") == ["a"]
    assert simulated.ready("dead") == ["b"]


def test_messages_of_a_transaction_have_their_own_delays(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    simulated.bind("later", "q")
    for delay in (2000, 1000, 2000, 3000):
        client.publish("later", "", str(delay), headers={"x-delay": delay})
    client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == []
    simulated.pass_time(1000)
    assert simulated.ready("q") == ["1000"]
    simulated.pass_time(1000)
    assert simulated.ready("q") == ["1000", "2000", "2000"]
    simulated.pass_time(1000)
    assert simulated.ready("q") == ["1000", "2000", "2000", "3000"]
