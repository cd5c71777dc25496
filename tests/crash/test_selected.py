"""An operator moves, deletes and replays messages, and the power is cut at every operation of it.

After any crash each message is in exactly one place, in order (I4, I6, I7), and once the operator
was answered, it is where the answer said (I5).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore import Options
from amqpstore_server.administration.messages import Replaying, Selecting
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.messages.filters import MessageFilter
from amqpstore_server.broker.transactions import selected
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.simulated_broker import SimulatedBroker, reject_until
from tests.small_limits import small_limits
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client

OPTIONS = Options(
    segment_bytes=2500,
    memory_bytes=300,
    checkpoint_bytes=1500,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    least_free_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
LIMITS = BROKER_LIMITS._replace(max_selected=3)
COUNT = 8
ALL = Selecting(filter=MessageFilter())

Events = list[Operation | str]


def opened(disk: MemoryFiles | None = None) -> SimulatedBroker:
    return SimulatedBroker(options=OPTIONS, limits=LIMITS, disk=disk)


def work(simulated: SimulatedBroker, kind: str) -> Work[dict[str, Any]]:
    messages = Operator(simulated).messages
    source, target = messages.queue("/", "source"), messages.queue("/", "target")
    if kind == "move":
        return messages.move("/", source, target, ALL)
    if kind == "delete":
        return messages.delete("/", source, Selecting(positions=list(range(1, COUNT))))
    return messages.replay("/", source, Replaying(filter=MessageFilter()))


def history(kind: str) -> tuple[MemoryFiles, Events]:
    """Fill the queues, and have the work done. Returns the disk before it."""
    simulated = opened()
    simulated.queue("target", dead_letter_exchange="", dead_letter_routing_key="source")
    simulated.queue("source")
    client = Client(simulated)
    for number in range(COUNT):
        client.publish("", "target", f"{number} " + "the same " * 20, message_id=str(number))
    simulated.settle()
    while client.get("target"):
        reject_until(client.channel, 0, requeue=False)
    simulated.settle()
    simulated.restart()
    base = simulated.disk.fork()
    events: Events = []
    simulated.disk.record = events.append
    steps = work(simulated, kind)
    while next(steps, "done") != "done":
        simulated.settle()
    events.append("answered")
    simulated.settle()
    simulated.disk.record = None
    simulated.store.abandon()
    return base, events


def violations(kind: str) -> Iterator[str]:
    disk, events = history(kind)
    is_answered = False
    rng = random.Random(kind)
    assert "answered" in events
    for event in events:
        if isinstance(event, str):
            is_answered = True
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 8):
            simulated = opened(image.files)
            source, target = (
                [int(body.split()[0]) for body in simulated.ready(name)]
                for name in ("source", "target")
            )
            simulated.store.abandon()
            gone = COUNT - len(source) if kind == "delete" else len(target)
            if source != list(range(gone, COUNT)):
                yield f"I6, I7 at {event} ({image.description}): {source}, {target}"
            if kind != "delete" and target != list(range(gone)):
                yield f"I4, I6 at {event} ({image.description}): {source}, {target}"
            if is_answered and gone < (COUNT - 1 if kind == "delete" else COUNT):
                yield f"I5 at {event} ({image.description}): {source}, {target}"


@pytest.mark.parametrize("kind", ["move", "delete", "replay"])
def test_every_message_is_in_exactly_one_place(kind: str) -> None:
    assert list(violations(kind)) == []


def test_an_answer_before_the_disk_has_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(_services: object) -> Iterator[None]:
        yield from ()

    monkeypatch.setattr(selected, "durable", at_once)
    assert any(found.startswith("I5") for found in violations("delete"))


def test_a_copy_and_a_deletion_are_not_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_two(services: Any, queue: Any, target: Any, piece: Any, handled: Any) -> None:
        messages = [one.message for one in piece]
        selected._copy(services, target, messages, handled)
        services.flush()
        for taken, _ in selected.take(queue, piece):
            services.store.ack(*taken)

    monkeypatch.setattr(selected, "_move", in_two)
    assert any("I7" in found for found in violations("move"))
