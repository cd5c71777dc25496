"""Dead letters that are delivered at least once, with the power cut at every operation.

A letter is in the queue it died in, among its letters, or in all of its targets (P4): nowhere else,
and never in some of them only.
"""

from typing import Any

import pytest

from amqpstore import Store
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.letters import LettersQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Transaction
from tests.crash.broker_world import World, violations


def kept() -> World:
    """Dead letters that go at least once: without a route, then with one, and with a full target;
    through a restart, in a transaction, and deleted with their queue.
    """
    world = World()
    at_least_once: dict[str, Any] = {
        "overflow": "reject-publish",
        "dead_letter_strategy": "at-least-once",
    }
    world.exchange("dlx", "fanout")
    world.queue("work", delivery_limit=1, dead_letter_exchange="dlx", **at_least_once)
    world.queue("dead")
    world.queue("small", max_length=1, overflow="reject-publish")
    client, transacted = world.client(), world.client()
    transacted.channel.select_transactions()
    world.begin()
    world.step(work="a b c d e")
    client.publish("", "work", "a", "b", "c", "d", "e")
    world.promise()
    world.sync()
    client.get("work")
    world.sync()
    world.step(work="b c d e", amq__letters__work="a")
    client.reject("a")
    world.promise()
    world.sync()
    for _ in range(2):
        assert client.get("work") == "b"
        world.sync()
        if _ == 0:
            client.requeue("b")
    world.step(work="c d e", amq__letters__work="a b")
    client.requeue("b")
    world.promise()
    world.restart()
    client, transacted = world.client(), world.client()
    transacted.channel.select_transactions()
    transacted.get("work")
    world.sync()
    world.step(work="d e", amq__letters__work="a b c")
    transacted.reject("c")
    transacted.commit()
    world.sync()
    # There is a route, and then another one to a queue that is full soon.
    world.bind("dlx", "dead")
    gone = "a:rejected@work*1 b:delivery_limit@work*1 c:rejected@work*1"
    world.step(amq__letters__work="", dead=gone)
    world.pass_time(100)
    world.promise()
    world.sync()
    world.bind("dlx", "small")
    world.sync()
    client.get("work")
    world.sync()
    world.step(work="e", amq__letters__work="d")
    client.reject("d")
    world.step(amq__letters__work="", dead=f"{gone} d:rejected@work*1", small="d:rejected@work*1")
    world.sync()
    client.get("work")
    world.sync()
    world.step(work="", amq__letters__work="e")
    client.reject("e")
    world.sync()
    client.get("small")
    world.step(small="")
    client.ack("d")
    world.sync()
    world.step(
        amq__letters__work="",
        dead=f"{gone} d:rejected@work*1 e:rejected@work*1",
        small="e:rejected@work*1",
    )
    world.pass_time(1000)
    world.sync()
    world.step(work="f")
    client.publish("", "work", "f")
    world.sync()
    client.get("work")
    world.sync()
    world.step(work="", amq__letters__work="f")
    client.reject("f")
    world.sync()
    world.step(amq__letters__work="")
    world.vhost.delete_queue(world.vhost.queue("work"))
    world.promise()
    world.sync()
    return world


def test_a_letter_is_in_exactly_one_place_or_in_all_of_its_targets() -> None:
    assert violations(kept()) == []


# Broken copies.


def letters_are_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """Let dead letters wait in a transient queue: they are gone from their queue, and a crash loses
    them.
    """
    create_queue = Store.create_queue

    def created(self: Store, definition: Any, *, durable: bool, **options: Any) -> object:
        is_letters = definition.get("kind") == LettersQueue.kind
        return create_queue(self, definition, durable=durable and not is_letters, **options)

    patch.setattr(Store, "create_queue", created)


def letters_stay_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """Do not ack letters that are published on."""
    ack = Transaction.ack

    def acked(self: Transaction, queue: Queue, taken: Taken) -> None:
        if not isinstance(queue, LettersQueue):
            ack(self, queue, taken)

    patch.setattr(Transaction, "ack", acked)


@pytest.mark.parametrize("bug", [letters_are_in_memory_only, letters_stay_where_they_were])
def test_a_bug_is_caught(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert any(one.startswith("in pieces") for one in violations(kept(), until="in pieces"))
