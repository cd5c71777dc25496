"""Messages that an exchange keeps: delays that run, histories, and direct replies."""

from decimal import Decimal

import pytest

from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.exchanges.delayed import MAX_DELAY_MS
from amqpstore_server.broker.queues.consumer import ConsumerOptions
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled

HELD = "amq.delayed.later"


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    simulated.exchange("later", "x-delayed-message", x_delayed_type="topic")
    simulated.queue("q")
    simulated.bind("later", "q", "#")
    return simulated


def delay(simulated: SimulatedBroker, body: str, ms: object, key: str = "k") -> None:
    Client(simulated).publish("later", key, body, headers={"x-delay": ms})
    simulated.settle()


# Delays.


def test_a_message_waits_and_is_routed_when_it_is_due(simulated: SimulatedBroker) -> None:
    delay(simulated, "a", 100)
    assert simulated.ready("q") == []
    assert simulated.ready(HELD) == ["a"]
    simulated.pass_time(99)
    assert simulated.ready("q") == []
    simulated.pass_time(1)
    assert simulated.ready("q") == ["a"]
    assert simulated.ready(HELD) == []


def test_messages_leave_in_the_order_in_which_they_are_due(simulated: SimulatedBroker) -> None:
    for body, ms in (("late", 3_600_000), ("soon", 10), ("later", 2_000_000), ("now", 0)):
        delay(simulated, body, ms)
    assert simulated.ready("q") == ["now"]
    simulated.pass_time(10)
    assert simulated.ready("q") == ["now", "soon"]
    simulated.pass_time(4_000_000)
    assert simulated.ready("q") == ["now", "soon", "later", "late"]


@pytest.mark.parametrize("none", [0, -1, -(1 << 63), 0.0, "0", "-3", Decimal("-2.5")])
def test_what_is_no_delay_is_routed_at_once(simulated: SimulatedBroker, none: object) -> None:
    delay(simulated, "a", none)
    assert simulated.ready("q") == ["a"]


@pytest.mark.parametrize("same", [100, 100.9, "100", " 100 ", "+100.5", b"100", Decimal("100.2")])
def test_a_delay_may_have_any_type(simulated: SimulatedBroker, same: object) -> None:
    delay(simulated, "a", same)
    simulated.pass_time(99)
    assert simulated.ready("q") == []
    simulated.pass_time(1)
    assert simulated.ready("q") == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        *(True, None, [], {}, "", "soon", "1e3", "1_000", "0x10", b"\xff"),
        *(float("nan"), float("inf"), MAX_DELAY_MS + 1, (1 << 63) - 1),
    ],
)
def test_what_cannot_be_waited_for_is_refused(simulated: SimulatedBroker, wrong: object) -> None:
    client = Client(simulated)
    _, before = labelled("later", "k", "before", headers={"x-delay": 0})
    envelope, after = labelled("later", "k", "refused", headers={"x-delay": wrong})
    with pytest.raises(PreconditionFailedError, match="invalid header 'x-delay'"):
        client.channel.publish(envelope, [*before, *after], Flags())
    simulated.settle()
    assert simulated.ready("q") == ["before"]


def test_a_dead_letter_with_a_wrong_delay_does_not_wait(simulated: SimulatedBroker) -> None:
    """A dead letter has no publisher whose publish could be refused."""
    simulated.queue("dying", message_ttl=10, dead_letter_exchange="later")
    Client(simulated).publish("", "dying", "a", headers={"x-delay": "soon"})
    simulated.pass_time(10)
    assert simulated.ready("q") == ["a"]


@pytest.mark.parametrize("long", [1 << 32, 15_778_800_000, MAX_DELAY_MS])
def test_a_delay_is_as_long_as_it_was_asked_for(simulated: SimulatedBroker, long: int) -> None:
    delay(simulated, "a", long)
    simulated.restart()
    simulated.pass_time(long - 1)
    assert simulated.ready("q") == []
    simulated.pass_time(1)
    assert simulated.ready("q") == ["a"]


def test_what_has_waited_says_so_and_does_not_wait_again(simulated: SimulatedBroker) -> None:
    simulated.exchange("again", "x-delayed-message", x_delayed_type="fanout")
    simulated.vhost.bindings.bind(simulated.vhost.exchange("again"), "later", "#", {})
    simulated.queue("r")
    simulated.bind("again", "r")
    delay(simulated, "a", 100)
    simulated.pass_time(100)
    assert simulated.ready("q") == simulated.ready("r") == ["a"]
    assert simulated.headers("r") == [{"x-delay": -100}]


