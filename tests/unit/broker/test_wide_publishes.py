"""Publishes to very many full queues: these drop what is too much in several turns, but before
anything else is done with them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

QUEUES = [f"q{number:02}" for number in range(60)]
LIMITS = BROKER_LIMITS._replace(max_dropping=10, round_budget=300)
AT_ONCE = LIMITS.round_budget // LIMITS.drop_cost
AT_ONCE_LATE = LIMITS.round_budget // 2 // (LIMITS.drop_cost + LIMITS.look_cost) + 1


@pytest.fixture
def simulated() -> SimulatedBroker:
    """A broker with queues of one message at most, which all are full."""
    simulated = SimulatedBroker(limits=LIMITS)
    simulated.exchange("all")
    for name in QUEUES:
        simulated.queue(name, max_length=1)
        simulated.bind("all", name)
    Client(simulated).publish("all", "", "old")
    simulated.settle()
    return simulated


def over(simulated: SimulatedBroker) -> int:
    """Return how many queues exceed their limits."""
    queues = simulated.vhost.queues
    return sum(queues[name].ready_count > 1 for name in QUEUES if name in queues)


def drops(simulated: SimulatedBroker) -> list[int]:
    """Have turns until all is done, and return how many queues have dropped in each."""
    found = []
    while simulated.broker.pumping.has_work:
        before = over(simulated)
        simulated.broker.pumping.pump()
        found.append(before - over(simulated))
    return found


def all_ready(simulated: SimulatedBroker) -> set[tuple[str, ...]]:
    return {tuple(simulated.ready(name)) for name in QUEUES}


def test_the_queues_of_a_wide_publish_drop_in_several_turns(simulated: SimulatedBroker) -> None:
    Client(simulated).publish("all", "", "new")
    assert over(simulated) == len(QUEUES)
    dropped = drops(simulated)
    assert sum(dropped) == len(QUEUES)
    assert max(dropped) <= AT_ONCE_LATE
    simulated.settle()
    assert all_ready(simulated) == {("new",)}


def test_the_queues_of_a_wide_commit_drop_in_several_turns(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    client.channel.select_transactions()
    client.publish("all", "", "new")
    client.channel.commit()
    simulated.store.sync()
    dropped = drops(simulated)
    assert sum(dropped) == len(QUEUES)
    assert max(dropped) <= AT_ONCE + 1
    simulated.settle()
    assert all_ready(simulated) == {("new",)}


def test_few_queues_drop_at_once(simulated: SimulatedBroker) -> None:
    simulated.exchange("few")
    for name in QUEUES[: LIMITS.max_dropping]:
        simulated.bind("few", name)
    Client(simulated).publish("few", "", "new")
    assert over(simulated) == 0
    assert simulated.ready(QUEUES[0]) == ["new"]


def test_those_with_other_settings_drop_in_several_turns_too(simulated: SimulatedBroker) -> None:
    """One of the queues has to look at each message, so all of them are asked."""
    simulated.queue("other", max_priority=2)
    simulated.bind("all", "other")
    Client(simulated).publish("all", "", "new", priority=1)
    assert over(simulated) == len(QUEUES)
    assert max(drops(simulated)) <= AT_ONCE + AT_ONCE_LATE


def get(simulated: SimulatedBroker, client: Client) -> None:
    assert client.get(QUEUES[-1]) == "new"
    assert client.get(QUEUES[-1]) is None


def consume(simulated: SimulatedBroker, client: Client) -> None:
    client.consume(QUEUES[-1], "t")
    simulated.vhost.queue(QUEUES[-1]).pump()
    assert client.bodies("t") == ["new"]


def purge(simulated: SimulatedBroker, client: Client) -> None:
    assert simulated.vhost.queue(QUEUES[-1]).backlog.purge() == 1


def delete(simulated: SimulatedBroker, client: Client) -> None:
    counts: list[int] = []
    simulated.vhost.delete_queue(simulated.vhost.queue(QUEUES[-1]), answer=counts.append)
    assert counts == [1]


def count(simulated: SimulatedBroker, client: Client) -> None:
    queue = simulated.vhost.queue(QUEUES[-1])
    queue.catch_up()
    assert queue.ready_count == 1


@pytest.mark.parametrize("use", [get, consume, purge, delete, count])
def test_a_queue_has_dropped_what_is_too_much_before_it_is_used(
    simulated: SimulatedBroker, use: Callable[[SimulatedBroker, Client], None]
) -> None:
    client = Client(simulated)
    client.publish("all", "", "new")
    use(simulated, client)
    assert over(simulated) == len(QUEUES) - 1
    simulated.settle()
    assert over(simulated) == 0


def test_a_consumer_that_has_room_again_does_not_get_what_is_to_be_dropped(
    simulated: SimulatedBroker,
) -> None:
    client = Client(simulated)
    client.consume(QUEUES[-1], "t", prefetch=1)
    simulated.settle()
    for body in ("second", "third"):
        client.publish("all", "", body)
    client.ack("old")
    simulated.settle()
    assert client.bodies("t") == ["old", "third"]


def test_a_consumer_that_has_room_gets_what_would_be_dropped(simulated: SimulatedBroker) -> None:
    """Otherwise no message would pass through a queue with a length of 0."""
    simulated.queue("none", max_length=0)
    simulated.bind("all", "none")
    client = Client(simulated)
    client.consume("none", "t")
    client.publish("all", "", "new")
    simulated.settle()
    assert client.bodies("t") == ["new"]


def test_who_publishes_waits_until_the_queues_have_dropped(simulated: SimulatedBroker) -> None:
    wide, other = Client(simulated), Client(simulated)
    wide.publish("all", "", "new")
    other.publish("", QUEUES[0], "newer")
    waited = 0
    while wide.channel.publisher.must_wait:
        assert not other.channel.publisher.must_wait
        simulated.broker.pumping.pump()
        waited += 1
    assert waited >= len(QUEUES) // AT_ONCE_LATE
    assert over(simulated) == 0


def test_what_is_dropped_later_becomes_dead_letters_in_order() -> None:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_dropping=1))
    simulated.queue("dead")
    simulated.exchange("all")
    for name in QUEUES[:3]:
        simulated.queue(name, max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        simulated.bind("all", name)
    client = Client(simulated)
    for body in ("a", "b", "c"):
        client.publish("all", "", body)
    simulated.settle()
    dead = simulated.ready("dead")
    assert sorted(dead) == ["a"] * 3 + ["b"] * 3
    assert [simulated.ready(name) for name in QUEUES[:3]] == [["c"]] * 3
    queue = simulated.vhost.queue(QUEUES[0])
    client.publish("all", "", "d")
    simulated.vhost.delete_queue(queue)
    simulated.settle()
    assert sorted(simulated.ready("dead")) == [*sorted(dead), "c", "c", "c"]


def test_a_limit_in_bytes_is_kept_in_several_turns() -> None:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_dropping=1))
    simulated.exchange("all")
    for name in QUEUES[:3]:
        simulated.queue(name, max_length_bytes=10)
        simulated.bind("all", name)
    client = Client(simulated)
    for body in ("aaaaaa", "bbbbbb", "cccc"):
        client.publish("all", "", body)
        assert [simulated.vhost.queue(name).backlog.ready_bytes for name in QUEUES[:3]] != [6] * 2
    simulated.settle()
    assert {tuple(simulated.ready(name)) for name in QUEUES[:3]} == {("bbbbbb", "cccc")}
    assert simulated.vhost.queue(QUEUES[0]).backlog.ready_bytes == 10


def test_after_a_crash_in_between_the_limits_are_kept(simulated: SimulatedBroker) -> None:
    Client(simulated).publish("all", "", "new")
    simulated.broker.pumping.pump()
    simulated.store.sync()
    assert over(simulated)
    simulated.crash()
    assert all_ready(simulated) == {("new",)}
