"""A purge is undone while its time lasts, and the queue is as it was."""

from collections.abc import Iterator

import pytest

from amqpstore_server.administration.changes import AdministrationError
from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.rules.policy import Policy
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client


class PurgingBroker(SimulatedBroker):
    """A broker whose purges can be undone for a minute."""

    def open(self) -> None:
        super().open()
        self.services.purge_undo_s = 60

    def purge(self, name: str) -> int:
        count = self.vhost.queue(name).backlog.purge()
        self.settle()
        return count


@pytest.fixture
def broker() -> Iterator[PurgingBroker]:
    simulated = PurgingBroker()
    simulated.queue("orders")
    yield simulated
    simulated.store.abandon()


@pytest.fixture
def client(broker: PurgingBroker) -> Client:
    return Client(broker)


@pytest.fixture
def operator(broker: PurgingBroker) -> Operator:
    return Operator(broker)


def publish(broker: PurgingBroker, client: Client, bodies: str) -> None:
    client.publish("", "orders", *bodies)
    broker.settle()


@pytest.mark.parametrize("restart", ["", "crash", "restart"])
def test_an_undo_brings_the_messages_back_in_their_places(
    broker: PurgingBroker, client: Client, operator: Operator, restart: str
) -> None:
    publish(broker, client, "abc")
    assert client.get("orders") == "a"
    client.requeue("a")
    assert broker.purge("orders") == 3
    assert (broker.ready("orders"), broker.vhost.queue("orders").ready_count) == ([], 0)
    publish(broker, client, "d")
    if restart:
        getattr(broker, restart)()
    until = broker.now_ms + 60_000
    page = operator.page("orders")
    assert page["purges"] == [{"messages": 3, "until": until}]
    assert [row["payload"] for row in page["messages"]] == ["d"]
    assert operator.undoes_purge("orders") == {"restored": 3, "purges": []}
    assert broker.ready("orders") == ["a", "b", "c", "d"]
    assert [row["redelivered"] for row in operator.page("orders")["messages"]] == [
        True,
        False,
        False,
        False,
    ]
    broker.crash()
    assert broker.ready("orders") == ["a", "b", "c", "d"]
    with pytest.raises(AdministrationError, match="no purge of queue 'orders' can be undone"):
        operator.undoes_purge("orders")


@pytest.mark.parametrize("restarts", [False, True])
def test_when_the_time_is_up_the_messages_are_gone(
    broker: PurgingBroker, client: Client, operator: Operator, restarts: bool
) -> None:
    publish(broker, client, "abc")
    broker.purge("orders")
    broker.pass_time(59_999)
    if restarts:
        broker.crash()
    assert len(broker.store.purged) == 1
    broker.pass_time(1)
    assert not broker.store.purged
    assert not broker.store.definitions.rows("prepared")
    with pytest.raises(AdministrationError, match="can be undone"):
        operator.undoes_purge("orders")
    broker.crash()
    assert broker.ready("orders") == []


def test_purges_are_undone_one_by_one_the_last_one_first(
    broker: PurgingBroker, client: Client, operator: Operator
) -> None:
    publish(broker, client, "ab")
    broker.purge("orders")
    broker.pass_time(1000)
    publish(broker, client, "cd")
    broker.purge("orders")
    assert broker.purge("orders") == 0
    answer = operator.undoes_purge("orders")
    assert (answer["restored"], [one["messages"] for one in answer["purges"]]) == (2, [2])
    assert broker.ready("orders") == ["c", "d"]
    assert operator.undoes_purge("orders")["restored"] == 2
    assert broker.ready("orders") == ["a", "b", "c", "d"]


def test_all_priorities_are_one_purge(
    broker: PurgingBroker, client: Client, operator: Operator
) -> None:
    broker.queue("urgent", max_priority=5)
    for body, priority in (("a", 0), ("b", 5), ("c", 2)):
        client.publish("", "urgent", body, priority=priority)
    broker.settle()
    assert broker.purge("urgent") == 3
    broker.crash()
    assert operator.undoes_purge("urgent")["restored"] == 3
    assert operator.sees("urgent") == ["b", "c", "a"]


