"""Calls that a message costs on its way through the broker, which must not grow back.

Real connections, queues and the real log, in one thread on a disk in memory: the same calls each
time, however busy the machine is. Calls are counted between the bytes of a read and the bytes of a
write; those of the simulated disk and of this test are not counted.

`python -m tests.unit.server.test_call_counts` prints them, with `--functions 30` also what is
called most.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from amqpstore_server.clients.limits import Limits
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_tools.bench.messages import MessageBlock, Route, block_of
from amqpstore_tools.client import frames, wire
from tests.call_baselines import MOST, Baselines, Calls
from tests.calls import Counts
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

READS = 5
"""The number of reads that are measured; as many before them fill the caches."""

EXCHANGE = "topics"


class Traffic(NamedTuple):
    """Messages that clients send, and the queues that get them."""

    vary: bool
    queues: int
    matches: int = 0  # of the queues, through a topic exchange; 0: one of them, by its name
    size: int = 1024
    persistent: bool = True
    a_read: int = 200  # messages that one read of the broker brings
    own_keys: bool = False  # whether a topic exchange sees each routing key once

    @property
    def copies(self) -> int:
        return self.matches or 1

    def names(self) -> list[str]:
        return [f"q-{number:03}" for number in range(self.queues)]

    def routes(self) -> list[Route]:
        """Return where messages go, in turn; of a key's words each matches one queue."""
        if self.own_keys:
            names = self.names()
            count = 4 * READS * self.a_read
            return [(EXCHANGE, f"{names[at % self.queues]}.{at:05}") for at in range(count)]
        if not self.matches:
            return [("", name) for name in self.names()]
        step = self.queues // self.matches
        return [
            (
                EXCHANGE,
                ".".join(f"q-{(at + key) % step + at * step:03}" for at in range(self.matches)),
            )
            for key in range(step)
        ]


class Costs(NamedTuple):
    """The counts of one kind of traffic."""

    publish: Calls  # of a message, to its confirm
    deliver: Calls  # of a delivery of what has waited, to its ack
    through: Calls  # of a message, to its confirm, its deliveries and their acks


TRAFFIC = {
    "alike, 1 queue": Traffic(vary=False, queues=1),
    "varied, 1 queue": Traffic(vary=True, queues=1),
    "varied, 10 queues": Traffic(vary=True, queues=10),
    "varied, 3 of 21 queues": Traffic(vary=True, queues=21, matches=3),
    "varied, own keys": Traffic(vary=True, queues=10, own_keys=True),
    "varied, 64 KiB": Traffic(vary=True, queues=1, size=65_536, a_read=4),
    "varied, transient": Traffic(vary=True, queues=1, size=100, persistent=False),
    "varied, alone in a read": Traffic(vary=True, queues=1, a_read=1),
}


