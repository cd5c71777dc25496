"""The many bindings of what is deleted go in steps, and clients see none of them in between."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest

from amqpstore import DiskFullError
from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.definitions.removals import Unbinding
from amqpstore_server.broker.errors import NotFoundError
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.frames import method_frame
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

LIMIT = 10
BINDINGS = 95
LIMITS = BROKER_LIMITS._replace(max_unbound=LIMIT)

Delete = Callable[[SimulatedBroker], object]

DELETES: dict[str, Delete] = {
    "queue": lambda simulated: simulated.vhost.delete_queue(simulated.vhost.queue("q")),
    "exchange": lambda simulated: simulated.vhost.exchange_definitions.delete("x", if_unused=False),
}
TYPES = [
    "direct",
    "topic",
    "headers",
    "fanout",
    "x-random",
    "x-consistent-hash",
    "x-delayed-message",
]


def bound(simulated: SimulatedBroker, kind: str = "topic") -> Exchange:
    """An exchange with many bindings to a queue, and one to another."""
    arguments = {"x_delayed_type": "topic"} if kind == "x-delayed-message" else {}
    simulated.exchange("x", kind, **arguments)
    simulated.queue("q")
    simulated.queue("other")
    for number in range(BINDINGS):
        simulated.bind("x", "q", "1", n=number)
    simulated.bind("x", "other", "1")
    return simulated.vhost.exchange("x")


@pytest.fixture
def simulated() -> SimulatedBroker:
    return SimulatedBroker(limits=LIMITS)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of the rows of bindings that were removed at once."""
    found: list[int] = []
    take = Unbinding.take

    def noting(self: Unbinding) -> list[Change]:
        changes = take(self)
        found.append(len(changes))
        return changes

    monkeypatch.setattr(Unbinding, "take", noting)
    return found


def rows(simulated: SimulatedBroker) -> int:
    """Return how many bindings the catalog has."""
    return len(simulated.store.definitions.rows("bindings"))


@pytest.mark.parametrize("delete", DELETES)
def test_bindings_are_removed_in_steps(simulated: SimulatedBroker, delete: str) -> None:
    bound(simulated)
    DELETES[delete](simulated)
    count = BINDINGS + 1
    left = 1 if delete == "queue" else 0
    while count > left:
        count = max(count - LIMIT, left)
        assert rows(simulated) == count
        simulated.broker.pumping.pump()
    assert not simulated.broker.pumping.has_work
    assert not simulated.vhost.removals.queues | simulated.vhost.removals.exchanges


@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_routed_to_what_is_deleted(simulated: SimulatedBroker, kind: str) -> None:
    exchange = bound(simulated, kind)
    DELETES["queue"](simulated)
    assert [one.destination.name for one in exchange.bindings] == ["other"]
    client = Client(simulated)
    while simulated.broker.pumping.has_work:
        for key in "123456789":
            client.publish("x", "1", key)
        simulated.broker.pumping.pump()
    simulated.settle()
    assert set(simulated.ready("other")) == set("123456789")
    assert len(simulated.ready("other")) % 9 == 0


