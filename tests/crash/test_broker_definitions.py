"""Definitions that one read brought, with the power cut at every operation.

They are committed together, and answered when that is done: so what was answered is there, in the
order in which it was asked, and so is what was published to a queue of the same read.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from amqpstore.log.grouped_definitions import GroupedDefinitions
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.simulated_broker import SimulatedBroker

Found = tuple[frozenset[str], frozenset[tuple[str, str]]]
"""The queues, and the bindings to `amq.topic` by queue and key."""

_ANSWERS = (
    methods.QueueDeclareOk,
    methods.QueueBindOk,
    methods.QueueUnbindOk,
    methods.QueueDeleteOk,
)
_IMAGES = 6


class Answered(NamedTuple):
    """The client was told that this many of the methods are done, and whether of its message."""

    done: int
    is_confirmed: bool


class Told(SimulatedClient):
    """A client; what it hears is noted among the operations of the disk."""

    events: list[Operation | Answered]

    def take_output(self) -> bool:
        took = super().take_output()
        kinds = [type(answer.method) for answer in self.answers]
        done = sum(kind in _ANSWERS for kind in kinds)
        if self.server.disk.record is not None:
            self.events.append(Answered(done, methods.BasicAck in kinds))
        return took


def history() -> list[methods.Method | None]:
    """Return what is asked, in one write; None is a persistent message to queue `c-3`."""
    names = [f"c-{number}" for number in range(6)]
    asked: list[methods.Method | None] = [
        methods.QueueDeclare(queue=name, durable=True) for name in names
    ]
    asked += [_binding(methods.QueueBind, name) for name in names]
    asked.append(None)
    asked += [methods.QueueDelete(queue=name) for name in names[:2]]
    asked += [_binding(methods.QueueUnbind, name) for name in names[2:3]]
    return asked


LAST = methods.QueueDeclare(queue="c-0", durable=True)
"""Asked in a write of its own: no batch follows it."""


def _binding(
    kind: type[methods.QueueBind | methods.QueueUnbind], name: str
) -> methods.QueueBind | methods.QueueUnbind:
    return kind(queue=name, exchange="amq.topic", routing_key=f"{name}.#", arguments={})


def states(asked: list[methods.Method | None]) -> list[Found]:
    """Return what there is after none of the methods, after the first, and so on."""
    queues: set[str] = set()
    bindings: set[tuple[str, str]] = set()
    found: list[Found] = [(frozenset(), frozenset())]
    for method in asked:
        match method:
            case methods.QueueDeclare():
                queues.add(method.queue)
            case methods.QueueBind():
                bindings.add((method.queue, method.routing_key))
            case methods.QueueUnbind():
                bindings.remove((method.queue, method.routing_key))
            case methods.QueueDelete():
                queues.remove(method.queue)
                bindings = {one for one in bindings if one[0] != method.queue}
            case _:
                continue
        found.append((frozenset(queues), frozenset(bindings)))
    return found


def octets_of(asked: list[methods.Method | None]) -> bytes:
    return b"".join(
        method_frame(1, method.encode()) if method is not None else _message() for method in asked
    )


def _message() -> bytes:
    publish = methods.BasicPublish(exchange="", routing_key="c-3")
    header = encode_content_header(60, 4, encode_properties(BasicProperties(delivery_mode=2)))
    frames = [method_frame(1, publish.encode()), header_frame(1, header)]
    return b"".join([*frames, *body_frames(1, b"kept", 4096)])


def faults() -> list[str]:
    """Return what is wrong with any disk that a crash may leave while it is all done."""
    asked = history()
    expected = states([*asked, LAST])
    events: list[Operation | Answered] = []
    with SimulatedServer() as server:
        client = Told.opened(server, channels=1)
        client.events = events
        client.ask(1, methods.ConfirmSelect())
        client.answers.clear()
        disk = server.disk.fork()
        server.disk.record = events.append
        client.send(octets_of(asked))
        client.send(octets_of([LAST]))
        server.disk.record = None
    wrong = []
    done, is_confirmed = 0, False
    rng = random.Random("definitions")
    for event in events:
        if isinstance(event, Answered):
            done, is_confirmed = event.done, event.is_confirmed
        else:
            disk.redo(event)
        for image in crash_images(disk, rng, _IMAGES):
            queues, bindings, bodies = found_on(image.files.fork())
            if (queues, bindings) not in expected[done:]:
                wrong.append(f"{done} were answered, and there is {sorted(queues)}, {bindings}")
            if is_confirmed and bodies != ["kept"]:
                wrong.append("the message was confirmed, and is not there")
    assert done == len(asked)
    assert is_confirmed
    return wrong


def found_on(disk: MemoryFiles) -> tuple[frozenset[str], frozenset[tuple[str, str]], list[str]]:
    """The queues, the bindings, and what is in `c-3`."""
    broker = SimulatedBroker(disk=disk)
    try:
        vhost = broker.vhost
        topic = vhost.exchange("amq.topic")
        bindings = frozenset((one.destination.name, one.routing_key) for one in topic.bindings)
        bodies = broker.ready("c-3") if "c-3" in vhost.queues else []
        return frozenset(vhost.queues), bindings, bodies
    finally:
        broker.store.abandon()


def test_what_was_answered_is_there_after_a_power_cut() -> None:
    assert faults() == []


def test_definitions_of_one_read_are_one_commit() -> None:
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        with server.commits() as commits:
            client.send(octets_of([one for one in history() if one is not None]))
        assert len(commits) == 1


def test_a_broker_that_answers_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of such a broker's definitions wait for the next batch."""
    monkeypatch.setattr(GroupedDefinitions, "end_group", lambda _definitions: None)
    assert faults() != []
