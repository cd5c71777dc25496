"""Priorities of one queue, each of which is a queue of the store."""

from typing import Any

import pytest

from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


def broker_with(**arguments: Any) -> tuple[SimulatedBroker, Client]:
    simulated = SimulatedBroker()
    simulated.queue("q", **arguments)
    return simulated, Client(simulated)


def fill(client: Client) -> None:
    for body, priority in (("n1", None), ("p2", 2), ("n2", 0), ("p9", 9), ("p2b", 2)):
        client.publish("", "q", body, priority=priority)


def taken(queue: Queue, limit: int = 10) -> list[str]:
    """Return what is taken off, until there is nothing left."""
    bodies = []
    while (found := queue.backlog.take(limit, acked=True)) is not None:
        bodies += [message.body.decode() for message in found.run.messages or ()]
    return bodies


def test_a_level_is_made_when_its_first_message_comes() -> None:
    simulated, client = broker_with(max_priority=5)
    queue = simulated.vhost.queue("q")
    assert list(queue.priorities) == [queue.priorities.lowest]
    client.publish("", "q", "a", priority=3)
    client.publish("", "q", "b", priority=3)
    assert len(list(queue.priorities)) == 2
    assert queue.priorities.at(3) is queue.priorities.at(3)
    assert len(simulated.store.queues) == 2


def test_without_priorities_there_is_one_level_whatever_messages_say() -> None:
    simulated, client = broker_with()
    fill(client)
    queue = simulated.vhost.queue("q")
    assert len(list(queue.priorities)) == 1
    assert taken(queue) == ["n1", "p2", "n2", "p9", "p2b"]


def test_the_highest_goes_first_and_above_the_limit_all_are_alike() -> None:
    simulated, client = broker_with(max_priority=5)
    fill(client)
    client.publish("", "q", "p5", priority=5)
    queue = simulated.vhost.queue("q")
    assert queue.ready_count == 6
    assert taken(queue) == ["p9", "p5", "p2", "p2b", "n1", "n2"]
    assert queue.ready_count == 0


@pytest.mark.parametrize("order", ["135", "531", "351", "513"])
def test_the_order_of_levels_is_not_that_in_which_they_came(order: str) -> None:
    simulated, client = broker_with(max_priority=5)
    for priority in order:
        client.publish("", "q", priority, priority=int(priority))
    assert taken(simulated.vhost.queue("q")) == ["5", "3", "1"]


def test_what_is_given_back_waits_for_what_came_with_a_higher_priority() -> None:
    simulated, client = broker_with(max_priority=5)
    client.publish("", "q", "low", "low too", priority=1)
    client.get("q")
    client.requeue("low")
    client.publish("", "q", "high", priority=4)
    assert taken(simulated.vhost.queue("q")) == ["high", "low", "low too"]


def test_messages_of_each_priority_expire_when_they_are_due() -> None:
    simulated, client = broker_with(max_priority=5)
    for priority in (0, 3, 1):
        client.publish("", "q", f"p{priority}", priority=priority, expiration=f"{priority + 1}0")
    simulated.settle()
    for left in (["p3", "p1", "p0"], ["p3", "p1"], ["p3"], ["p3"], []):
        assert simulated.ready("q") == left
        simulated.pass_time(10)


def test_a_peek_is_of_the_highest_and_the_least_of_the_lowest_that_has_any() -> None:
    simulated, client = broker_with(max_priority=5)
    levels = simulated.vhost.queue("q").priorities
    assert levels.least() is None
    assert not levels.peek()
    client.publish("", "q", "p2", priority=2)
    client.publish("", "q", "p4", priority=4)
    assert levels.least() is levels.at(2)
    (message,) = levels.peek()
    assert message.body == b"p4"
    assert levels.ready_count == 2


def test_a_run_is_of_one_level() -> None:
    simulated, client = broker_with(max_priority=5)
    fill(client)
    queue = simulated.vhost.queue("q")
    found = queue.backlog.take(10, acked=False)
    assert isinstance(found, Taken)
    assert found.store_queue is queue.priorities.at(5)
    assert found.run.count == 1


def test_what_somebody_gave_back_is_passed_over_for_the_next_level() -> None:
    simulated, client = broker_with(max_priority=5)
    client.publish("", "q", "p1", priority=1)
    client.publish("", "q", "p4", priority=4)
    queue = simulated.vhost.queue("q")
    giver = object()
    found = queue.backlog.take(1, acked=False)
    assert found is not None
    queue.requeue(found, giver)
    other = queue.backlog.take(1, acked=False, not_from=giver)
    assert other is not None
    assert other.store_queue is queue.priorities.at(1)
    assert queue.backlog.take(1, acked=False, not_from=giver) is None
    assert queue.backlog.take(1, acked=False, not_from=object()) is not None


def test_lazy_is_said_to_all_levels_and_to_those_to_come() -> None:
    simulated, client = broker_with(max_priority=5)
    client.publish("", "q", "a", priority=1)
    levels = simulated.vhost.queue("q").priorities
    levels.set_lazy(lazy=True)
    client.publish("", "q", "b", priority=2)
    assert [level.lazy for level in levels] == [True, True, True]
    levels.set_lazy(lazy=False)
    assert [level.lazy for level in levels] == [False, False, False]


def test_levels_are_there_after_a_restart_and_end_with_their_queue() -> None:
    simulated, client = broker_with(max_priority=5)
    fill(client)
    simulated.restart()
    assert simulated.ready("q") == ["p9", "p2", "p2b", "n1", "n2"]
    counts: list[int] = []
    simulated.vhost.delete_queue(simulated.vhost.queue("q"), answer=counts.append)
    assert counts == [5]
    assert simulated.store.queues == {}
    simulated.restart()
    assert simulated.vhost.queues == {}
    assert simulated.store.queues == {}


def test_all_levels_are_purged_and_counted() -> None:
    simulated, client = broker_with(max_priority=5)
    fill(client)
    assert simulated.vhost.queue("q").backlog.purge() == 5
    assert simulated.ready("q") == []
