"""The history of a queue: what enters it, what leaves it, and who may do what with it."""

from typing import Any

import pytest

from amqpstore_server.broker.channels.branches import XaStatus, Xid
from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.rights.permissions import ALL, Access
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.transactions.replay import consumed_at
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Int64
from tests.simulated_broker import START_MS, SimulatedBroker, ack_until
from tests.unit.broker.simulated import Client

HISTORY = "amq.consumed.q"


@pytest.fixture
def simulated() -> SimulatedBroker:
    made = SimulatedBroker()
    made.queue("q", history_length=100)
    return made


def consume_all(simulated: SimulatedBroker, client: Client, name: str, *bodies: str) -> None:
    """Publish messages to a queue, and get and ack each."""
    client.publish("", name, *bodies)
    simulated.settle()
    for body in bodies:
        assert client.get(name) == body
        client.ack(body)
    simulated.settle()


def policy(simulated: SimulatedBroker, **definition: Any) -> None:
    """Have one policy for all queues, or none."""
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    policies = [Policy("p", ".*", definition=keys)] if keys else []
    simulated.vhost.policy_settings.define(policies, operator=False)


# What enters it.


def test_what_was_acked_is_in_the_history(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "a", "b", message_id="m", headers={"mine": 1})
    simulated.settle()
    assert client.get("q") == "a"
    simulated.settle()
    assert simulated.ready(HISTORY) == []
    simulated.clock.advance(7)
    client.ack("a")
    simulated.settle()
    assert simulated.ready(HISTORY) == ["a"]
    assert simulated.headers(HISTORY) == [{"mine": 1, "x-consumed-at": START_MS + 7}]
    (message,) = simulated.messages(HISTORY)
    assert (message.envelope.exchange, message.envelope.routing_key) == ("", "q")
    assert decode_properties(message.envelope.properties).message_id == "m"
    assert simulated.ready("q") == ["b"]


def test_its_order_is_that_of_the_acks(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "a", "b", "c")
    simulated.settle()
    for _ in range(3):
        client.get("q")
    for body in ("c", "a", "b"):
        client.ack(body)
    simulated.settle()
    assert simulated.ready(HISTORY) == ["c", "a", "b"]


def test_many_at_once_are_acked_as_one_run(simulated: SimulatedBroker, client: Client) -> None:
    bodies = [str(number) for number in range(50)]
    client.consume("q", "c")
    client.publish("", "q", *bodies)
    simulated.settle()
    ack_until(client.channel, 0)
    simulated.settle()
    assert simulated.ready(HISTORY) == bodies


def test_deliveries_without_acks_are_consumed_at_once(
    simulated: SimulatedBroker, client: Client
) -> None:
    client.consume("q", "c", no_ack=True)
    client.publish("", "q", "a", "b")
    simulated.settle()
    client.channel.cancel("c")
    client.publish("", "q", "c")
    simulated.settle()
    assert client.channel.get(simulated.vhost.queue("q"), no_ack=True)
    simulated.settle()
    assert client.bodies("c") == ["a", "b"]
    assert simulated.ready(HISTORY) == ["a", "b", "c"]


def test_a_transaction_has_it_with_its_commit(simulated: SimulatedBroker, client: Client) -> None:
    Client(simulated).publish("", "q", "a", "b")
    simulated.settle()
    client.channel.select_transactions()
    client.get("q")
    client.get("q")
    client.ack("a")
    simulated.settle()
    assert simulated.ready(HISTORY) == []
    client.channel.rollback()
    client.ack("b")
    client.channel.commit()
    simulated.settle()
    assert simulated.ready(HISTORY) == ["b"]


