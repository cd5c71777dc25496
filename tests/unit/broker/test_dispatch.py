"""Dispatch: which consumer gets what (D19, F05, F11, F12, F22, C108)."""

from collections.abc import Callable
from math import inf
from time import thread_time
from typing import Any

import pytest

from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.unit.broker.simulated import Client, labelled, publish


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_consumers_get_equal_shares_of_what_waits(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    publish(simulated, "q", *numbers(90))
    client = Client(simulated)
    for tag in "abc":
        client.consume("q", tag)
    simulated.settle()
    assert [len(client.bodies(tag)) for tag in "abc"] == [30, 30, 30]
    assert [body for _, body in client.got] == numbers(90)


def test_consumers_have_their_turns(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    for tag in "abc":
        client.consume("q", tag)
    simulated.settle()
    for number in range(7):
        publish(simulated, "q", str(number))
    assert "".join(tag for tag, _ in client.got) == "abcabca"


def test_who_can_take_nothing_is_passed_over(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client, blocked = Client(simulated), Client(simulated)
    client.consume("q", "a", prefetch=2)
    client.consume("q", "b")
    blocked.consume("q", "c")
    blocked.is_writable = False
    publish(simulated, "q", *numbers(10))
    assert len(client.bodies("a")) == 2
    assert len(client.bodies("b")) == 8
    assert blocked.got == []


def test_a_paused_channel_gets_nothing_until_it_goes_on(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a")
    client.channel.pause(paused=True)
    publish(simulated, "q", "1")
    assert client.got == []
    client.channel.pause(paused=False)
    simulated.settle()
    assert client.bodies("a") == ["1"]


def test_both_windows_hold(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.channel.window.messages = 5
    client.consume("q", "a", prefetch=4)
    client.consume("q", "b", prefetch=4)
    client.consume("q", "free", no_ack=True, priority=-1)
    publish(simulated, "q", *numbers(20))
    held = len(client.bodies("a")) + len(client.bodies("b"))
    assert held == 5
    assert max(len(client.bodies("a")), len(client.bodies("b"))) <= 4
    # Who needs no acks waits while the channel has all that it may, and takes nothing of that.
    assert client.bodies("free") == []
    for body in client.bodies("a") + client.bodies("b"):
        client.ack(body)
    simulated.settle()
    assert len(client.bodies("a")) + len(client.bodies("b")) == 10
    client.channel.window.messages = 0
    client.channel.resume()
    simulated.settle()
    assert len(client.bodies("free")) >= 2


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
@pytest.mark.parametrize("acks", [1, 3])
def test_a_limit_that_consumers_share_is_shared_fairly(
    simulated: SimulatedBroker, limit: int, acks: int
) -> None:
    client = Client(simulated)
    client.channel.window.messages = limit
    queues = ["one", "two", "three"]
    for queue in queues:
        simulated.queue(queue)
        publish(simulated, queue, *(f"{queue}{number}" for number in range(40)))
        client.consume(queue, queue)
    simulated.settle()
    done = 0
    while len(client.got) < 60:
        for _, body in client.got[done : done + acks]:
            client.ack(body)
            done += 1
        simulated.settle()
    counts = [len(client.bodies(queue)) for queue in queues]
    assert max(counts) - min(counts) <= limit + acks, counts


def test_what_others_do_not_take_of_a_shared_limit_is_for_who_does(
    simulated: SimulatedBroker,
) -> None:
    client = Client(simulated)
    client.channel.window.messages = 10
    for queue in ("empty", "full"):
        simulated.queue(queue)
        client.consume(queue, queue)
    publish(simulated, "full", *numbers(20))
    simulated.settle()
    assert len(client.bodies("full")) == 10


def sharing(simulated: SimulatedBroker, limit: int) -> Client:
    """A client with two consumers, of "q" and of another queue, under one limit."""
    simulated.queue("other")
    client = Client(simulated)
    client.channel.window.messages = limit
    for queue in ("q", "other"):
        client.consume(queue, f"of {queue}")
    simulated.settle()
    return client


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_length": 0},
        {"max_length_bytes": 0},
        {"message_ttl": 0},
        {"max_length": 0, "overflow": "reject-publish"},
        {"max_length": 0, "overflow": "reject-publish-dlx"},
    ],
    ids=str,
)
def test_what_cannot_wait_is_not_left_for_another_turn(
    simulated: SimulatedBroker, arguments: dict[str, Any]
) -> None:
    """A message for which a consumer has room under a shared limit is neither dropped nor kept."""
    simulated.queue("q", **arguments)
    client = sharing(simulated, 4)
    publish(simulated, "q", *numbers(5))
    assert client.bodies("of q") == numbers(4)
    assert simulated.ready("q") == []


def test_what_comes_back_to_a_short_queue_is_not_left_for_another_turn(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", max_length=0)
    client = sharing(simulated, 4)
    publish(simulated, "q", *numbers(4))
    for number in numbers(4):
        client.requeue(number)
    simulated.settle()
    assert client.bodies("of q") == numbers(4) + numbers(4)


def test_what_moved_to_a_short_queue_is_not_left_for_another_turn(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", max_length=0)
    simulated.queue("first", dead_letter_exchange="", dead_letter_routing_key="q", message_ttl=10)
    publish(simulated, "first", *numbers(4))
    client = sharing(simulated, 4)
    simulated.pass_time(10)
    assert client.bodies("of q") == numbers(4)


def test_who_shares_a_limit_has_what_came_before_somebody_asked(
    simulated: SimulatedBroker,
) -> None:
    queue = simulated.queue("q")
    client = sharing(simulated, 4)
    Client(simulated).publish("", "q", *numbers(4))
    queue.catch_up()
    assert client.bodies("of q") == numbers(4)
    assert queue.ready_count == 0


def commit_an_ack(client: Client) -> None:
    client.channel.select_transactions()
    client.ack("0")
    client.channel.commit()


def allow_more(client: Client, messages: int) -> None:
    client.channel.window.messages = messages
    client.channel.resume()


def cancelled(client: Client) -> Client:
    """Cancel the consumer of a client, which still has the message that the consumer got."""
    client.channel.cancel("of q")
    return client


def delete_and_ack(client: Client) -> None:
    vhost = client.channel.vhost
    assert isinstance(vhost, VirtualHost)
    vhost.delete_queue(vhost.queue("q"))
    client.ack("0")


MAKES_ROOM: dict[str, Callable[[Client], None]] = {
    "ack": lambda client: client.ack("0"),
    "ack of all": lambda client: ack_until(client.channel, 0),
    "reject": lambda client: client.reject("0"),
    "requeue": lambda client: cancelled(client).requeue("0"),
    "recover": lambda client: cancelled(client).channel.recover(requeue=False),
    "a higher limit": lambda client: allow_more(client, 2),
    "no limit": lambda client: allow_more(client, 0),
    "commit": commit_an_ack,
    "ack of a consumer that left": lambda client: cancelled(client).ack("0"),
    "ack for a queue that is deleted": delete_and_ack,
}


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("way", MAKES_ROOM)
def test_whoever_waits_for_room_under_a_shared_limit_goes_on(
    simulated: SimulatedBroker, way: str, no_ack: bool
) -> None:
    simulated.queue("q")
    client = sharing(simulated, 1)
    simulated.queue("waiting")
    client.consume("waiting", "waits", no_ack=no_ack)
    publish(simulated, "q", "0")
    publish(simulated, "waiting", "1")
    assert client.got == [("of q", "0")]
    MAKES_ROOM[way](client)
    simulated.settle()
    assert client.bodies("waits") == ["1"]


def test_an_ack_makes_room_for_one_more(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a", prefetch=1)
    publish(simulated, "q", *numbers(3))
    for number in range(3):
        assert client.bodies("a") == numbers(number + 1)
        client.ack(str(number))
        simulated.settle()


def test_consumers_of_a_channel_share_its_limit_of_bytes(simulated: SimulatedBroker) -> None:
    client, publisher = Client(simulated), Client(simulated)
    client.channel.window.size = 10
    for queue in "qp":
        simulated.queue(queue)
        client.consume(queue, queue)
        publisher.publish("", queue, *[f"{queue}-{number:03}" for number in range(3)])
    simulated.settle()
    for held in (2, 3, 4):
        assert len(client.got) == held
        client.ack(client.got[held - 2][1])
        simulated.settle()
    client.channel.window.size = 0
    client.channel.resume_soon()
    simulated.settle()
    assert len(client.got) == 6


def test_a_window_of_bytes_does_not_hold_back_a_single_message(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a", prefetch_size=10)
    publish(simulated, "q", "x" * 50, "y" * 4, "z" * 4, "w" * 4)
    assert client.bodies("a") == ["x" * 50]
    client.ack("x" * 50)
    simulated.settle()
    assert client.bodies("a") == ["x" * 50, "y" * 4, "z" * 4]


def test_a_higher_priority_is_served_first_and_a_lower_one_when_it_is_full(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "low", priority=-5)
    client.consume("q", "high", priority=10, prefetch=2)
    client.consume("q", "high too", priority=10, prefetch=2)
    client.consume("q", "middle", prefetch=3)
    publish(simulated, "q", *numbers(10))
    counts = {tag: len(client.bodies(tag)) for tag in ("high", "high too", "middle", "low")}
    assert counts == {"high": 2, "high too": 2, "middle": 3, "low": 3}
    assert {tag for tag, _ in client.got[:4]} == {"high", "high too"}
    assert client.bodies("low") == ["7", "8", "9"]


def test_a_priority_whose_last_consumer_left_is_forgotten(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "high", priority=10)
    client.consume("q", "low")
    client.channel.cancel("high")
    publish(simulated, "q", "1")
    assert client.bodies("low") == ["1"]


# Exclusive consumers, and a single active one.


def test_an_exclusive_consumer_is_alone(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a", exclusive=True)
    for exclusive in (True, False):
        with pytest.raises(AccessRefusedError, match="in exclusive use"):
            client.consume("q", "b", exclusive=exclusive)
    client.channel.cancel("a")
    client.consume("q", "b")
    with pytest.raises(AccessRefusedError, match="in exclusive use"):
        client.consume("q", "c", exclusive=True)
    assert list(client.channel.consumers) == ["b"]


def test_a_single_active_consumer_gets_all_and_the_next_takes_over(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", single_active_consumer=True)
    client = Client(simulated)
    for tag in "abc":
        client.consume("q", tag, prefetch=2)
    publish(simulated, "q", *numbers(6))
    assert client.got == [("a", "0"), ("a", "1")]
    client.channel.cancel("a")
    simulated.settle()
    assert client.bodies("b") == ["2", "3"]
    assert client.bodies("c") == []
    client.ack("2")
    simulated.settle()
    assert client.bodies("b") == ["2", "3", "4"]


def test_a_single_active_consumer_gets_back_what_it_gave_back(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", single_active_consumer=True)
    client = Client(simulated)
    client.consume("q", "a", prefetch=1)
    client.consume("q", "b", prefetch=1)
    publish(simulated, "q", "1")
    client.requeue("1")
    simulated.settle()
    assert client.got == [("a", "1"), ("a", "1")]


def test_of_a_single_active_consumer_none_is_exclusive(simulated: SimulatedBroker) -> None:
    simulated.queue("q", single_active_consumer=True)
    with pytest.raises(AccessRefusedError, match="none can be exclusive"):
        Client(simulated).consume("q", "a", exclusive=True)


# What was given back.


def test_what_a_consumer_gives_back_goes_to_another(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a", prefetch=1)
    publish(simulated, "q", "1")
    client.consume("q", "b", prefetch=1)
    client.requeue("1")
    simulated.settle()
    assert client.got == [("a", "1"), ("b", "1")]
    assert client.redelivered == [False, True]


def test_whoever_is_alone_gets_back_what_it_gave_back(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a", prefetch=1)
    publish(simulated, "q", "1")
    client.requeue("1")
    simulated.settle()
    assert client.got == [("a", "1"), ("a", "1")]


def test_it_waits_for_another_who_has_no_room_and_others_are_served(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q")
    one, other = Client(simulated), Client(simulated)
    one.consume("q", "a", prefetch=1)
    other.consume("q", "b", prefetch=1)
    publish(simulated, "q", "1", "2", "3")
    assert (one.bodies("a"), other.bodies("b")) == (["1"], ["2"])
    one.requeue("1")
    simulated.settle()
    # "1" is not for it, so it gets what is behind it.
    assert one.bodies("a") == ["1", "3"]
    assert simulated.ready("q") == ["1"]
    other.ack("2")
    simulated.settle()
    assert other.bodies("b") == ["2", "1"]


def test_when_the_other_leaves_it_is_for_whoever_is_there(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    one, other = Client(simulated), Client(simulated)
    one.consume("q", "a", prefetch=1)
    other.consume("q", "b", prefetch=1)
    publish(simulated, "q", "1", "2")
    one.requeue("1")
    simulated.settle()
    assert one.bodies("a") == ["1"]
    other.channel.close()
    simulated.settle()
    assert one.bodies("a") == ["1", "1"]


def test_what_was_fetched_and_given_back_is_for_anybody(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    publish(simulated, "q", "1")
    client = Client(simulated)
    assert client.get("q") == "1"
    client.consume("q", "a")
    client.requeue("1")
    simulated.settle()
    assert client.bodies("a") == ["1"]


# How much a queue's consumers can take, which is what a TTL of 0 and `immediate` are about.


def test_capacity_is_what_all_of_them_can_take_together(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q")
    client, other = Client(simulated), Client(simulated)
    assert queue.consumers.capacity(1) == 0
    client.consume("q", "a", prefetch=3)
    other.consume("q", "b", prefetch=2)
    assert queue.consumers.capacity(1) == 5
    client.channel.window.messages = 2
    assert queue.consumers.capacity(1) == 4
    client.consume("q", "c", prefetch=3)
    assert queue.consumers.capacity(1) == 4
    other.channel.pause(paused=True)
    assert queue.consumers.capacity(1) == 2
    client.is_writable = False
    assert queue.consumers.capacity(1) == 0


def test_a_consumer_without_acks_can_take_all_unless_it_may_have_to_wait(
    simulated: SimulatedBroker,
) -> None:
    queue = simulated.queue("q", max_length=0, overflow="reject-publish")
    client = Client(simulated)
    client.channel.window.messages = 2
    client.consume("q", "free", no_ack=True)
    assert queue.consumers.capacity(1) > 1_000_000
    client.consume("q", "a")
    assert queue.consumers.capacity(1) == 2
    publish(simulated, "q", *numbers(8))
    assert (len(client.got), simulated.ready("q")) == (2, [])
    client.channel.window.messages = 0
    assert queue.consumers.capacity(1) > 1_000_000


def test_with_a_ttl_of_0_consumers_get_what_they_can_take(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=0)
    client = Client(simulated)
    client.consume("q", "a", prefetch=2)
    publish(simulated, "q", "1", "2", "3")
    assert client.bodies("a") == ["1", "2"]
    assert simulated.ready("q") == []


def test_consumers_are_told_when_their_queue_is_deleted(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "a")
    client.consume("q", "b", priority=3)
    simulated.vhost.delete_queue(queue)
    assert sorted(client.told) == ["cancelled a", "cancelled b"]
    assert not queue.consumers
    assert client.channel.consumers == {}


def test_a_get_that_takes_a_large_message_lets_the_next_one_through(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q")
    client, other = Client(simulated), Client(simulated)
    client.consume("q", "a", prefetch_size=5)
    publish(simulated, "q", "1", "too large", "2")
    assert client.bodies("a") == ["1"]
    assert other.get("q") == "too large"
    simulated.settle()
    assert client.bodies("a") == ["1", "2"]


@pytest.mark.parametrize("immediate", [True, False])
def test_to_ask_a_queue_where_messages_go_delivers_nothing(
    simulated: SimulatedBroker, immediate: bool
) -> None:
    queue = simulated.queue("q", max_length=3, overflow="reject-publish")
    client = Client(simulated)
    client.consume("q", "a")
    client.channel.pause(paused=True)
    publish(simulated, "q", "1", "2")
    client.channel.pause(paused=False)
    queue.placement(*labelled("", "q", "3"), immediate=immediate)
    assert (queue.ready_count, client.bodies("a")) == (2, [])
    simulated.settle()
    assert client.bodies("a") == ["1", "2"]


def test_a_long_queue_is_handed_out_over_several_turns(simulated: SimulatedBroker) -> None:
    """One turn gives a bounded number of messages; who comes later has the next one."""
    for queue in ("long", "short"):
        simulated.queue(queue)
    bodies = numbers(5000)
    publish(simulated, "long", *bodies)
    publish(simulated, "short", "s")
    client = Client(simulated)
    client.consume("long", "long")
    client.consume("short", "short")
    simulated.broker.pumping.pump()
    most = simulated.services.limits.max_handed_out
    assert most <= len(client.bodies("long")) < most + 1024
    assert client.bodies("short") == []
    simulated.broker.pumping.pump()
    assert client.bodies("short") == ["s"]
    assert len(client.bodies("long")) < len(bodies)
    simulated.settle()
    assert client.bodies("long") == bodies


def test_one_consumer_without_a_prefetch_is_given_no_more_in_a_turn_than_others() -> None:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_handed_out=10))
    simulated.queue("q")
    client = Client(simulated)
    for number in range(5):
        client.publish("", "q", *[f"{number} {one}" for one in range(20)])
    client.consume("q", "c")
    before = 0
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        assert len(client.got) - before <= 10
        before = len(client.got)
    assert before == 100


@pytest.mark.usefixtures("no_garbage")
def test_of_many_consumers_each_leaves_in_the_same_time(simulated: SimulatedBroker) -> None:
    """Any consumer may be first: those of one client may be behind those of another."""
    simulated.queue("q")
    took_s = {500: inf, 8000: inf}
    for _ in range(3):
        for count, least_s in took_s.items():
            staying, leaving = Client(simulated), Client(simulated)
            for client in (staying, leaving):
                for number in range(count):
                    client.consume("q", str(number))
            began_s = thread_time()
            leaving.channel.close()
            took_s[count] = min(least_s, thread_time() - began_s)
            staying.channel.close()
    # 16 times as many take 16 times as long; 256 times, if each were searched for.
    assert took_s[8000] < 64 * took_s[500]