class Flow:
    """A publishing and a consuming connection to a broker in this thread."""

    def __init__(self, server: SimulatedServer, traffic: Traffic) -> None:
        self.counted = Counts()
        self._server = server
        self._traffic = traffic
        self._publisher = SimulatedClient.opened(server, channels=1)
        self._consumer = SimulatedClient.opened(server, channels=1)
        self._declare()
        self._block: MessageBlock = block_of(
            traffic.routes(),
            size=traffic.size,
            persistent=traffic.persistent,
            vary=traffic.vary,
            frame_max=131_072,
        )
        self.delivered = self._acked = self._published = 0

    def _declare(self) -> None:
        traffic, ask = self._traffic, self._publisher.ask
        ask(1, methods.ExchangeDeclare(exchange=EXCHANGE, type="topic", durable=True))
        for number, name in enumerate(traffic.names()):
            ask(1, methods.QueueDeclare(queue=name, durable=True))
            if traffic.own_keys:
                ask(1, methods.QueueBind(queue=name, exchange=EXCHANGE, routing_key=f"{name}.#"))
            if traffic.matches:
                group = number * traffic.matches // traffic.queues
                words = [name if at == group else "*" for at in range(traffic.matches)]
                ask(
                    1, methods.QueueBind(queue=name, exchange=EXCHANGE, routing_key=".".join(words))
                )
        ask(1, methods.ConfirmSelect())

    def consume(self) -> None:
        """Have the consumer take what there is from now on."""
        for name in self._traffic.names():
            method = methods.BasicConsume(queue=name, consumer_tag=name, no_wait=True)
            octets = wire.method(1, wire.BASIC_CONSUME, method.encode()[4:])
            self._consumer.connection.receive(octets, self._server.now_s)

    def publish(self, reads: int) -> int:
        """Have the broker read publishes until all are confirmed, and return how many."""
        before = self._published
        for _ in range(reads):
            octets = self._block.take(self._traffic.a_read)
            self._published += self._traffic.a_read
            self._receive(self._publisher, octets)
            confirmed = 0
            for _ in range(3):  # the second has what was confirmed, the third what follows from it
                confirmed = max(confirmed, self._round())
            assert confirmed == self._published
        return self._published - before

    def drain(self) -> int:
        """Have the broker deliver until nothing is left, and return how many deliveries."""
        before = self.delivered
        while True:
            last = self.delivered
            self._round()
            if self.delivered == last:
                return self.delivered - before

    def _receive(self, client: SimulatedClient, octets: bytes) -> None:
        self._count(client.connection.receive, octets, self._server.now_s)

    def _round(self) -> int:
        """Do what follows a read: hand out, commit, confirm, write; return the last confirm."""
        self._count(self._server.broker.pumping.pump)
        self._count(self._server.store.sync)
        self._take(self._consumer)
        if self.delivered > self._acked:
            self._acked = self.delivered
            self._receive(self._consumer, wire.ack(1, self._acked))
        return self._take(self._publisher)

    def _take(self, client: SimulatedClient) -> int:
        """Read what the broker writes, and return the last confirm in it."""
        outbox = client.connection.outbox
        was_writable = outbox.is_writable
        octets = b""
        while outbox.byte_count:
            octets += b"".join(self._count(outbox.next_buffers))
        if not was_writable:
            self._count(client.connection.writable)
        self._count(client.connection.go_on, self._server.now_s)
        confirmed = 0
        for frame in frames.whole_frames(octets, 0, len(octets)):
            found = frames.method_of(octets, frame)
            if found == wire.BASIC_DELIVER:
                self.delivered += 1
            elif found == wire.BASIC_ACK:
                confirmed = int.from_bytes(octets[frame.payload + 4 : frame.payload + 12], "big")
        return confirmed

    def _count(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Does work of the broker, and counts its calls."""
        with self.counted:
            return work(*arguments)


def costs(traffic: Traffic) -> tuple[Costs, list[Counts]]:
    """Return what a message costs, and what was counted in each phase."""
    phases: list[Counts] = []
    calls: list[Calls] = []
    with SimulatedServer(limits=Limits()) as server:
        # Much is published before anything is consumed: none of it has to leave memory.
        server.store.memory.limit(1 << 30)
        server.store.space.require(0)
        server.services.trails = server.store.provenance.client_trails(max_files=2)
        flow = Flow(server, traffic)

        def measure(work: Callable[[], int]) -> None:
            flow.counted = Counts()
            phases.append(flow.counted)
            done = work()
            calls.append(Calls.of(phases[-1], done))

        def through() -> int:
            published = flow.publish(READS)
            flow.drain()
            return published

        flow.publish(READS)
        measure(lambda: flow.publish(READS))
        flow.consume()
        measure(flow.drain)
        through()
        measure(through)
        assert flow.delivered == 4 * READS * traffic.a_read * traffic.copies
    return Costs(*calls), phases


def over(found: Costs, baselines: Costs) -> list[str]:
    """Return what costs more than it may."""
    return [
        f"{phase}: {problem}"
        for phase, calls, baseline in zip(Costs._fields, found, baselines, strict=True)
        for problem in calls.over(baseline)
    ]


def key(name: str, phase: str) -> str:
    """Return the name of a baseline."""
    return f"{phase}: {name}"


@pytest.mark.parametrize("name", TRAFFIC)
def test_a_message_costs_no_more_calls_than_it_did(name: str, call_baselines: Baselines) -> None:
    found, counts = costs(TRAFFIC[name])
    for phase, calls, counted in zip(Costs._fields, found, counts, strict=True):
        call_baselines.check(key(name, phase), calls, counted)


@pytest.mark.long
@pytest.mark.parametrize("name", TRAFFIC)
def test_a_baseline_is_lowered_when_the_broker_needs_less(
    name: str, call_baselines: Baselines
) -> None:
    """A baseline may be a tenth and one call too high: versions of Python differ a little."""
    baselines = call_baselines.baselines()
    slack = [Calls(*(calls + 1 for calls in found)) for found in costs(TRAFFIC[name])[0]]
    stored = [baselines[key(name, phase)] for phase in Costs._fields]
    assert over(Costs(*stored), Costs(*slack)) == []


def test_a_tenth_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "varied, alone in a read"
    before, _ = costs(TRAFFIC[name])
    receive = Receiver.receive
    more = round(before.publish.python * (MOST - 1)) + 1

    def costly(receiver: Receiver, octets: bytes, again: int = more) -> Any:
        return costly(receiver, octets, again - 1) if again else receive(receiver, octets)

    # As if it were in the broker's own module.
    where = receive.__code__.co_filename
    monkeypatch.setattr(costly, "__code__", costly.__code__.replace(co_filename=where))
    monkeypatch.setattr(Receiver, "receive", costly)
    found, counts = costs(TRAFFIC[name])
    assert counts[0].python
    assert found.publish.python == before.publish.python + more + 1
    (problem,) = [one for one in over(found, before) if one.startswith("publish")]
    assert "Python functions" in problem
    assert over(before, found) == over(before, before) == []


def test_garbage_of_other_tests_is_not_counted() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self
            weakref.finalize(self, int)

    counts = Counts()
    Cycle()
    with counts:
        many: list[list[int]] = [[] for _ in range(10_000)]  # a collection is due
    assert len(many) == 10_000
    assert not counts.python


def main() -> None:
    """Print what messages cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    for name, traffic in TRAFFIC.items():
        for phase, calls, counts in zip(Costs._fields, *costs(traffic), strict=True):
            print(f"{name}, {phase}: {calls}")  # noqa: T201
            for function, count in counts.python.most_common(arguments.functions):
                print(f"    {count:9} {function}")  # noqa: T201


if __name__ == "__main__":
    main()
