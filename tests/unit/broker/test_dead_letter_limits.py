"""Dead letters of what a limit drops, what expires, and what a full disk keeps in its place."""

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.work.limits import BrokerLimits
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.dead_letters import DEAD, deaths, with_dead_queue
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_dead_queue()


# A disk that is full.


@pytest.mark.parametrize("how", ["get", "consume"])
def test_what_cannot_leave_for_want_of_disk_stays_and_says_that_it_was_delivered(
    simulated: SimulatedBroker, how: str
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    if how == "consume":
        client.consume("q", "t", prefetch=1)
        simulated.settle()
    else:
        simulated.settle()
        assert client.get("q") == "a"
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.settle()
    assert simulated.ready("dead") == []
    if how == "get":
        assert client.get("q") == "a"
    assert client.redelivered == [False, True]
    client.reject("a")
    simulated.settle()
    assert simulated.ready("dead") == ["a"]


def test_what_expires_while_the_disk_is_full_leaves_later(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.services.run_timers()
    simulated.free_disk()
    assert simulated.ready("q") == ["a"]
    simulated.pass_time(1000)
    assert simulated.ready("dead") == ["a"]
    Client(simulated).publish("", "q", "b")
    simulated.settle()
    simulated.pass_time(10)  # by a timer, as no client uses the queue
    assert simulated.ready("dead") == ["a", "b"]


def test_a_full_disk_is_tried_again_after_a_second_and_not_all_the_time(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.services.run_timers()
    simulated.broker.pumping.pump()
    assert simulated.services.ms_to_next_timer() == 1000


# Limits.


def test_what_is_given_back_counts_for_the_length(simulated: SimulatedBroker) -> None:
    simulated.queue("q", max_length=1, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    client.publish("", "q", "b")
    client.requeue("a")
    simulated.settle()
    assert simulated.ready("q") == ["b"]
    assert simulated.ready("dead") == ["a"]


def test_a_transaction_that_a_full_queue_refuses_is_refused_as_a_whole(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", max_length=1, overflow="reject-publish")
    client = Client(simulated)
    client.channel.select_transactions()
    client.publish("", "q", "a")
    client.publish("", "dead", "b")
    client.publish("", "q", "c", priority=1)
    with pytest.raises(PreconditionFailedError, match="queue 'q' is full"):
        client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == simulated.ready("dead") == []


def test_what_others_committed_counts_before_it_is_durable(simulated: SimulatedBroker) -> None:
    simulated.queue("q", max_length=1, overflow="reject-publish")
    one, other = Client(simulated), Client(simulated)
    one.channel.select_transactions()
    one.publish("", "q", "a")
    one.channel.commit()
    other.channel.select_confirms()
    other.publish("", "q", "b")
    simulated.settle()
    assert simulated.ready("q") == ["a"]
    assert other.told == ["refused 1"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_policy_that_comes_while_something_is_on_its_way_does_not_miscount(
    simulated: SimulatedBroker, overflow: str
) -> None:
    simulated.queue("q", max_length=2)
    policies = [
        Policy("p", "^q$", definition={"overflow": one}) for one in ("drop-head", "reject-publish")
    ]
    simulated.vhost.policy_settings.define(
        [one for one in policies if one.definition["overflow"] == overflow], operator=False
    )
    first, second = Client(simulated), Client(simulated)
    first.channel.select_transactions()
    first.publish("", "q", "a", "b")
    first.channel.commit()
    simulated.vhost.policy_settings.define(policies[1:], operator=False)
    simulated.settle()
    second.channel.select_confirms()
    second.publish("", "q", "c")
    simulated.settle()
    assert simulated.ready("q") == ["a", "b"]
    assert second.told == ["refused 1"]


@pytest.mark.parametrize("excess", [1, 3, 4, 5, 9])
def test_what_is_dropped_in_several_turns_is_all_that_is_too_much(
    simulated: SimulatedBroker, excess: int
) -> None:
    simulated.services.limits = BrokerLimits(max_dropped=4)
    simulated.queue("q", **DEAD)
    bodies = [str(number) for number in range(excess + 2)]
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()
    policy = Policy("p", "^q$", definition={"max-length": 2})
    simulated.vhost.policy_settings.define([policy], operator=False)
    simulated.settle()
    assert simulated.ready("q") == bodies[-2:]
    assert simulated.ready("dead") == bodies[:-2]


@pytest.mark.parametrize("order", [1, -1])
def test_what_expires_in_several_turns_is_all_that_is_due(
    simulated: SimulatedBroker, order: int
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    for ms in range(1, 50)[::order]:
        client.publish("", "q", str(ms), expiration=str(ms))
    simulated.settle()
    simulated.pass_time(48)
    assert simulated.ready("q") == ["49"]
    assert simulated.ready("dead") == [str(ms) for ms in range(1, 49)]


def test_what_is_given_back_expires_though_nothing_was_left_to_watch(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "later", expiration="30")
    simulated.settle()
    client.get("q")
    client.publish("", "q", "sooner", expiration="10")
    simulated.settle()
    simulated.pass_time(10)
    client.requeue("later")
    simulated.pass_time(20)
    assert simulated.ready("dead") == ["sooner", "later"]


def test_what_is_put_back_expires_still(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=100, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    simulated.pass_time(50)
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.pass_time(2000)
    assert simulated.ready("q") == []
    assert deaths(simulated) == [("expired", "q", 1)]


def test_what_is_put_back_after_its_time_expires_still(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=100, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    simulated.pass_time(200)
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.pass_time(2000)
    assert simulated.ready("q") == []
    assert deaths(simulated) == [("expired", "q", 1)]


def test_what_a_restart_drops_is_taken_in_as_the_target_says(simulated: SimulatedBroker) -> None:
    simulated.queue("a", max_length=0, dead_letter_exchange="", dead_letter_routing_key="b")
    simulated.queue("b", message_ttl=10)
    client = Client(simulated)
    client.consume("a", "c", prefetch=1)
    client.publish("", "a", "1")
    simulated.settle()
    assert client.bodies("c") == ["1"]
    simulated.restart()
    simulated.settle()
    assert simulated.ready("b") == ["1"]
    simulated.pass_time(10)
    assert simulated.ready("b") == []