def test_a_message_waits_in_the_exchange_that_it_came_to_by_another(
    simulated: SimulatedBroker,
) -> None:
    simulated.exchange("front")
    simulated.vhost.bindings.bind(simulated.vhost.exchange("later"), "front", "", {})
    Client(simulated).publish("front", "x", "a", headers={"x-delay": 10})
    simulated.pass_time(9)
    assert simulated.ready("q") == []
    simulated.pass_time(1)
    assert simulated.ready("q") == ["a"]


def test_it_goes_where_bindings_lead_when_it_is_due(simulated: SimulatedBroker) -> None:
    simulated.queue("r")
    delay(simulated, "a", 10, key="x.y")
    simulated.vhost.bindings.unbind(simulated.vhost.queue("q"), "later", "#", {})
    simulated.bind("later", "r", "x.*")
    simulated.pass_time(10)
    assert simulated.ready("q") == []
    assert simulated.ready("r") == ["a"]


def test_all_its_keys_count_when_it_is_due(simulated: SimulatedBroker) -> None:
    simulated.queue("r")
    simulated.vhost.bindings.unbind(simulated.vhost.queue("q"), "later", "#", {})
    simulated.bind("later", "q", "own")
    simulated.bind("later", "r", "blind")
    Client(simulated).publish(
        "later", "own", "a", headers={"x-delay": 10, "CC": ["other"], "BCC": ["blind"]}
    )
    simulated.pass_time(10)
    assert simulated.ready("q") == simulated.ready("r") == ["a"]


def test_what_has_no_route_when_it_is_due_goes_to_the_alternate_exchange(
    simulated: SimulatedBroker,
) -> None:
    simulated.exchange("rest")
    simulated.exchange(
        "direct-later", "x-delayed-message", x_delayed_type="direct", alternate_exchange="rest"
    )
    simulated.bind("rest", "q")
    Client(simulated).publish("direct-later", "nowhere", "a", headers={"x-delay": 10})
    simulated.pass_time(10)
    assert simulated.ready("q") == ["a"]


def test_its_expiration_begins_when_the_delay_is_over(simulated: SimulatedBroker) -> None:
    Client(simulated).publish("later", "k", "a", headers={"x-delay": 100}, expiration="50")
    simulated.pass_time(100)
    assert simulated.ready("q") == ["a"]
    simulated.pass_time(50)
    assert simulated.ready("q") == []


def test_a_mandatory_message_that_waits_is_not_returned(simulated: SimulatedBroker) -> None:
    simulated.vhost.bindings.unbind(simulated.vhost.queue("q"), "later", "#", {})
    client = Client(simulated)
    for ms in (10, 0):
        label, messages = labelled("later", "k", f"{ms}", headers={"x-delay": ms})
        client.channel.publish(label, messages, Flags(mandatory=True))
    assert client.told == ["returned 0 NO_ROUTE"]


def test_to_purge_is_to_cancel(simulated: SimulatedBroker) -> None:
    for ms in (10, 5_000_000):
        delay(simulated, "a", ms)
    assert simulated.vhost.queue(HELD).backlog.purge() == 2
    delay(simulated, "b", 20)
    simulated.pass_time(10_000_000)
    assert simulated.ready("q") == ["b"]


def test_delays_go_on_through_a_restart(simulated: SimulatedBroker) -> None:
    for body, ms in (("a", 100), ("b", 2_000_000), ("c", 50)):
        delay(simulated, body, ms)
    simulated.restart()
    simulated.clock.advance(100)
    simulated.restart()
    simulated.settle()
    assert simulated.ready("q") == ["c", "a"]
    simulated.pass_time(2_000_000)
    assert simulated.ready("q") == ["c", "a", "b"]


def test_what_is_due_while_the_disk_is_full_is_routed_later(simulated: SimulatedBroker) -> None:
    delay(simulated, "a", 10)
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.services.run_timers()
    simulated.free_disk()
    assert simulated.ready(HELD) == ["a"]
    simulated.pass_time(1000)
    assert simulated.ready("q") == ["a"]


