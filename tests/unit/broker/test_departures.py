"""Each message that leaves has exactly one reason, whichever way it goes; and what has come to a
queue is there, or has left for a reason.

Past 600 lines because there is a test for each way in which a message leaves.
"""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import amqpstore
from amqpstore.format.departures import Departure
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.channels import local_transaction
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER
from amqpstore_server.broker.monitoring.departures import (
    QueueDepartures,
    reasons_of_all,
    reasons_of_queue,
)
from amqpstore_server.broker.queues.consumer import ConsumerOptions
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.transactions import prepared_work
from amqpstore_server.broker.vhost import VirtualHost
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.branches import XID, BranchClient
from tests.unit.broker.dead_letters import DEAD
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client, labelled

MANAGEMENT = Path(__file__).parents[3] / "server" / "MANAGEMENT.md"

NOT_ENTERED = (Departure.PUBLISH_REJECTED, Departure.UNROUTABLE, Departure.RETURNED)


class SeeingHost(VirtualHost):
    """A virtual host that keeps all queues that there ever were."""

    def __init__(self, *args: Any) -> None:
        self.seen: list[Queue] = []
        super().__init__(*args)

    def add_queue(
        self, store_queue: amqpstore.Queue, *, durable: bool, owner: object = None
    ) -> Queue:
        queue = super().add_queue(store_queue, durable=durable, owner=owner)
        self.seen.append(queue)
        return queue


class SeeingBroker(Broker):
    """A broker of such virtual hosts."""

    vhost_type = SeeingHost


class Departing(SimulatedBroker):
    """A broker with the queue that dead letters go to, and a client."""

    broker_type = SeeingBroker

    def open(self) -> None:
        super().open()
        self.services.purge_undo_s = 60
        self.client = Client(self)
        self.operator = Operator(self)

    def send(self, *bodies: str, queue: str = "q", **properties: Any) -> None:
        self.client.publish("", queue, *bodies, **properties)
        self.settle()

    def left(self) -> dict[str, int]:
        """Return how many messages left, by reason, and check that all others are still there."""
        vhost = self.vhost
        assert isinstance(vhost, SeeingHost)
        for queue in vhost.seen:
            counts = reasons_of_queue(queue.departures, queue.counters)
            gone = sum(count for reason, count in counts.items() if reason not in NOT_ENTERED)
            came = queue.priorities.published_count + queue.departures.came_back
            kept = 0 if queue.is_deleted else queue.held_count
            assert came == gone + kept, f"{queue.name}: {came} came, {kept} are there, {counts}"
        every = reasons_of_all(vhost.departures, vhost.counters)
        return {reason.label: count for reason, count in every.items() if count}


@pytest.fixture
def simulated() -> Iterator[Departing]:
    departing = Departing()
    departing.queue("dead")
    yield departing
    departing.store.abandon()


Way = Callable[[Departing], None]

WAYS: list[tuple[dict[str, int], Way]] = []
"""Ways in which messages leave, each with the counts by reason that it leads to."""


def way(**left: int) -> Callable[[Way], Way]:
    def added(function: Way) -> Way:
        WAYS.append((left, function))
        return function

    return added


