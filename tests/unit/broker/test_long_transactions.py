"""A commit of very many publishes and acks: gathered in several turns, committed in one."""

from __future__ import annotations

from typing import Any

import pytest

from amqpstore_server.broker.channels import local_transaction
from amqpstore_server.broker.transactions.transaction import Transaction
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker, ack_until, reject_until
from tests.unit.broker.simulated import Client

COST = 1000
OWN = 64
"""Cost of a message whose properties differ from those of the message before it."""

BODIES = [str(number) for number in range(60)]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedBroker:
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 4)
    monkeypatch.setattr(local_transaction, "_MAX_SETTLED", 10)
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(round_budget=COST))
    for queue in ("dead", "r", "s"):
        simulated.queue(queue)
    return simulated


def client_of(simulated: SimulatedBroker, **arguments: Any) -> Client:
    """A client in tx mode that has fetched everything from queue `q`, one at a time."""
    simulated.queue("q", **arguments)
    publisher = Client(simulated)
    for body in BODIES:
        publisher.publish("", "q", body, message_id=body)
    simulated.settle()
    client = Client(simulated)
    client.channel.select_transactions()
    while client.get("q"):
        pass
    return client


def publish(client: Client) -> None:
    """Publish so that no two messages of a queue that follow each other are alike."""
    for number, body in enumerate(BODIES):
        client.publish("", "rs"[number % 2], body, message_id=body, priority=number // 2 % 2)


def test_publishes_are_gathered_a_few_at_a_time_and_seen_together(
    simulated: SimulatedBroker,
) -> None:
    client, other = client_of(simulated), Client(simulated)
    publish(client)
    steps = client.channel.committing()
    count = 0
    for count, _ in enumerate(steps, 1):
        other.publish("", "r", f"other {count}")
        simulated.settle()
        assert not [body for body in simulated.ready("r") if body in BODIES]
        assert client.told == []
    assert count == len(BODIES) // 5
    simulated.settle()
    assert client.told == ["committed"]
    assert simulated.ready("r")[count:] == BODIES[::2]
    assert simulated.ready("s") == BODIES[1::2]


@pytest.mark.parametrize("way", ["acks", "dead letters", "history"])
def test_settled_messages_are_gathered_a_few_at_a_time(
    simulated: SimulatedBroker, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[int] = []

    def note(self: Transaction, plan: object) -> None:
        gathered[-1] += 1
        published(self, plan)  # type: ignore[arg-type]

    published = Transaction.publish
    monkeypatch.setattr(Transaction, "publish", note)
    arguments: dict[str, Any] = {
        "acks": {},
        "dead letters": {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"},
        "history": {"history_length": 1000},
    }
    client = client_of(simulated, **arguments[way])
    gathered.append(0)
    if way == "dead letters":
        reject_until(client.channel, 0, requeue=False)
    else:
        ack_until(client.channel, 0)
    gathered.extend(0 for _ in client.channel.committing())
    target = {"acks": "s", "dead letters": "dead", "history": "amq.consumed.q"}[way]
    assert max(gathered) <= COST // OWN + 1
    assert len(gathered) > 5
    simulated.crash()
    assert (simulated.ready("q"), simulated.ready(target)) == (BODIES, [])


@pytest.mark.parametrize("steps_taken", [1, 3, 15])
def test_nothing_is_left_of_a_commit_whose_channel_goes(
    simulated: SimulatedBroker, steps_taken: int
) -> None:
    arguments = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    client = client_of(simulated, **arguments)
    publish(client)
    reject_until(client.channel, 0, requeue=False)
    steps = client.channel.committing()
    for _ in range(steps_taken):
        next(steps)
    client.channel.close()
    del steps
    simulated.settle()
    assert simulated.ready("q") == BODIES
    for name in ("r", "s", "dead"):
        assert simulated.ready(name) == []
        assert not simulated.vhost.queues[name].is_expecting


def test_what_is_committed_stays_so_when_its_channel_goes(simulated: SimulatedBroker) -> None:
    client = client_of(simulated)
    client.publish("", "r", "a")
    ack_until(client.channel, 0)
    steps = client.channel.committing()
    for _ in steps:
        if simulated.store.log.is_promised:
            break
    client.channel.close()
    del steps
    simulated.settle()
    assert (simulated.ready("q"), simulated.ready("r")) == ([], ["a"])


@pytest.mark.parametrize("deleted", ["q", "r"])
def test_a_queue_may_be_deleted_in_between(simulated: SimulatedBroker, deleted: str) -> None:
    client = client_of(simulated)
    publish(client)
    ack_until(client.channel, 0)
    for number, _ in enumerate(client.channel.committing()):
        if number == 14:
            simulated.vhost.delete_queue(simulated.vhost.queue(deleted))
    simulated.settle()
    assert client.told == ["committed"]
    assert simulated.ready("s") == BODIES[1::2]
    if deleted == "q":
        assert simulated.ready("r") == BODIES[::2]
    else:
        assert simulated.ready("q") == []
    assert not client.channel.has_unacked