def test_a_branch_has_it_from_its_prepare_on_once_it_is_committed(
    simulated: SimulatedBroker, client: Client
) -> None:
    Client(simulated).publish("", "q", "a", "b")
    simulated.settle()
    branches, access = simulated.vhost.branches, Access("ann", "/", ALL)
    client.channel.select_branches()
    statuses: list[XaStatus] = []
    for number, body in enumerate("ab"):
        xid = Xid(0, bytes([number + 1]), b"")
        client.get("q")
        branches.start(client.channel, access, xid, join=False, resume=False)
        client.ack(body)
        branches.end(client.channel, access, xid, fail=False, suspend=False)
        for _ in branches.preparing(access, xid, statuses.append):
            pass
    simulated.settle()
    assert statuses == [XaStatus.OK, XaStatus.OK]
    assert simulated.ready(HISTORY) == []
    simulated.clock.advance(10)
    simulated.restart()
    branches = simulated.vhost.branches
    committed, rolled_back = (Xid(0, branch, b"") for branch in (b"\1", b"\2"))
    for _ in branches.committing(access, committed, statuses.append, one_phase=False):
        pass
    for _ in branches.rolling_back(access, rolled_back, statuses.append):
        pass
    simulated.settle()
    assert simulated.ready(HISTORY) == ["a"]
    assert simulated.headers(HISTORY) == [{"x-consumed-at": START_MS}]
    assert simulated.ready("q") == ["b"]


def test_what_was_not_consumed_is_not_there(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "rejected", "requeued", "purged", "dropped", "unacked")
    client.publish("", "q", "expired", expiration="10")
    simulated.settle()
    client.get("q")
    client.reject("rejected")
    client.get("q")
    client.requeue("requeued")
    simulated.pass_time(10)
    policy(simulated, max_length=3)
    assert simulated.ready("q") == ["purged", "dropped", "unacked"]
    client.channel.close()
    simulated.vhost.queue("q").backlog.purge()
    simulated.settle()
    assert simulated.ready(HISTORY) == []


