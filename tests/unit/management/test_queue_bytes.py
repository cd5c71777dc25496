"""Amounts of messages and bytes that the API tells of a queue equal a recount, at any moment."""

import random
from collections.abc import Iterator

import pytest

from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.management.queue_bytes import amount_reader, amounts
from amqpstore_server.metrics.objects import GROUPS
from tests.fuzz.simulated import SimulatedServer
from tests.simulated_broker import OPTIONS
from tests.unit.broker.simulated import Client


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    # Bodies leave memory soon, and index files have few entries.
    with SimulatedServer(options=OPTIONS._replace(memory_bytes=4_000)) as made:
        yield made


def ready_bodies(server: SimulatedServer, queue: Queue) -> list[str]:
    """Return what is ready, from memory or from disk."""
    return [
        message.body.decode()
        for one in queue.priorities
        for part in server.store.stored.browse(one)
        for message in part
    ]


def sizes(bodies: list[str]) -> tuple[int, int]:
    return len(bodies), sum(map(len, bodies))


def check(server: SimulatedServer, queue: Queue, unacked: list[str]) -> None:
    """Compare what is told with a recount. The first letter of a body says whether it survives."""
    figures = amounts(queue)
    ready = ready_bodies(server, queue)
    count, size = sizes([*ready, *unacked])
    assert queue.ready_count + queue.unacked_count == count
    assert figures["message_bytes"] == size
    assert figures["message_bytes_ready"] == sizes(ready)[1]
    assert figures["message_bytes_unacknowledged"] == sizes(unacked)[1]
    persistent = sizes([body for body in [*ready, *unacked] if body[0] == "p"])
    assert (figures["messages_persistent"], figures["message_bytes_persistent"]) == persistent
    in_memory = [
        len(message.body)
        for one in queue.priorities
        for run in one.ready
        for message in run.messages or ()
    ]
    assert figures["messages_ready_ram"] == len(in_memory)
    assert figures["messages_ram"] == len(in_memory) + figures["messages_unacknowledged_ram"]
    assert 0 <= figures["messages_unacknowledged_ram"] <= len(unacked)
    assert figures["messages_ram"] + figures["messages_paged_out"] == count
    assert figures["message_bytes_ram"] + figures["message_bytes_paged_out"] == size
    for name, value in figures.items():
        read = amount_reader(name)
        assert read is not None
        assert read(queue) == value
    group = GROUPS["queue_metrics"]
    metrics = dict(zip(group.metrics, group.values(queue), strict=True))
    assert metrics["queue_process_memory_bytes"] >= figures["message_bytes_ram"]
    assert metrics["queue_messages_bytes"] == size
    assert metrics["queue_messages_persistent"] == persistent[0]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_is_what_a_recount_finds(server: SimulatedServer, seed: int) -> None:
    rng = random.Random(seed)
    arguments = rng.choice(
        [{}, {"x-max-priority": 3}, {"x-max-length": 30}, {"x-message-ttl": 900}]
    )
    queue = server.queue("q", arguments=arguments)
    client = Client(server)
    number = 0
    unacked: list[str] = []
    for _ in range(120):
        way = rng.randrange(12)
        if way < 4:
            kind = rng.choice("ppt")
            bodies = [f"{kind}{number + at} " + "x" * rng.randrange(90) for at in range(7)]
            number += 7
            properties = {"delivery_mode": 2 if kind == "p" else 1, "priority": rng.randrange(4)}
            client.publish("", "q", *bodies, **properties)
        elif way < 7:
            got = [client.get("q") for _ in range(rng.randrange(5))]
            unacked += [body for body in got if body is not None]
        elif way < 9 and unacked:
            body = unacked.pop(rng.randrange(len(unacked)))
            rng.choice([client.ack, client.requeue, client.reject])(body)
        elif way == 9:
            server.store.upkeep.checkpoint()
        elif way == 10 and rng.random() < 0.4:
            queue.backlog.purge()
        else:
            server.pass_time(rng.choice([10, 1000]))
        server.settle()
        check(server, queue, unacked)
    kept = [body for body in [*ready_bodies(server, queue), *unacked] if body[0] == "p"]
    client.channel.close()
    server.settle()
    server.restart()
    queue = server.vhost.queue("q")
    if seed % 4 < 2:  # no limit drops any of them
        assert sorted(ready_bodies(server, queue)) == sorted(kept)
    check(server, queue, [])


def test_a_backlog_on_disk_is_told_without_reading_it(server: SimulatedServer) -> None:
    queue = server.queue("q")
    client = Client(server)
    for _ in range(20):
        client.publish("", "q", *["x" * 1000] * 50)
    server.settle()
    server.store.upkeep.checkpoint()
    server.settle()
    assert amounts(queue)["message_bytes"] == 1_000_000
    assert amounts(queue)["message_bytes_ram"] < 10_000
    server.restart()
    queue = server.vhost.queue("q")
    before = server.store.log.measures.read_messages
    assert amounts(queue)["message_bytes"] == 1_000_000
    assert amounts(queue)["messages_ram"] == 0
    assert server.store.log.measures.read_messages == before


def test_another_name_is_none_of_these() -> None:
    assert amount_reader("messages") is None