@way(acked=1)
def an_ack(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one")
    assert broker.client.get("q")
    broker.client.ack("one")


@way(acked=3)
def no_acks(broker: Departing) -> None:
    broker.queue("q")
    broker.client.consume("q", "c", no_ack=True)
    broker.send("one", "two")
    broker.client.channel.cancel("c")
    broker.send("three")
    broker.client.channel.get(broker.vhost.queue("q"), no_ack=True)


@way(acked=1)
def an_ack_with_a_history(broker: Departing) -> None:
    broker.queue("q", history_length=10)
    broker.send("one")
    assert broker.client.get("q")
    broker.client.ack("one")


@way(acked=3)
def a_history_that_is_too_long(broker: Departing) -> None:
    """Copies in a history belong to no client: only the history counts that they go."""
    broker.queue("q", history_length=1)
    broker.client.consume("q", "c", no_ack=True)
    for body in ("one", "two", "three"):
        broker.send(body)
    history = broker.vhost.histories.of("q")
    assert history is not None
    assert reasons_of_queue(history.departures, history.counters)[Departure.MAXLEN] == 2


@way(acked=1, rejected=1)
def a_transaction(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one", "two")
    broker.client.channel.select_transactions()
    for body, settle in (("one", broker.client.ack), ("two", broker.client.reject)):
        assert broker.client.get("q") == body
        settle(body)
    broker.client.channel.rollback()
    broker.client.channel.ack(1, 1)
    broker.client.channel.reject(2, requeue=False)
    broker.client.channel.commit()


@way(rejected=1)
def a_rejected_dead_letter_in_a_transaction(broker: Departing) -> None:
    broker.queue("q", **DEAD)
    broker.send("one")
    broker.client.channel.select_transactions()
    assert broker.client.get("q")
    broker.client.reject("one")
    broker.client.channel.commit()
    broker.settle()
    assert broker.ready("dead") == ["one"]
    assert broker.vhost.departures.dead_lettered[Departure.REJECTED] == 1


@way(acked=2)
def a_branch(broker: Departing) -> None:
    """A message that a branch acks has left, and comes back when the branch is rolled back."""
    broker.queue("q")
    broker.send("one")
    for is_committed in (False, True):
        client = BranchClient(broker)
        client.start()
        assert client.get("q")
        client.ack("one")
        client.end()
        client.prepare()
        broker.settle()
        (client.commit if is_committed else client.rollback)(XID)
        broker.settle()
    assert broker.vhost.departures.came_back == 1


@way(queue_deleted=4)
def a_branch_whose_queues_are_deleted(broker: Departing) -> None:
    """Prepared publishes count when the branch is committed, once for each deleted queue."""
    client = prepared_fanout(broker)
    for name in ("q", "r"):
        broker.vhost.delete_queue(broker.vhost.queue(name))
    client.commit()
    broker.settle()
    # They were in no queue, so no sum misses them.
    assert broker.vhost.departures.left[Departure.QUEUE_DELETED] == 4


def prepared_fanout(broker: Departing) -> BranchClient:
    """A client that has prepared a branch with two messages to q, and one to q, r and s."""
    for name in ("q", "r", "s"):
        broker.queue(name)
        broker.bind("amq.fanout", name)
    client = BranchClient(broker)
    client.start()
    client.publish("", "q", "one", "two")
    client.publish("amq.fanout", "", "three")
    client.end()
    client.prepare()
    broker.settle()
    return client


@way(rejected=1)
def a_rejection(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one")
    assert broker.client.get("q")
    broker.client.reject("one")


@way(rejected=1)
def a_rejected_dead_letter(broker: Departing) -> None:
    broker.queue("q", **DEAD)
    broker.send("one")
    assert broker.client.get("q")
    broker.client.reject("one")
    broker.settle()
    assert broker.ready("dead") == ["one"]
    assert broker.vhost.departures.dead_lettered[Departure.REJECTED] == 1


@way(delivery_limit=1)
def too_many_deliveries(broker: Departing) -> None:
    broker.queue("q", delivery_limit=1)
    broker.send("one")
    for _ in range(2):
        assert broker.client.get("q")
        broker.client.requeue("one")


@way(delivery_limit=1)
def too_many_deliveries_before_a_recover(broker: Departing) -> None:
    broker.queue("q", delivery_limit=0)
    broker.client.consume("q", "c")
    broker.send("one")
    broker.client.channel.recover(requeue=False)


@way(expired=1)
def a_time_to_live(broker: Departing) -> None:
    broker.queue("q", message_ttl=10)
    broker.send("one")
    broker.pass_time(10)


@way(expired=1)
def no_time_to_live(broker: Departing) -> None:
    broker.queue("q", message_ttl=0)
    broker.send("one")


@way(expired=1)
def an_expiration(broker: Departing) -> None:
    broker.queue("q", **DEAD)
    broker.send("one", expiration="10")
    broker.pass_time(10)
    assert broker.ready("dead") == ["one"]


@way(maxlen=1)
def a_limit(broker: Departing) -> None:
    broker.queue("q", max_length=1)
    broker.send("one", "two")


@way(maxlen=1)
def no_room_at_all(broker: Departing) -> None:
    broker.queue("q", max_length=0)
    broker.send("one")


@way(maxlen=2)
def a_limit_on_bytes(broker: Departing) -> None:
    broker.queue("q", max_length_bytes=3, **DEAD)
    broker.send("one", "two", "six")


@way(maxlen=1)
def a_limit_by_a_policy(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one", "two")
    policy = Policy("short", "^q$", definition={"max-length": 1})
    broker.vhost.policy_settings.define([policy], operator=False)
    broker.settle()


@way(publish_rejected=2)
def a_publish_that_is_refused(broker: Departing) -> None:
    broker.queue("q", max_length=1, overflow="reject-publish")
    broker.send("one", "two", "three")


@way(publish_rejected=1)
def a_refused_publish_that_is_a_dead_letter(broker: Departing) -> None:
    broker.queue("q", max_length=1, overflow="reject-publish-dlx", **DEAD)
    broker.send("one", "two")
    assert broker.ready("dead") == ["two"]
    assert broker.vhost.departures.dead_lettered[Departure.PUBLISH_REJECTED] == 1


@way(expired=1, cycle=1)
def a_cycle(broker: Departing) -> None:
    broker.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    broker.queue("r", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    broker.send("one")
    broker.pass_time(10)
    broker.pass_time(10)
    counts = reasons_of_queue(broker.vhost.queue("r").departures, broker.client.channel.counters)
    assert counts[Departure.CYCLE] == 1


@way(no_route=1)
def a_dead_letter_exchange_that_is_not_there(broker: Departing) -> None:
    broker.queue("q", message_ttl=10, dead_letter_exchange="nowhere")
    broker.send("one")
    broker.pass_time(10)


@way(no_route=1)
def a_dead_letter_without_a_queue(broker: Departing) -> None:
    broker.exchange("letters")
    broker.queue("q", dead_letter_exchange="letters")
    broker.send("one")
    assert broker.client.get("q")
    broker.client.reject("one")


@way(no_route=1)
def alternates_in_a_circle(broker: Departing) -> None:
    broker.exchange("letters", alternate_exchange="others")
    broker.exchange("others", alternate_exchange="letters")
    broker.queue("q", max_length=0, dead_letter_exchange="letters")
    broker.send("one")


@way(purged=2)
def a_purge(broker: Departing) -> None:
    """The first of them is undone."""
    broker.queue("q")
    broker.send("one")
    broker.vhost.queue("q").backlog.purge()
    broker.settle()
    broker.operator.undoes_purge("q")
    assert broker.ready("q") == ["one"]
    broker.vhost.queue("q").backlog.purge()
    assert broker.vhost.departures.came_back == 1


@way(queue_deleted=3)
def a_deletion(broker: Departing) -> None:
    """Unacked messages and those about to leave go with the queue, and an ack comes too late."""
    broker.queue("q", **DEAD)
    broker.send("one", "two", "three")
    assert broker.client.get("q")
    broker.vhost.delete_queue(broker.vhost.queue("q"))
    broker.client.ack("one")


@way(rejected=1, queue_deleted=1)
def a_deletion_while_letters_come(broker: Departing) -> None:
    """The letters have left one queue, and are not on the disk yet."""
    broker.queue("r")
    broker.queue("q", dead_letter_exchange="", dead_letter_routing_key="r")
    broker.client.publish("", "q", "one")
    broker.settle()
    assert broker.client.get("q")
    broker.client.reject("one")
    broker.vhost.delete_queue(broker.vhost.queue("r"))


@way(queue_expired=1)
def an_unused_queue(broker: Departing) -> None:
    broker.queue("q", expires=10)
    broker.send("one")
    broker.pass_time(10)


@way(owner_gone=1)
def an_exclusive_queue(broker: Departing) -> None:
    broker.vhost.declare_queue(
        "q", durable=True, exclusive=True, auto_delete=False, arguments={}, connection="gone"
    )
    broker.send("one")
    broker.vhost.owned_queues.end("gone")


@way(owner_gone=2)
def the_last_consumer(broker: Departing) -> None:
    broker.vhost.declare_queue(
        "q", durable=True, exclusive=False, auto_delete=True, arguments={}, connection=None
    )
    broker.client.consume("q", "c", prefetch=1)
    broker.send("one", "two")
    broker.client.channel.cancel("c")


@way(acked=1)
def a_reply_to_who_waits(broker: Departing) -> None:
    client = Client(broker)
    client.channel.consume_replies("replies", ConsumerOptions(no_ack=True))
    broker.send("one", queue=client.channel.reply_to)


@way(unroutable=1)
def a_reply_to_who_is_gone(broker: Departing) -> None:
    client = Client(broker)
    client.channel.consume_replies("replies", ConsumerOptions(no_ack=True))
    address = client.channel.reply_to
    client.channel.close()
    broker.send("one", queue=address)


@way(moved=1)
def a_move(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one")
    broker.operator.moves("q", "dead", filter={})


@way(deleted=1)
def an_operator_deletes(broker: Departing) -> None:
    broker.queue("q")
    broker.send("one")
    broker.operator.deletes("q", filter={})


@way(rejected=1, replayed=1)
def a_replay(broker: Departing) -> None:
    a_rejected_dead_letter(broker)
    broker.operator.replays("dead", filter={})
    assert broker.ready("q") == ["one"]


@way(released=1)
def a_delay(broker: Departing) -> None:
    broker.queue("q")
    broker.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    broker.bind("later", "q")
    broker.client.publish("later", "", "one", headers={DELAY_HEADER: 10})
    broker.pass_time(10)
    assert broker.ready("q") == ["one"]


@way(no_route=1)
def a_delay_without_a_route(broker: Departing) -> None:
    broker.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    broker.client.publish("later", "", "one", headers={DELAY_HEADER: 10})
    broker.pass_time(10)


@way(released=1, publish_rejected=1)
def a_delay_to_a_full_queue(broker: Departing) -> None:
    broker.queue("q", max_length=0, overflow="reject-publish")
    broker.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    broker.bind("later", "q")
    broker.client.publish("later", "", "one", headers={DELAY_HEADER: 10})
    broker.pass_time(10)


@way(queue_deleted=1)
def a_delay_whose_exchange_is_deleted(broker: Departing) -> None:
    broker.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    broker.client.publish("later", "", "one", headers={DELAY_HEADER: 10})
    broker.settle()
    broker.vhost.exchange_definitions.delete("later", if_unused=False)


@way(unroutable=2)
def a_publish_without_a_queue(broker: Departing) -> None:
    broker.send("one", queue="nowhere")
    broker.queue("q")
    broker.client.channel.select_transactions()
    broker.client.publish("", "q", "two")
    broker.vhost.delete_queue(broker.vhost.queue("q"))
    broker.client.channel.commit()


@way(returned=3)
def a_publish_that_comes_back(broker: Departing) -> None:
    broker.queue("q")
    channel = broker.client.channel
    channel.publish(*labelled("", "nowhere", "one"), Flags(mandatory=True))
    channel.publish(*labelled("", "q", "two"), Flags(immediate=True))
    channel.select_transactions()
    channel.publish(*labelled("", "q", "three"), Flags(immediate=True))
    channel.commit()


@pytest.mark.parametrize(("expected", "leaves"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_each_message_that_leaves_has_one_reason(
    simulated: Departing, expected: dict[str, int], leaves: Way
) -> None:
    leaves(simulated)
    simulated.settle()
    assert simulated.left() == expected


def test_what_a_stop_loses_is_counted_before(simulated: Departing) -> None:
    simulated.queue("q")
    simulated.queue("short", durable=False)
    simulated.send("kept")
    simulated.send("one", delivery_mode=1)
    simulated.send("two", "three", queue="short")
    simulated.broker.note_lost()
    left = simulated.broker.departures().left
    assert left[Departure.LOST_AT_RESTART] == sum(left) == 3
    simulated.restart()
    assert simulated.ready("q") == ["kept"]


def test_what_goes_with_a_virtual_host_stays_in_the_totals(simulated: Departing) -> None:
    simulated.broker.define(Defined(["other"]))
    simulated.broker.vhost("other").declare_queue(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, connection=None
    )
    channel = Channel(simulated.broker.vhost("other"), object(), simulated.client)
    channel.publish(*labelled("", "q", "one"), Flags())
    simulated.settle()
    simulated.broker.begin_deleting("other")
    for _ in simulated.broker.deleting_vhost("other"):
        pass
    assert simulated.broker.departures().left[Departure.QUEUE_DELETED] == 1
    assert simulated.left() == {}


def test_queues_that_are_deleted_while_a_branch_is_committed_are_counted(
    simulated: Departing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_work, "_MAX_MESSAGES", 1)
    client = prepared_fanout(simulated)
    committing = client.committing()
    next(committing)  # The two messages have their place.
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    for _ in committing:
        pass
    simulated.settle()
    assert simulated.vhost.departures.left[Departure.QUEUE_DELETED] == 3


@pytest.mark.parametrize("is_branch", [False, True])
@pytest.mark.parametrize("mandatory", [False, True])
def test_a_queue_that_is_deleted_during_a_commit_counts_what_was_coming_and_nobody_else_does(
    simulated: Departing, monkeypatch: pytest.MonkeyPatch, *, mandatory: bool, is_branch: bool
) -> None:
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 0)
    simulated.queue("q")
    flags = Flags(mandatory=mandatory)
    committing: Iterator[None]
    if is_branch:
        branch = BranchClient(simulated)
        branch.start()
        branch.channel.publish(*labelled("", "q", "one", "two"), flags)
        branch.end()
        committing = branch.committing(one_phase=True)
    else:
        channel = simulated.client.channel
        channel.select_transactions()
        channel.publish(*labelled("", "q", "one", "two"), flags)
        committing = channel.committing()
    next(committing)
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    for _ in committing:
        pass
    simulated.settle()
    vhost = simulated.vhost
    counts = reasons_of_all(vhost.departures, vhost.counters)
    assert {reason.label: count for reason, count in counts.items() if count} == {
        "queue_deleted": 2
    }


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_was_coming_in_a_transaction_that_fails_has_not_left(
    simulated: Departing, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """The messages were counted with their deleted queue; then their transaction failed."""
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 0)
    simulated.queue("q")
    channel = simulated.client.channel
    channel.select_transactions()
    simulated.client.publish("", "q", "one", "two")
    simulated.client.publish("", "dead", "three")
    committing = channel.committing()
    next(committing)
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    if is_committed:
        simulated.fill_disk()
        with pytest.raises(ResourceExhaustedError):
            list(committing)
        simulated.free_disk()
    else:
        committing.close()  # type: ignore[attr-defined]
    departures = simulated.vhost.departures
    assert departures.left[Departure.QUEUE_DELETED] == departures.came_back == 2


def test_a_branch_whose_queue_was_deleted_before_the_start_is_counted(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prepared_fanout(simulated)
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    simulated.restart()
    BranchClient(simulated).commit()
    simulated.settle()
    assert simulated.left() == {"queue_deleted": 3}


def test_there_is_a_test_for_each_reason() -> None:
    tested = {label for expected, _ in WAYS for label in expected}
    assert tested == {one.label for one in Departure} - {Departure.LOST_AT_RESTART.label}


def test_numbers_of_reasons_never_change() -> None:
    """Numbers are written to the log: one that is on a disk means the same for ever."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", MANAGEMENT.read_text("utf-8"), re.MULTILINE)
    assert [(int(number), label) for number, label in rows] == [
        (one.value, one.label) for one in Departure
    ]
    assert [number for number, _ in rows] == [f"{number}" for number in range(1, 20)]


@pytest.mark.parametrize(
    ("expected", "leaves"),
    [
        (expected, leaves)
        for expected, leaves in WAYS
        if not expected.keys() & {"acked", "unroutable", "returned", "publish_rejected"}
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_way_that_names_no_reason_is_caught(
    simulated: Departing,
    expected: dict[str, int],
    leaves: Way,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = QueueDepartures.note

    def forget(
        self: QueueDepartures, reason: Departure, count: int, dead_lettered: int = 0
    ) -> None:
        if reason.label not in expected:
            note(self, reason, count, dead_lettered)

    monkeypatch.setattr(QueueDepartures, "note", forget)
    with pytest.raises(AssertionError):
        leaves(simulated)
        simulated.settle()
        simulated.left()


def test_one_line_of_the_log_sums_up_what_has_left(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a_limit(simulated)
    simulated.send("three")
    simulated.queue("r", message_ttl=0)
    simulated.send("four", queue="r")
    assert simulated.client.get("q")
    simulated.client.ack("three")
    simulated.services.statistics.departures.write()
    simulated.services.statistics.departures.write()
    (record,) = [one for one in caplog.records if one.message == "messages left their queues"]
    assert {key: vars(record)[key] for key in ("count", "reasons", "queues")} == {
        "count": 3,
        "reasons": "maxlen=2, expired=1",
        "queues": "/ q maxlen=2, / r expired=1",
    }


def test_a_line_names_ten_queues_and_sums_up_the_others(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(13):
        name = f"q{number:02}"
        simulated.queue(name, max_length=0)
        simulated.send(*["one"] * (20 - number), queue=name)
    simulated.services.statistics.departures.write()
    (record,) = [one for one in caplog.records if one.message == "messages left their queues"]
    assert vars(record)["queues"].count("maxlen") == 10
    assert "q09" in vars(record)["queues"]
    assert vars(record)["others"] == 10 + 9 + 8


def test_queues_that_are_gone_are_told_as_others_are_and_not_kept(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues are told, however many a client makes up and deletes before the next line."""
    caplog.set_level(logging.INFO)
    simulated.queue("stays", max_length=0)
    simulated.send(*["one"] * 9, queue="stays")
    for number in range(13):
        name = f"q{number:02}"
        simulated.queue(name)
        simulated.send(*["one"] * (number + 1), queue=name)
        simulated.vhost.delete_queue(simulated.vhost.queue(name))
    assert len(simulated.services.statistics.departures.waiting) == 1
    simulated.services.statistics.departures.write()
    simulated.services.statistics.departures.write()
    (record,) = [one for one in caplog.records if one.message == "messages left their queues"]
    assert vars(record)["count"] == 9 + sum(range(14))
    assert vars(record)["reasons"] == f"queue_deleted={sum(range(14))}, maxlen=9"
    queues = vars(record)["queues"]
    assert queues.startswith("/ q12 queue_deleted=13, ")
    assert "/ stays maxlen=9" in queues
    assert queues.count("=") == 10
    assert vars(record)["others"] == 1 + 2 + 3 + 4


def test_unroutable_messages_are_told_with_their_exchanges(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulated.send("one", "two", queue="nowhere")
    for number in range(12):
        name = f"x{number:02}"
        simulated.exchange(name)
        simulated.client.publish(name, "", *["one"] * (20 - number))
    simulated.client.channel.publish(*labelled("x00", "", "returned"), Flags(mandatory=True))
    for _ in range(2):
        simulated.services.statistics.departures.write()
    (record,) = [one for one in caplog.records if one.message == "messages left their queues"]
    count = 2 + sum(range(9, 21))
    assert vars(record)["count"] == count
    assert vars(record)["reasons"] == f"unroutable={count}"
    assert vars(record)["exchanges"].startswith("/ x00 unroutable=20, / x01 unroutable=19, ")
    assert vars(record)["others"] == 10 + 9 + 2
    assert "queues" not in vars(record)
    simulated.send("one", queue="nowhere")
    simulated.services.statistics.departures.write()
    assert vars(caplog.records[-1])["exchanges"] == "/ amq.default unroutable=1"


def test_exchanges_that_come_and_go_are_not_all_kept_for_a_line(simulated: Departing) -> None:
    log = simulated.services.statistics.departures
    for number in range(5000):
        log.unroutable("/", f"x{number}", 1)
    assert len(log._unroutable) == 1000


def test_nothing_is_told_of_what_was_acked_and_released(
    simulated: Departing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a_delay(simulated)
    assert simulated.client.get("q")
    simulated.client.ack("one")
    simulated.services.statistics.departures.write()
    assert "messages left" not in caplog.text