def test_a_dead_letter_is_not_consumed(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue(
        "d", history_length=5, dead_letter_exchange="", dead_letter_routing_key="q", message_ttl=10
    )
    client.publish("", "d", "a", "b")
    simulated.settle()
    client.get("d")
    client.reject("a")
    simulated.pass_time(10)
    assert simulated.ready("q") == ["a", "b"]
    assert simulated.ready("amq.consumed.d") == []


def test_a_message_in_a_queue_without_history_is_just_acked(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("plain")
    consume_all(simulated, client, "plain", "a")
    assert "amq.consumed.plain" not in simulated.vhost.queues


def test_priorities_and_expiry_of_the_message_mean_nothing_there(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("ranked", max_priority=5, history_length=10)
    client.publish("", "ranked", "low", priority=1, expiration="50")
    client.publish("", "ranked", "high", priority=5, expiration="50")
    simulated.settle()
    for body in ("high", "low"):
        assert client.get("ranked") == body
        client.ack(body)
    simulated.pass_time(1000)
    assert simulated.ready("amq.consumed.ranked") == ["high", "low"]


def test_a_time_that_the_publisher_claims_is_replaced(
    simulated: SimulatedBroker, client: Client
) -> None:
    client.publish("", "q", "a", headers={"x-consumed-at": "never"})
    simulated.settle()
    client.get("q")
    client.ack("a")
    simulated.settle()
    assert simulated.headers(HISTORY) == [{"x-consumed-at": START_MS}]


# What leaves it.


def test_the_oldest_go_when_it_is_full(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("short", history_length=3)
    consume_all(simulated, client, "short", *"abcde")
    assert simulated.ready("amq.consumed.short") == ["c", "d", "e"]
    simulated.restart()
    assert simulated.ready("amq.consumed.short") == ["c", "d", "e"]


def test_a_run_that_is_longer_than_the_history(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("short", history_length=3)
    client.consume("short", "c", no_ack=True)
    client.publish("", "short", *map(str, range(100)))
    simulated.settle()
    assert simulated.ready("amq.consumed.short") == ["97", "98", "99"]


def test_time_ends_it(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("brief", history_ttl=100)
    consume_all(simulated, client, "brief", "a")
    simulated.pass_time(60)
    consume_all(simulated, client, "brief", "b")
    simulated.pass_time(40)
    assert simulated.ready("amq.consumed.brief") == ["b"]
    simulated.restart()
    simulated.pass_time(60)
    assert simulated.ready("amq.consumed.brief") == []


@pytest.mark.parametrize("limit", [{"history_length": 0}, {"history_ttl": 0}])
def test_a_limit_of_0_keeps_none(limit: dict[str, int]) -> None:
    simulated = SimulatedBroker()
    simulated.vhost.declare_queue(
        "none",
        durable=True,
        exclusive=False,
        auto_delete=False,
        arguments={f"x-{key.replace('_', '-')}": value for key, value in limit.items()},
        connection=None,
    )
    consume_all(simulated, Client(simulated), "none", "a")
    assert "amq.consumed.none" not in simulated.vhost.queues


def test_purge_empties_it(simulated: SimulatedBroker, client: Client) -> None:
    consume_all(simulated, client, "q", "a", "b")
    assert simulated.vhost.queue(HISTORY).backlog.purge() == 2
    simulated.restart()
    assert simulated.ready(HISTORY) == []


# As long as its queue.


def test_it_survives_a_restart_as_its_queue_does(
    simulated: SimulatedBroker, client: Client
) -> None:
    consume_all(simulated, client, "q", "a")
    client.publish("", "q", "transient", delivery_mode=1)
    simulated.settle()
    client.get("q")
    client.ack("transient")
    simulated.queue("t", durable=False, history_length=5)
    consume_all(simulated, client, "t", "b")
    assert simulated.ready(HISTORY) == ["a", "transient"]
    assert simulated.ready("amq.consumed.t") == ["b"]
    simulated.restart()
    assert simulated.ready(HISTORY) == ["a"]
    assert "amq.consumed.t" not in simulated.vhost.queues
    again = Client(simulated)
    consume_all(simulated, again, "q", "c")
    assert simulated.ready(HISTORY) == ["a", "c"]


def test_it_ends_with_its_queue(simulated: SimulatedBroker, client: Client) -> None:
    consume_all(simulated, client, "q", "a")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    assert HISTORY not in simulated.vhost.queues
    simulated.restart()
    assert not simulated.vhost.queues
    simulated.queue("q", history_length=5)
    assert simulated.ready(HISTORY) == []


def test_it_ends_with_a_queue_that_nobody_uses(simulated: SimulatedBroker) -> None:
    simulated.queue("brief", expires=100, history_length=5)
    assert "amq.consumed.brief" in simulated.vhost.queues
    simulated.pass_time(100)
    assert "amq.consumed.brief" not in simulated.vhost.queues


def test_it_ends_with_an_exclusive_queue(simulated: SimulatedBroker) -> None:
    owner = object()
    simulated.vhost.declare_queue(
        "mine",
        durable=True,
        exclusive=True,
        auto_delete=False,
        arguments={"x-history-length": 5},
        connection=owner,
    )
    held = simulated.vhost.queue("amq.consumed.mine")
    assert held.owner is owner
    simulated.vhost.owned_queues.end(owner)
    assert held.is_deleted
    assert list(simulated.vhost.queues) == ["q", HISTORY]


def test_an_ack_after_the_queue_was_deleted_is_none(
    simulated: SimulatedBroker, client: Client
) -> None:
    client.publish("", "q", "a", "b")
    simulated.settle()
    client.get("q")
    client.get("q")
    client.ack("a")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    client.ack("b")
    simulated.settle()
    assert not simulated.vhost.queues


# Policies.


def test_a_policy_gives_a_history_and_takes_it_away(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("plain")
    policy(simulated, history_length=2, history_ttl=1000)
    consume_all(simulated, client, "plain", "a")
    policy(simulated)
    consume_all(simulated, client, "plain", "b")
    # What is there stays, for as long as it was to stay when it came.
    assert simulated.ready("amq.consumed.plain") == ["a"]
    simulated.restart()
    assert simulated.ready("amq.consumed.plain") == ["a"]
    simulated.pass_time(1000)
    assert simulated.ready("amq.consumed.plain") == []


def test_without_its_policy_a_full_history_stays_as_it_is(
    simulated: SimulatedBroker, client: Client
) -> None:
    simulated.queue("plain")
    policy(simulated, history_length=2)
    consume_all(simulated, client, "plain", "a", "b", "c")
    policy(simulated)
    simulated.pass_time(1 << 40)
    simulated.restart()
    assert simulated.ready("amq.consumed.plain") == ["b", "c"]
    policy(simulated, history_length=1)
    simulated.settle()
    assert simulated.ready("amq.consumed.plain") == ["c"]
    policy(simulated, history_length=0)
    simulated.settle()
    assert simulated.ready("amq.consumed.plain") == []


def test_the_smallest_length_holds(simulated: SimulatedBroker, client: Client) -> None:
    policy(simulated, history_length=1)
    consume_all(simulated, client, "q", "a", "b")
    assert simulated.ready(HISTORY) == ["b"]


def test_no_history_has_a_history(simulated: SimulatedBroker, client: Client) -> None:
    simulated.exchange("news", "x-recent-history")
    simulated.vhost.reply_queue(client)
    policy(simulated, history_length=5)
    names = {name for name in simulated.vhost.queues if name.startswith("amq.consumed.")}
    assert names == {HISTORY}


# What clients may do with it.


def test_it_is_the_brokers_own(simulated: SimulatedBroker, client: Client) -> None:
    vhost = simulated.vhost
    held = vhost.queue(HISTORY)
    with pytest.raises(AccessRefusedError, match="purged, and nothing else"):
        vhost.check_usable(held)
    with pytest.raises(AccessRefusedError):
        vhost.delete_queue(held)
    with pytest.raises(AccessRefusedError):
        vhost.bindings.bind(held, "amq.direct", "key", {})
    client.publish("", HISTORY, "forged")
    simulated.settle()
    assert simulated.ready(HISTORY) == []
    with pytest.raises(AccessRefusedError):
        simulated.queue("amq.consumed.other")


@pytest.mark.parametrize("value", [-1, "5", True, 1.5, None])
@pytest.mark.parametrize("name", ["history_length", "history_ttl"])
def test_a_limit_that_is_none_is_refused(name: str, value: Any) -> None:
    simulated = SimulatedBroker()
    arguments = {f"x-{name.replace('_', '-')}": value}
    with pytest.raises(PreconditionFailedError):
        simulated.vhost.declare_queue(
            "q",
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments=arguments,
            connection=None,
        )


# The disk.


def test_a_full_disk_holds_up_no_ack(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "a", "b", "c")
    simulated.settle()
    for _ in range(3):
        client.get("q")
    simulated.fill_disk()
    client.ack("a")
    client.channel.close()
    simulated.settle()
    simulated.free_disk()
    assert simulated.ready("q") == ["b", "c"]
    consumer = Client(simulated)
    consumer.get("q")
    consumer.ack("b")
    simulated.settle()
    assert simulated.ready(HISTORY) == ["b"]


def test_the_mark_of_a_time_in_other_headers_does_not_mislead(
    simulated: SimulatedBroker, client: Client
) -> None:
    trap = "\x0dx-consumed-atl" + "\x01" * 8
    client.publish("", "q", "a", headers={"a": trap, "n": {"x-consumed-at": Int64(1)}})
    client.publish("", "q", "b", message_id=trap)
    simulated.settle()
    for body in ("a", "b"):
        client.get("q")
        client.ack(body)
    simulated.settle()
    found = [consumed_at(message.envelope.properties) for message in simulated.messages(HISTORY)]
    assert found == [START_MS, START_MS]
    assert consumed_at(edit_properties(b"\0\0", headers={"x": 1})) == 0
