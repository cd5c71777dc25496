"""Messages of a queue are moved, copied and deleted by selection, and what is unacked stays."""

from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore_server.administration.changes import AdministrationError
from amqpstore_server.administration.messages import Selecting
from amqpstore_server.broker.errors import AccessRefusedError, ResourceLockedError
from amqpstore_server.broker.messages.filters import MessageFilter
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client

ALL: dict[str, Any] = {}


@pytest.fixture
def broker() -> Iterator[SimulatedBroker]:
    simulated = SimulatedBroker()
    simulated.queue("orders")
    simulated.queue("other")
    yield simulated
    simulated.store.abandon()


@pytest.fixture
def client(broker: SimulatedBroker) -> Client:
    return Client(broker)


@pytest.fixture
def operator(broker: SimulatedBroker) -> Operator:
    return Operator(broker)


def published(broker: SimulatedBroker, client: Client, count: int) -> list[str]:
    bodies = [str(number) for number in range(count)]
    for body in bodies:
        client.publish("", "orders", body, message_id=body)
    broker.settle()
    return bodies


def test_a_move_of_everything_keeps_the_order_and_survives_a_crash(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    bodies = published(broker, client, 1200)
    assert operator.moves("orders", "other", filter=ALL) == {
        "moved": 1200,
        "left": {},
        "stopped": "",
    }
    assert (broker.ready("orders"), broker.ready("other")) == ([], bodies)
    broker.crash()
    assert (broker.ready("orders"), broker.ready("other")) == ([], bodies)


def test_positions_a_filter_and_a_limit_select(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    published(broker, client, 10)
    assert operator.moves("orders", "other", positions=[9, "2", 2, 400, "7:1"])["moved"] == 2
    assert broker.ready("other") == ["1", "8"]
    wanted = {"properties": {"message_id": {"pattern": "[3-9]"}}}
    assert operator.moves("orders", "other", filter=wanted, limit=2)["moved"] == 2
    assert broker.ready("other") == ["1", "8", "3", "4"]
    assert operator.moves("orders", "other", filter=wanted, positions=[1, 6])["moved"] == 1
    assert broker.ready("other") == ["1", "8", "3", "4", "5"]
    assert broker.ready("orders") == ["0", "2", "6", "7", "9"]


def test_copies_leave_the_messages_where_they_are(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    published(broker, client, 3)
    assert operator.moves("orders", "other", copies=True, filter=ALL)["copied"] == 3
    assert operator.moves("orders", "orders", copies=True, positions=[2])["copied"] == 1
    assert operator.moves("orders", "orders", copies=True, filter=ALL)["copied"] == 4
    assert broker.ready("other") == ["0", "1", "2"]
    assert broker.ready("orders") == ["0", "1", "2", "1", "0", "1", "2", "1"]


def test_unacked_messages_are_not_moved_and_not_deleted(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    published(broker, client, 5)
    assert client.get("orders") == "0"
    assert operator.moves("orders", "other", positions=[1, 2])["moved"] == 1
    assert operator.deletes("orders", positions=[1, 3])["deleted"] == 1
    assert broker.ready("orders") == ["3", "4"]
    client.requeue("0")
    broker.settle()
    assert broker.ready("orders") == ["0", "3", "4"]


def test_what_arrives_after_the_request_is_not_selected(
    broker: SimulatedBroker, client: Client
) -> None:
    published(broker, client, 1000)
    messages = Operator(broker).messages
    source, target = messages.queue("/", "orders"), messages.queue("/", "other")
    work = messages.move("/", source, target, Selecting(filter=MessageFilter()))
    next(work)
    client.publish("", "orders", "late")
    answer: dict[str, Any] = {}
    while True:
        try:
            next(work)
            broker.settle()
        except StopIteration as end:
            answer = end.value
            break
    assert answer["moved"] == 1000
    assert broker.ready("orders") == ["late"]


def test_a_move_stops_when_the_target_is_full(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("small", max_length=4, overflow="reject-publish")
    published(broker, client, 10)
    answer = operator.moves("orders", "small", filter=ALL)
    assert (answer["moved"], answer["stopped"]) == (4, "queue 'small' is full")
    assert broker.ready("small") == ["0", "1", "2", "3"]
    assert broker.ready("orders") == ["4", "5", "6", "7", "8", "9"]
    # Messages that differ in what a queue reads count for each other, too.
    broker.queue("mixed", max_length=3, overflow="reject-publish")
    for priority in range(5):
        client.publish("", "other", str(priority), priority=priority)
    broker.settle()
    assert operator.moves("other", "mixed", filter=ALL)["moved"] == 3
    assert broker.ready("other") == ["3", "4"]


def test_limits_and_ttl_of_the_target_apply(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("dropping", max_length=2)
    broker.queue("brief", message_ttl=50)
    published(broker, client, 5)
    assert operator.moves("orders", "dropping", copies=True, filter=ALL)["copied"] == 5
    assert broker.ready("dropping") == ["3", "4"]
    operator.moves("orders", "brief", filter=ALL)
    broker.pass_time(49)
    assert len(broker.ready("brief")) == 5
    broker.pass_time(2)
    assert broker.ready("brief") == []


def test_a_full_disk_refuses_a_move_and_loses_nothing(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    published(broker, client, 5)
    broker.fill_disk()
    assert operator.moves("orders", "other", filter=ALL)["stopped"] == "the disk is full"
    assert broker.ready("orders") == ["0", "1", "2", "3", "4"]
    assert operator.deletes("orders", positions=[1, 2]) == {
        "deleted": 2,
        "left": {},
        "stopped": "",
    }
    broker.free_disk()
    assert operator.moves("orders", "other", filter=ALL)["moved"] == 3
    assert broker.ready("other") == ["2", "3", "4"]


def test_priorities_go_with_the_messages(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("first", max_priority=5)
    broker.queue("second", max_priority=3)
    for body, priority in (("a", 0), ("b", 5), ("c", 2)):
        client.publish("", "first", body, priority=priority)
    broker.settle()
    assert operator.moves("first", "second", filter=ALL)["moved"] == 3
    assert operator.sees("second") == ["b", "c", "a"]


def test_deleted_messages_are_gone_for_good(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("letters")
    broker.queue("dying", dead_letter_exchange="", dead_letter_routing_key="letters")
    for body in "abcd":
        client.publish("", "dying", body)
    broker.settle()
    assert operator.deletes("dying", filter={"body": {"pattern": "[bd]"}})["deleted"] == 2
    broker.crash()
    assert (broker.ready("dying"), broker.ready("letters")) == (["a", "c"], [])


def test_the_bytes_of_a_limited_queue_are_counted_right(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    limited = broker.queue("limited", max_length_bytes=100)
    client.publish("", "limited", *["x" * 10] * 10)
    broker.settle()
    operator.deletes("limited", positions=[1, 5])
    assert limited.backlog.ready_bytes == 80
    operator.moves("limited", "other", positions=[2])
    assert limited.backlog.ready_bytes == 70
    operator.moves("other", "limited", filter=ALL)
    assert limited.backlog.ready_bytes == 80


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "positions or a filter have to be given"),
        ({"filter": ALL, "limit": 0}, "invalid limit"),
        ({"positions": [1] * 10_001}, "more than 10,000 positions"),
    ],
)
def test_a_selection_says_what_it_selects(
    operator: Operator, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(AdministrationError, match=said):
        operator.moves("orders", "other", **asked)
    with pytest.raises(AdministrationError, match=said):
        operator.deletes("orders", **asked)


def test_a_queue_is_not_moved_to_itself(operator: Operator) -> None:
    with pytest.raises(AdministrationError, match="is the target as well"):
        operator.moves("orders", "orders", filter=ALL)


def test_exclusive_queues_are_their_connections(
    broker: SimulatedBroker, operator: Operator
) -> None:
    broker.vhost.declare_queue(
        "mine", durable=False, exclusive=True, auto_delete=False, arguments={}, connection=object()
    )
    assert operator.sees("mine") == []
    with pytest.raises(ResourceLockedError):
        operator.moves("mine", "other", filter=ALL)
    with pytest.raises(ResourceLockedError):
        operator.moves("orders", "mine", filter=ALL)
    with pytest.raises(ResourceLockedError):
        operator.deletes("mine", filter=ALL)


@pytest.mark.parametrize(
    ("write", "read", "said"),
    [(".*", "^other$", "read access to queue 'orders'"), ("^orders$", ".*", "write access")],
)
def test_moves_take_the_right_to_read_one_queue_and_to_write_to_the_other(
    broker: SimulatedBroker, write: str, read: str, said: str
) -> None:
    row = {"configure": "", "write": write, "read": read}
    broker.broker.define_permissions("anna", "/", row)
    anna = Operator(broker, broker.broker.access("anna", "/"))
    with pytest.raises(AccessRefusedError, match=said):
        anna.moves("orders", "other", filter=ALL)
    if read != ".*":
        with pytest.raises(AccessRefusedError, match=said):
            anna.deletes("orders", filter=ALL)