def test_limits_and_ttl_apply_to_what_comes_back(
    broker: PurgingBroker, client: Client, operator: Operator
) -> None:
    limited = broker.queue("limited", max_length=3, max_length_bytes=100)
    client.publish("", "limited", "a", "b", "c")
    broker.settle()
    broker.purge("limited")
    client.publish("", "limited", "d")
    broker.settle()
    operator.undoes_purge("limited")
    assert broker.ready("limited") == ["b", "c", "d"]
    assert limited.backlog.ready_bytes == 3
    broker.queue("brief", message_ttl=100)
    client.publish("", "brief", "x")
    broker.settle()
    broker.purge("brief")
    broker.pass_time(200)
    operator.undoes_purge("brief")
    assert broker.ready("brief") == []


def test_consumers_get_what_comes_back(
    broker: PurgingBroker, client: Client, operator: Operator
) -> None:
    publish(broker, client, "abc")
    broker.purge("orders")
    client.consume("orders", "tag")
    broker.settle()
    operator.undoes_purge("orders")
    assert client.bodies("tag") == ["a", "b", "c"]


def test_a_deleted_queue_takes_its_purges_with_it(broker: PurgingBroker, client: Client) -> None:
    publish(broker, client, "abc")
    broker.purge("orders")
    broker.vhost.delete_queue(broker.vhost.queue("orders"))
    assert not broker.store.purged
    assert not broker.store.definitions.rows("prepared")
    broker.pass_time(60_000)
    broker.restart()
    assert list(broker.store.queues) == []


def test_a_full_disk_frees_what_was_purged(
    broker: PurgingBroker,
    client: Client,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(broker, client, "abc")
    broker.purge("orders")
    broker.broker.end_purges()
    broker.settle()
    assert not broker.store.purged
    publish(broker, client, "def")
    monkeypatch.setattr(broker.store.space, "is_low", True)
    assert broker.purge("orders") == 3
    assert not broker.store.purged
    assert broker.ready("orders") == []


@pytest.mark.parametrize(
    ("argument", "policy", "is_kept"),
    [(None, None, True), (0, None, False), (None, 0, False), (5, 3600, True)],
)
def test_a_queue_and_a_policy_set_the_time(
    broker: PurgingBroker,
    client: Client,
    argument: int | None,
    policy: int | None,
    is_kept: bool,
) -> None:
    if argument is None:
        broker.queue("set")
    else:
        broker.queue("set", purge_undo_seconds=argument)
    if policy is not None:
        definition = {"purge-undo-seconds": policy}
        purge_policy = Policy("p", "^set$", "queues", 0, definition)
        broker.vhost.policy_settings.define([purge_policy], operator=False)
    client.publish("", "set", "a")
    broker.settle()
    broker.purge("set")
    assert bool(broker.store.purged) is is_kept
    if argument:
        broker.pass_time(argument * 1000)
        assert not broker.store.purged


def test_transient_messages_are_gone_at_once(
    broker: PurgingBroker, client: Client, operator: Operator
) -> None:
    client.publish("", "orders", "a", delivery_mode=1)
    publish(broker, client, "b")
    assert broker.purge("orders") == 2
    assert operator.undoes_purge("orders")["restored"] == 1
    assert broker.ready("orders") == ["b"]


def test_an_undo_takes_the_permissions_to_read_and_to_write(broker: PurgingBroker) -> None:
    for row in (
        {"configure": ".*", "write": ".*", "read": ""},
        {"configure": ".*", "write": "", "read": ".*"},
    ):
        broker.broker.define_permissions("anna", "/", row)
        anna = Operator(broker, broker.broker.access("anna", "/"))
        with pytest.raises(AccessRefusedError):
            anna.undoes_purge("orders")