def test_a_full_queue_that_has_dead_letters_has_them_for_what_waited_too(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("dead")
    simulated.queue(
        "full",
        max_length=0,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    simulated.bind("later", "full", "#")
    delay(simulated, "a", 10)
    simulated.pass_time(10)
    assert simulated.ready("q") == ["a"]
    assert simulated.ready("full") == []
    assert simulated.ready("dead") == ["a"]


def test_what_waits_goes_with_its_exchange(simulated: SimulatedBroker) -> None:
    delay(simulated, "a", 10)
    delay(simulated, "b", 5_000_000)
    simulated.vhost.exchange_definitions.delete("later", if_unused=False)
    assert HELD not in simulated.vhost.queues
    assert [queue.definition["name"] for queue in simulated.store.queues.values()] == ["q"]  # type: ignore[index]
    simulated.pass_time(10_000_000)
    assert simulated.ready("q") == []
    simulated.restart()
    assert list(simulated.vhost.queues) == ["q"]


def test_an_exchange_that_is_not_declared_leaves_no_queue() -> None:
    simulated = SimulatedBroker()
    for kind, wrong in (
        ("x-delayed-message", {}),
        ("x-delayed-message", {"x_delayed_type": "x-delayed-message"}),
        ("x-delayed-message", {"x_delayed_type": "x-recent-history"}),
        ("x-recent-history", {"x_recent_history_length": 0}),
    ):
        with pytest.raises(PreconditionFailedError):
            simulated.exchange("e", kind, **wrong)
    assert simulated.vhost.queues == {}


# An exchange's own queue is not a client's.


def test_an_exchanges_own_queue_can_be_purged_and_nothing_else(
    simulated: SimulatedBroker,
) -> None:
    queue = simulated.vhost.queue(HELD)
    for forbidden in (
        lambda: simulated.vhost.delete_queue(queue),
        lambda: simulated.vhost.bindings.bind(queue, "amq.direct", "k", {}),
        lambda: simulated.vhost.check_usable(queue),
        lambda: simulated.queue("amq.delayed.other"),
    ):
        with pytest.raises(AccessRefusedError):
            forbidden()
    assert queue.backlog.purge() == 0


@pytest.mark.parametrize("name", [HELD, "amq.history.news"])
def test_nobody_publishes_to_an_exchanges_own_queue(simulated: SimulatedBroker, name: str) -> None:
    simulated.exchange("news", "x-recent-history")
    Client(simulated).publish("", name, "forged", headers={"x-delay": 100})
    simulated.settle()
    assert simulated.ready(name) == []


# Histories.


def test_the_last_messages_are_sent_to_whoever_is_bound() -> None:
    simulated = SimulatedBroker()
    simulated.exchange("news", "x-recent-history", x_recent_history_length=3)
    simulated.queue("q")
    client = Client(simulated)
    for number in range(5):
        client.publish("news", "", str(number))
    client.publish("news", "", "secret", headers={"x-recent-history-no-store": True})
    simulated.settle()
    for _ in range(2):
        simulated.bind("news", "q")  # a binding that is there already sends nothing
    simulated.settle()
    assert simulated.ready("q") == ["2", "3", "4"]
    assert simulated.ready("amq.history.news") == ["2", "3", "4"]
    simulated.restart()
    simulated.queue("r")
    simulated.bind("news", "r")
    simulated.settle()
    assert simulated.ready("r") == ["2", "3", "4"]


def test_history_does_not_expire_and_a_ttl_holds_where_it_is_sent() -> None:
    simulated = SimulatedBroker()
    simulated.exchange("news", "x-recent-history")
    Client(simulated).publish("news", "", "a", expiration="10")
    simulated.pass_time(1000)
    simulated.queue("q")
    simulated.bind("news", "q")
    simulated.settle()
    assert simulated.ready("q") == ["a"]
    simulated.pass_time(10)
    assert simulated.ready("q") == []


def test_what_is_only_remembered_is_unroutable() -> None:
    simulated = SimulatedBroker()
    simulated.exchange("news", "x-recent-history", alternate_exchange="amq.fanout")
    simulated.queue("q")
    client = Client(simulated)
    client.channel.publish(*labelled("news", "", "x"), Flags(mandatory=True))
    assert client.told == ["returned x NO_ROUTE"]
    simulated.bind("amq.fanout", "q")
    client.publish("news", "", "y")
    simulated.settle()
    assert simulated.ready("q") == ["y"]


# Direct replies.


def test_a_direct_reply_is_delivered_and_lost_without_its_consumer() -> None:
    simulated = SimulatedBroker()
    client, server = Client(simulated), Client(simulated)
    client.channel.consume_replies("replies", ConsumerOptions(no_ack=True))
    address = client.channel.reply_to
    server.publish("", address, "pong")
    simulated.settle()
    assert client.bodies("replies") == ["pong"]
    client.channel.cancel("replies")
    assert client.channel.reply_to == ""
    assert address not in simulated.vhost.queues
    server.publish("", address, "too late")
    simulated.settle()
    assert client.bodies("replies") == ["pong"]


def test_direct_replies_are_taken_without_acks_and_once_a_channel() -> None:
    channel = Client(SimulatedBroker()).channel
    with pytest.raises(PreconditionFailedError, match="cannot acknowledge"):
        channel.consume_replies("a", ConsumerOptions())
    channel.consume_replies("a", ConsumerOptions(no_ack=True))
    with pytest.raises(PreconditionFailedError, match="already set"):
        channel.consume_replies("b", ConsumerOptions(no_ack=True))


def test_while_the_disk_is_full_what_is_due_is_tried_again_now_and_then(
    simulated: SimulatedBroker,
) -> None:
    delay(simulated, "a", 10)
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.services.run_timers()
    simulated.broker.pumping.pump()
    assert simulated.services.ms_to_next_timer() == 1000
    simulated.free_disk()


def test_a_slice_of_time_that_is_over_is_no_queue_of_the_store(
    simulated: SimulatedBroker,
) -> None:
    before = len(simulated.store.queues)
    for body, ms in (("a", 10), ("b", 3_000_000), ("c", 6_000_000)):
        delay(simulated, body, ms)
    assert len(simulated.store.queues) == before + 3
    simulated.pass_time(3_000_000)
    simulated.pass_time(10_000_000)
    assert simulated.ready("q") == ["a", "b", "c"]
    assert len(simulated.store.queues) == before
    simulated.restart()
    assert len(simulated.store.queues) == before


# Histories through exchanges.


def with_history() -> SimulatedBroker:
    """An exchange whose history has four messages, with keys a and b."""
    simulated = SimulatedBroker()
    simulated.exchange("recent", "x-recent-history")
    client = Client(simulated)
    for body, key in (("one", "a"), ("two", "b"), ("three", "a")):
        client.publish("recent", key, body)
    client.publish("recent", "a", "no", headers={"x-recent-history-no-store": True})
    simulated.settle()
    return simulated


def test_a_history_goes_through_an_exchange_that_is_bound() -> None:
    simulated = with_history()
    simulated.exchange("next", "direct")
    for key in ("a", "b"):
        simulated.queue(key)
        simulated.bind("next", key, key)
    assert simulated.vhost.bindings.bind(simulated.vhost.exchange("next"), "recent", "", {})
    simulated.settle()
    assert simulated.ready("a") == ["one", "three"]
    assert simulated.ready("b") == ["two"]
    # As with a queue, a repeated binding adds nothing.
    assert not simulated.vhost.bindings.bind(simulated.vhost.exchange("next"), "recent", "", {})
    simulated.settle()
    assert simulated.ready("b") == ["two"]


def test_a_history_goes_into_that_of_the_next_exchange() -> None:
    simulated = with_history()
    simulated.exchange("next", "x-recent-history", x_recent_history_length=2)
    simulated.vhost.bindings.bind(simulated.vhost.exchange("next"), "recent", "", {})
    simulated.settle()
    simulated.queue("q")
    simulated.bind("next", "q")
    simulated.settle()
    assert simulated.ready("q") == ["two", "three"]


def test_a_history_without_a_route_is_no_error() -> None:
    simulated = with_history()
    simulated.exchange("next", "direct")
    assert simulated.vhost.bindings.bind(simulated.vhost.exchange("next"), "recent", "", {})
    simulated.queue("full", max_length=1, overflow="reject-publish")
    simulated.exchange("last")
    simulated.bind("last", "full")
    assert simulated.vhost.bindings.bind(simulated.vhost.exchange("last"), "recent", "", {})
    simulated.settle()
    assert simulated.ready("full") == ["one"]
