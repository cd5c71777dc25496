"""A limit on the bytes in a long queue that gets it later: they are counted in several turns."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.rules.policy import Policy
from tests.simulated_broker import OPTIONS, SimulatedBroker
from tests.small_limits import small_limits
from tests.unit.broker.simulated import Client

BODIES = [f"{number:02}" + 98 * "x" for number in range(60)]
LIMITED = [Policy("p", "^q$", definition={"max-length-bytes": 1000})]


@pytest.fixture
def simulated() -> SimulatedBroker:
    """A broker with a queue whose messages are on disk, some of them in no index file."""
    limits = small_limits(entries_a_file=6, max_runs=1000)._replace(measured_messages=1)
    simulated = SimulatedBroker(options=OPTIONS._replace(memory_bytes=1, limits=limits))
    simulated.queue("q")
    for body in BODIES[:48]:
        Client(simulated).publish("", "q", body, message_id=body)
    simulated.settle()
    simulated.store.upkeep.checkpoint()
    for body in BODIES[48:]:
        Client(simulated).publish("", "q", body, message_id=body)
    simulated.settle()
    simulated.store.upkeep.housekeep()
    return simulated


def limit(simulated: SimulatedBroker, *policies: Policy) -> None:
    simulated.vhost.policy_settings.define(policies, operator=False)


def turns(simulated: SimulatedBroker) -> int:
    """Have the bytes counted. Returns how many turns that takes."""
    count = 0
    while simulated.services.agenda.background:
        simulated.broker.pumping.pump()
        count += 1
    return count


def test_the_limit_applies_once_the_bytes_are_counted(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    queue = simulated.vhost.queue("q")
    assert queue.ready_count == len(BODIES)
    assert turns(simulated) > 8
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]
    assert queue.backlog.ready_bytes == 1000


def test_what_comes_and_goes_in_between_is_counted(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    client = Client(simulated)
    new = [f"new {number:02}" for number in range(20)]
    requeued = ""
    for number, body in enumerate(new):
        simulated.broker.pumping.pump()
        client.publish("", "q", body, message_id=body)
        got = client.get("q")
        assert got is not None
        if number % 3:
            client.ack(got)
        elif not requeued:
            requeued = got
        else:
            client.requeue(requeued)
            requeued = got
        if not number % 5:
            simulated.store.sync()
            simulated.store.upkeep.checkpoint()
    turns(simulated)
    simulated.settle()
    client.requeue(requeued)
    simulated.settle()
    ready = simulated.ready("q")
    assert simulated.vhost.queue("q").backlog.ready_bytes == sum(map(len, ready)) <= 1000
    assert ready == [*BODIES, *new][-len(ready) :]
    client.publish("", "q", *BODIES)
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]


@pytest.mark.parametrize("turns_before", [0, 1, 4])
def test_a_limit_that_is_gone_before_does_not_apply(
    simulated: SimulatedBroker, turns_before: int
) -> None:
    limit(simulated, *LIMITED)
    for _ in range(turns_before):
        simulated.broker.pumping.pump()
    limit(simulated)
    turns(simulated)
    simulated.settle()
    assert simulated.ready("q") == BODIES
    assert simulated.vhost.queue("q").settings.max_length_bytes is None


def test_another_limit_in_between_is_the_one_that_applies(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    simulated.broker.pumping.pump()
    limit(simulated, Policy("p", "^q$", definition={"max-length-bytes": 2000}))
    turns(simulated)
    simulated.settle()
    assert simulated.ready("q") == BODIES[-20:]


def test_the_other_settings_of_a_policy_apply_at_once(simulated: SimulatedBroker) -> None:
    both = {"max-length-bytes": 1000, "max-length": 40}
    limit(simulated, Policy("p", "^q$", definition=both))
    assert simulated.vhost.queue("q").ready_count == 40
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]


def test_a_queue_may_be_deleted_in_between(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    simulated.broker.pumping.pump()
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    simulated.settle()
    simulated.queue("q")
    client = Client(simulated)
    client.publish("", "q", *BODIES)
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]


def test_a_route_that_was_used_before_follows_the_limit(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    client = Client(simulated)
    client.publish("", "q", BODIES[0])
    simulated.settle()
    client.publish("", "q", *BODIES)
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]


def test_the_limit_applies_after_a_restart(simulated: SimulatedBroker) -> None:
    limit(simulated, *LIMITED)
    simulated.crash()
    simulated.settle()
    assert simulated.ready("q") == BODIES[-10:]


def test_a_limit_on_a_short_queue_applies_at_once() -> None:
    simulated = SimulatedBroker(options=OPTIONS._replace(memory_bytes=1))
    simulated.queue("q")
    for body in BODIES:
        Client(simulated).publish("", "q", body, message_id=body)
    simulated.settle()
    simulated.store.upkeep.housekeep()
    limit(simulated, *LIMITED)
    assert simulated.ready("q") == BODIES[-10:]
