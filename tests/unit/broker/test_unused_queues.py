"""Very many queues that lose their last consumer at once are deleted in several turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.errors import NotFoundError
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

AT_ONCE = 10
FIRST = 5
"""How many are deleted before the budget of the turn is spent."""

NAMES = [f"q{number:02}" for number in range(35)]


@pytest.fixture
def simulated() -> SimulatedBroker:
    budget = FIRST * BROKER_LIMITS.delete_cost
    limits = BROKER_LIMITS._replace(round_budget=budget, max_deleted=AT_ONCE)
    return SimulatedBroker(limits=limits)


def declare(simulated: SimulatedBroker, name: str) -> Queue:
    return simulated.vhost.declare_queue(
        name, durable=True, exclusive=False, auto_delete=True, arguments={}, connection=None
    )


@pytest.fixture
def client(simulated: SimulatedBroker) -> Client:
    client = Client(simulated)
    for name in NAMES:
        declare(simulated, name)
        client.consume(name, name)
    simulated.settle()
    return client


def left(simulated: SimulatedBroker) -> list[str]:
    return sorted(name for name in simulated.vhost.queues if name in NAMES)


def test_some_are_deleted_in_each_turn_with_one_commit(
    simulated: SimulatedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    commit = simulated.store._catalog.commit

    def noted(changes: Sequence[Change]) -> None:
        commits.append(len(changes))
        commit(changes)

    client.channel.close()
    counts = [len(left(simulated))]
    monkeypatch.setattr(simulated.store._catalog, "commit", noted)
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        counts.append(len(left(simulated)))
    assert counts[:4] == [30, 20, 10, 0]
    assert commits == [AT_ONCE] * 3
    simulated.crash()
    assert left(simulated) == []


def test_those_that_are_left_are_as_good_as_deleted(
    simulated: SimulatedBroker, client: Client
) -> None:
    old = simulated.vhost.queues[NAMES[-1]]
    client.channel.close()
    assert left(simulated)
    with pytest.raises(NotFoundError):
        simulated.vhost.queue(NAMES[-2])
    assert declare(simulated, NAMES[-1]) is not old
    other = Client(simulated)
    other.consume(NAMES[-1], "t")
    other.publish("", NAMES[-1], "a")
    simulated.settle()
    assert left(simulated) == [NAMES[-1]]
    assert other.bodies("t") == ["a"]


def test_channels_share_the_budget(simulated: SimulatedBroker) -> None:
    """A connection has up to 2,047, and all of them end with it."""
    clients = []
    for name in NAMES:
        declare(simulated, name)
        clients.append(Client(simulated))
        clients[-1].consume(name, "t")
    simulated.settle()
    for client in clients:
        client.channel.close()
    assert len(left(simulated)) == len(NAMES) - FIRST
    simulated.settle()
    assert left(simulated) == []
