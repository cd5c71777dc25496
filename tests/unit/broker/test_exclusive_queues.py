"""Very many exclusive queues of a connection that ends are deleted in several turns."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.errors import NotFoundError
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

AT_ONCE = 10
NAMES = [f"q{number:02}" for number in range(35)]


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_deleted=AT_ONCE))
    for name in NAMES:
        declare(simulated, name, "first")
    return simulated


def declare(simulated: SimulatedBroker, name: str, connection: str) -> Queue:
    return simulated.vhost.declare_queue(
        name,
        durable=False,
        exclusive=True,
        auto_delete=False,
        arguments={},
        connection=connection,
    )


def left(simulated: SimulatedBroker) -> list[str]:
    return sorted(name for name in simulated.vhost.queues if name in NAMES)


def test_some_are_deleted_in_each_turn(simulated: SimulatedBroker) -> None:
    simulated.vhost.owned_queues.end("first")
    counts = [len(left(simulated))]
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        counts.append(len(left(simulated)))
    assert counts == [25, 15, 5, 0]


def test_those_that_are_left_are_as_good_as_deleted(simulated: SimulatedBroker) -> None:
    simulated.vhost.owned_queues.end("first")
    with pytest.raises(NotFoundError):
        simulated.vhost.queue(NAMES[-1])
    mine = declare(simulated, NAMES[-2], "second")
    Client(simulated).publish("", NAMES[-2], "a")
    simulated.settle()
    assert left(simulated) == [NAMES[-2]]
    assert simulated.vhost.queues[NAMES[-2]] is mine
    assert simulated.ready(NAMES[-2]) == ["a"]


def test_those_of_others_stay(simulated: SimulatedBroker) -> None:
    declare(simulated, "other", "second")
    simulated.vhost.owned_queues.end("first")
    simulated.settle()
    assert left(simulated) == []
    simulated.vhost.queue("other").check_owner("second")