def test_nothing_is_routed_through_a_deleted_exchange(simulated: SimulatedBroker) -> None:
    bound(simulated)
    simulated.exchange("source", "direct")
    for number in range(BINDINGS):
        simulated.vhost.bindings.bind(simulated.vhost.exchange("x"), "source", "1", {"n": number})
    DELETES["exchange"](simulated)
    simulated.vhost.router.changed()
    Client(simulated).publish("source", "1", "a")
    simulated.settle()
    assert (simulated.ready("q"), simulated.ready("other")) == ([], [])
    simulated.vhost.exchange_definitions.declare(
        "x", "topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    Client(simulated).publish("source", "1", "b")
    simulated.settle()
    simulated.crash()
    assert (simulated.ready("q"), simulated.ready("other")) == ([], [])
    assert simulated.vhost.exchange("source").bindings == []


@pytest.mark.parametrize("delete", DELETES)
@pytest.mark.parametrize("turns", range(0, 11, 2))
def test_after_a_crash_it_is_deleted_with_all_its_bindings(
    simulated: SimulatedBroker, delete: str, turns: int
) -> None:
    bound(simulated)
    DELETES[delete](simulated)
    for _ in range(turns):
        simulated.broker.pumping.pump()
    simulated.crash()
    left = 1 if delete == "queue" else 0
    assert rows(simulated) == left
    declared_again(simulated, delete)
    simulated.crash()
    assert sum(len(one.bindings) for one in simulated.vhost.exchanges.values()) == left


def declared_again(simulated: SimulatedBroker, deleted: str) -> None:
    if deleted == "queue":
        simulated.queue("q")
    else:
        simulated.exchange("x", "topic")


@pytest.mark.parametrize("delete", DELETES)
def test_who_declares_the_name_again_gets_no_old_binding(
    simulated: SimulatedBroker, delete: str
) -> None:
    bound(simulated)
    DELETES[delete](simulated)
    declared_again(simulated, delete)
    simulated.bind("x", "q", "1", n=0)  # as one of those that were deleted
    simulated.work()
    simulated.crash()
    left = 2 if delete == "queue" else 1
    assert len(simulated.vhost.exchange("x").bindings) == left


def test_what_was_left_out_at_the_start_keeps_its_bindings(
    simulated: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    bound(simulated)
    made = simulated.make_services

    def without_topics() -> BrokerServices:
        services = made()
        kept = {name: one for name, one in services.exchange_types.items() if name != "topic"}
        services.exchange_types = kept
        return services

    simulated.make_services = without_topics  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        simulated.restart()
    assert "x" not in simulated.vhost.exchanges
    assert rows(simulated) == BINDINGS + 1


def test_bindings_wait_while_the_disk_is_full(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(simulated)
    DELETES["queue"](simulated)

    def full(*_: object) -> None:
        raise DiskFullError("disk", 0, 0)

    with monkeypatch.context() as patch:
        patch.setattr(simulated.store.definitions, "define", full)
        simulated.work()
        assert not simulated.broker.pumping.has_work
        with pytest.raises(DiskFullError):
            simulated.queue("q")
    simulated.pass_time(1000)
    assert rows(simulated) == 1


def test_a_declare_waits_its_turns_and_its_channel_with_it(taken: list[int]) -> None:
    with SimulatedServer() as server:
        server.services.limits = LIMITS
        bound(server)
        client = SimulatedClient.opened(server, channels=1)
        declare = methods.QueueDeclare(queue="q", durable=True)
        bind = methods.QueueBind(queue="q", exchange="x", routing_key="1")
        asked = [methods.QueueDelete(queue="q"), declare, bind]
        read = b"".join(method_frame(1, method.encode()) for method in asked)
        client.connection.receive(read, server.now_s)
        assert taken == [LIMIT]
        client.connection.go_on(server.now_s)
        assert taken == [LIMIT] * 2
        assert client.connection.is_input_paused
        server.settle()
        assert [type(one.method) for one in client.answers] == [
            methods.QueueDeleteOk,
            methods.QueueDeclareOk,
            methods.QueueBindOk,
        ]
        assert (max(taken), sum(taken)) == (LIMIT, BINDINGS)
        server.crash()
        assert len(server.vhost.exchange("x").bindings) == 2


def test_a_type_whose_bindings_depend_on_each_other_forgets_them_at_once(
    simulated: SimulatedBroker,
) -> None:
    exchange = bound(simulated, "x-random")
    DELETES["queue"](simulated)
    for _ in range(100):
        (found,) = exchange.route("1", BasicProperties())
        assert found.name == "other"


def test_a_virtual_host_is_deleted_with_what_is_left_of_bindings(
    simulated: SimulatedBroker,
) -> None:
    bound(simulated)
    DELETES["queue"](simulated)
    simulated.broker.begin_deleting("/")
    for _ in simulated.broker.deleting_vhost("/"):
        pass
    assert rows(simulated) == 0


@contextlib.contextmanager
def without_room(simulated: SimulatedBroker) -> Iterator[None]:
    """Have the disk refuse whatever is deleted or defined."""

    def full(*_: object, **__: object) -> None:
        raise DiskFullError("disk", 0, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated.store.definitions, "define", full)
        patch.setattr(simulated.store, "delete_queue", full)
        yield


@pytest.mark.parametrize("delete", DELETES)
def test_the_bindings_of_a_refused_deletion_do_not_come_back(
    simulated: SimulatedBroker, delete: str
) -> None:
    bound(simulated)
    client = Client(simulated)
    client.publish("x", "1", "before")
    with without_room(simulated), pytest.raises(DiskFullError):
        DELETES[delete](simulated)
    with contextlib.nullcontext() if delete == "queue" else pytest.raises(NotFoundError):
        client.publish("x", "1", "after")
    if delete == "queue":
        simulated.bind("x", "q", "1", n=0)  # as one of those that are gone
    simulated.pass_time(1000)
    simulated.crash()
    assert ("x" in simulated.vhost.exchanges) == (delete == "queue")
    assert rows(simulated) == (2 if delete == "queue" else 0)


def test_an_exchange_that_went_with_its_last_binding_does_not_come_back(
    simulated: SimulatedBroker,
) -> None:
    vhost = simulated.vhost
    vhost.exchange_definitions.declare(
        "x", "direct", durable=True, auto_delete=True, internal=False, arguments={}
    )
    queue = simulated.queue("q")
    simulated.bind("x", "q", "1")
    with without_room(simulated), pytest.raises(DiskFullError):
        vhost.bindings.unbind(queue, "x", "1", {})
    assert "x" not in vhost.exchanges
    simulated.pass_time(1000)
    simulated.crash()
    assert "x" not in simulated.vhost.exchanges
    assert rows(simulated) == 0
