"""The names of the broker's own queues: they belong to a queue or an exchange, whose name can take
all of the 255 bytes that a name may have."""

from typing import Any

import pytest

from amqpstore_server.broker.rules.names import MAX_NAME_BYTES, own_name
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

LONGEST = ["x" * 255, "ä" * 127 + "x", "\N{GRINNING FACE}" * 63 + "abc", "x" * 243]


@pytest.mark.parametrize("kind", ["consumed", "letters", "delayed", "history"])
def test_a_name_is_hashed_if_it_would_be_too_long(kind: str) -> None:
    most = MAX_NAME_BYTES - len(f"amq.{kind}.")
    for character in ("x", "ä", "\N{GRINNING FACE}"):
        size = len(character.encode())
        fits = character * (most // size)
        assert own_name(kind, fits) == f"amq.{kind}.{fits}"
        hashed = own_name(kind, fits + character)
        assert len(hashed.encode()) <= MAX_NAME_BYTES
        assert hashed.startswith(f"amq.{kind}:")
        assert hashed != own_name(kind, fits + character * 2)


def test_nothing_else_has_a_name_with_a_hash() -> None:
    hashed = own_name("letters", "x" * 255)
    taken = {own_name("letters", hashed[start:]) for start in range(len(hashed))}
    assert hashed not in taken


@pytest.mark.parametrize("name", LONGEST, ids=["latin", "two", "four", "shorter"])
def test_what_a_long_name_keeps_is_there_after_a_crash(name: str) -> None:
    simulated = SimulatedBroker()
    kept: dict[str, Any] = {
        "overflow": "reject-publish",
        "dead_letter_exchange": "dlx",
        "history_length": 10,
    }
    simulated.queue(name, **kept, dead_letter_strategy="at-least-once")
    simulated.exchange(name, "x-delayed-message", x_delayed_type="fanout")
    recent = name[:-1] + "r"
    simulated.exchange(recent, "x-recent-history")
    client = Client(simulated)
    client.publish("", name, "consumed", "dies")
    client.publish(name, "", "later", headers={"x-delay": 100})
    client.publish(recent, "", "recent")
    simulated.settle()
    for body, settle in (("consumed", client.ack), ("dies", client.reject)):
        assert client.get(name) == body
        settle(body)
    simulated.settle()
    for _ in range(2):
        simulated.crash()
        assert {each for each in simulated.vhost.queues if len(each.encode()) > 255} == set()
        for kind, body in (
            ("consumed", "consumed"),
            ("letters", "dies"),
            ("delayed", "later"),
            ("history", "recent"),
        ):
            assert simulated.ready(own_name(kind, recent if kind == "history" else name)) == [body]
    simulated.exchange("dlx")
    simulated.queue("to")
    simulated.bind("dlx", "to", name)
    simulated.queue("now")
    simulated.bind(name, "now")
    simulated.bind(recent, "now")
    Client(simulated).publish("amq.replay", name, "", headers={"x-replay-to": "now"})
    simulated.settle()
    simulated.pass_time(200)
    assert simulated.ready("to") == ["dies"]
    assert sorted(simulated.ready("now")) == ["consumed", "later", "recent"]
    simulated.vhost.delete_queue(simulated.vhost.queue(name))
    for exchange in (name, recent):
        simulated.vhost.exchange_definitions.delete(exchange, if_unused=False)
    simulated.settle()
    assert [each for each in simulated.vhost.queues if each.startswith("amq.")] == []


@pytest.mark.parametrize("name", LONGEST, ids=["latin", "two", "four", "shorter"])
def test_what_older_versions_stored_under_a_longer_name_is_served(name: str) -> None:
    simulated = SimulatedBroker()
    simulated.queue("source")
    simulated.queue(name, durable=True)
    Client(simulated).publish("", "source", "a")
    store = simulated.store
    long: dict[str, Any] = {"vhost": "/", "name": f"amq.consumed.{name}"}
    rows = [
        {**long, "auto_delete": False, "arguments": {}, "kind": "consumed"},
        {**long, "level": 5},
        # At each start in which its row was left out, there was a new one.
        {**long, "level": 5},
        {**long, "auto_delete": False, "arguments": {}, "kind": "consumed"},
    ]
    run = store.take(next(iter(store.queues.values())), 1)
    assert run
    assert not isinstance(run, Exception)
    for row in rows:
        store.publish([store.create_queue(row)], run.messages or [])
    simulated.restart()
    assert simulated.ready(own_name("consumed", name)) == ["a", "a"]
    assert [queue.definition for queue in simulated.store.queues.values()][-4:] == rows
