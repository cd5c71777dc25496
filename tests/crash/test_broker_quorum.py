"""Quorum queues, with the power cut at every operation: whatever they confirmed is there.

A message that is not persistent is on disk as well, however it came: by a publish, through an
exchange that has other queues too, in a transaction, or as a dead letter.
"""

from __future__ import annotations

import pytest

from amqpstore import Store
from tests.crash.broker_world import World, violations


def transient_publishes() -> World:
    """Without delivery-mode and with 1; a durable classic queue beside does not keep them."""
    world = World()
    world.queue(
        "ledger",
        queue_type="quorum",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    world.queue("dead", queue_type="quorum")
    world.queue("classic")
    world.exchange("all", "fanout")
    world.bind("all", "ledger")
    world.bind("all", "classic")
    sender, client, transacted = world.client(), world.client(), world.client()
    sender.channel.select_confirms()
    transacted.channel.select_transactions()
    world.begin()
    world.step(ledger="a b")
    sender.publish("", "ledger", "a", "b", delivery_mode=None)
    world.begin_sync()
    world.step(ledger="a b c")
    sender.publish("all", "", "c", delivery_mode=1)
    world.finish_sync()
    world.step(ledger="a b c d", classic="d")
    sender.publish("all", "", "d")
    world.sync()
    assert client.get("ledger") == "a"
    world.step(ledger="b c d", dead="a:rejected@ledger*1")
    client.reject("a")
    world.promise()
    world.sync()
    transacted.publish("all", "", "e", delivery_mode=None)
    world.step(ledger="b c d e")
    transacted.commit()
    world.sync()
    return world


def test_what_a_quorum_queue_confirmed_is_there() -> None:
    assert violations(transient_publishes()) == []


def test_a_quorum_queue_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "set_keeps_transient", lambda *_, **__: None)
    assert violations(transient_publishes())
