"""Rows of the broker's that it never writes: they are left out, named, and stay where they are."""

import logging
from typing import Any

import pytest

from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.logins.users import Users
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

QUEUE = {"vhost": "/", "name": "odd", "auto_delete": False, "arguments": {}}
EXCHANGE = {**QUEUE, "type": "topic", "durable": True, "internal": False}
BINDING = {
    "vhost": "/",
    "exchange": "amq.topic",
    "to": "queue",
    "name": "orders",
    "routing_key": "a.b",
    "arguments": {},
}
POLICY = {
    "vhost": "/",
    "operator": False,
    "name": "odd",
    "pattern": ".*",
    "apply_to": "all",
    "priority": 1,
    "definition": {"max-length": 1},
}
USER = {"hash": "$argon2id$", "tags": []}
IMPORTED = {"hash": b"", "algorithm": "rabbit_password_hashing_sha256"}

ODD: list[tuple[str, dict[str, Any], str, list[Any]]] = [
    ("exchanges", EXCHANGE, "vhost", [255, "gone", float("nan")]),
    ("exchanges", EXCHANGE, "name", [b"x", "x" * 300]),
    ("exchanges", EXCHANGE, "arguments", [None, [], {1: 2}]),
    ("exchanges", EXCHANGE, "type", [None]),
    ("exchanges", EXCHANGE, "internal", ["no"]),
    ("bindings", BINDING, "vhost", [{}]),
    ("bindings", BINDING, "exchange", [[]]),
    ("bindings", BINDING, "to", ["both"]),
    ("bindings", BINDING, "name", [{}]),
    ("bindings", BINDING, "routing_key", [1]),
    ("bindings", BINDING, "arguments", [None]),
    ("policies", POLICY, "vhost", ["gone"]),
    ("policies", POLICY, "operator", ["yes"]),
    ("policies", POLICY, "pattern", [1e300]),
    ("policies", POLICY, "apply_to", [{}]),
    ("policies", POLICY, "priority", ["high"]),
    ("policies", POLICY, "definition", [[]]),
    ("permissions", ALL, "configure", [1]),
    ("permissions", ALL, "read", [None]),
    ("permissions", ALL, "topic", [[], {"amq.topic": {"read": 1}}]),
    ("users", USER, "hash", [b"bytes"]),
    ("users", USER, "tags", [3]),
    ("users", IMPORTED, "hash", ["text"]),
    ("users", IMPORTED, "algorithm", ["md5"]),
]
NOTHING: list[Any] = [0, "", b"", [], {}, [[1, 2]]]
ROWS = [(table, {**row, key: value}) for table, row, key, values in ODD for value in values] + [
    (table, value)
    for table in ("exchanges", "bindings", "policies", "permissions", "users")
    for value in NOTHING
]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_that_cannot_be_used_is_left_out(
    caplog: pytest.LogCaptureFixture, table: str, row: Any
) -> None:
    simulated = SimulatedBroker()
    simulated.queue("orders")
    simulated.exchange("news")
    simulated.bind("news", "orders")
    simulated.store.definitions.define([Change(table, "key", row)])
    with caplog.at_level(logging.ERROR):
        simulated.restart()
        Users(simulated.store)
    (record,) = [one for one in caplog.records if one.msg == "definition left out"]
    assert (record.__dict__["table"], record.__dict__["key"]) == (table, "key")
    assert repr(simulated.store.definitions.rows(table)["key"]) == repr(row)
    Client(simulated).publish("news", "", "a")
    simulated.settle()
    assert simulated.ready("orders") == ["a"]


@pytest.mark.parametrize(
    "definition",
    [
        *(0, "", b"x", [], {}, {"name": "odd"}, {**QUEUE, "vhost": "gone"}, {**QUEUE, "name": []}),
        *({**QUEUE, "auto_delete": None}, {**QUEUE, "arguments": b""}, {**QUEUE, "name": "orders"}),
        {**QUEUE, "level": "x"},
        {**QUEUE, "level": 3},
        *({**QUEUE, "name": "x" * 256}, {**QUEUE, "name": "amq.letters." + "x" * 255}),
        *({**QUEUE, "kind": "unheard-of"}, {**QUEUE, "kind": 1}),
    ],
)
def test_a_queue_that_cannot_be_served_keeps_its_messages(definition: Any) -> None:
    simulated = SimulatedBroker()
    simulated.queue("orders")
    Client(simulated).publish("", "orders", "a")
    store = simulated.store
    odd = store.create_queue(definition)
    run = store.take(next(iter(store.queues.values())), 1)
    assert run
    assert not isinstance(run, Exception)
    store.publish([odd], run.messages or [])
    for _ in range(2):
        simulated.settle()
        simulated.restart()
        store = simulated.store
        assert [queue.ready_count for queue in store.queues.values()] == [1, 1]
        assert simulated.ready("orders") == ["a"]
        assert store.queues[odd.id].definition == definition


@pytest.mark.parametrize("value", [{}, -1, "9", 1 << 60, float("nan"), None])
def test_arguments_of_the_wrong_type_count_as_none(value: Any) -> None:
    simulated = SimulatedBroker()
    names = ["x-max-length", "x-message-ttl", "x-overflow", "x-max-priority", "x-queue-mode"]
    simulated.store.create_queue({**QUEUE, "arguments": dict.fromkeys(names, value)})
    simulated.restart()
    Client(simulated).publish("", "odd", "a", "b")
    simulated.settle()
    assert simulated.ready("odd") == ["a", "b"]


@pytest.mark.parametrize(
    "label", [0, {}, {"vhost": "/", "user": "me", "xid": [1, "text", b""]}, {"vhost": "gone"}]
)
def test_a_branch_that_nobody_can_name_stays_prepared(label: Any) -> None:
    simulated = SimulatedBroker()
    simulated.queue("orders")
    Client(simulated).publish("", "orders", "a")
    store = simulated.store
    queue = next(iter(store.queues.values()))
    run = store.take(queue, 1)
    assert run
    assert not isinstance(run, Exception)
    transaction = store.transaction()
    transaction.ack(queue, run)
    transaction.prepare(label)
    simulated.settle()
    simulated.restart()
    assert [one.label for one in simulated.store.prepared.values()] == [label]
    assert simulated.ready("orders") == []


def test_users_who_cannot_be_used_do_not_let_the_default_user_in() -> None:
    simulated = SimulatedBroker()
    assert Users(simulated.store).is_empty
    simulated.store.definitions.define([Change("users", "me", 0)])
    users = Users(simulated.store)
    assert not users.is_empty
    assert not users.check("me", b"")
