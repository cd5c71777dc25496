"""The real broker process, killed with SIGKILL at any moment while real clients work.

Two publishers with confirms and two consumers are at work on two durable queues. After each kill
the store is opened, what it holds is read, and held against what the clients were told. What the
clients do, and when the kill comes, depends on the seed; how far the broker had come by then, on
the machine.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from amqpstore import Store
from amqpstore.files import OsFiles
from amqpstore.worker import InlineWorker
from tools.bench.connection import Address, Connection
from tools.bench.errors import ConnectError, PeerError
from tools.drill.accounting import misaccounted
from tools.drill.broker import Broker
from tools.drill.client import (
    FANOUT,
    QUEUES,
    Consumer,
    Key,
    Publisher,
    body_of,
    key_of,
    routes_of,
)
from tools.drill.copying import link_store
from tools.drill.invariants import Fault, reported_damage
from tools.drill.observation import ObservedQueue, observe
from tools.drill.run import Run
from tools.drill.strangers import put_strangers, touched_strangers
from tools.drill.verdict import Step

ABOUT = "kill -9 of the real broker, again and again, under real client load"

_CHECKED = ("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10", "I11", "I12")
_PUBLISHERS = 2
_TIMEOUT_S = 30.0


@dataclass
class _Known:
    """What the clients know, over all kills: `gone` are messages that a look at the store, after
    their ack, did not find: they must not come back."""

    sent: list[Key] = field(default_factory=list)
    confirmed: set[Key] = field(default_factory=set)
    acked: dict[str, set[Key]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    gone: dict[str, set[Key]] = field(default_factory=lambda: {name: set() for name in QUEUES})

    @property
    def promised_count(self) -> int:
        return sum(len(self.promised(name)) for name in QUEUES)

    def promised(self, name: str) -> set[Key]:
        return {key for key in self.confirmed if name in routes_of(key)} - self.acked[name]


def run(run: Run) -> None:
    """Kill the broker once a round; every tenth round begins with a new store."""
    known = _Known()
    directory = ""
    for rng in run.rounds():
        if not directory or run.round % 10 == 1:
            directory = os.path.join(run.settings.work, f"store-{run.round}")
            known = _Known()
        with Broker(directory, f"{directory}.log") as broker:
            address = broker.start()
            if not known.sent:
                put_strangers(directory)
            confirms = _work_and_kill(run, broker, address, known, rng)
        faults = [*_look(run, directory, known)]
        run.saw(_CHECKED)
        for invariant, text in faults:
            run.found(invariant, text, f"kill {run.round}, after {confirms} confirms")
        run.account.did["confirms"] += confirms


def _work_and_kill(
    run: Run, broker: Broker, address: Address, known: _Known, rng: random.Random
) -> int:
    """Let clients work until a drawn number of confirms came. Returns how many came in all."""
    _declare(address)
    confirms = threading.Semaphore(0)
    window = rng.choice([1, 20, 200])
    publishers = [
        Publisher(address, run.round, number, window, confirms) for number in range(_PUBLISHERS)
    ]
    consumers = [Consumer(address, queue, random.Random(rng.random())) for queue in QUEUES]  # noqa: S311 (no secret)
    clients = [*publishers, *consumers]
    for client in clients:
        client.start()
    for _ in range(rng.randint(1, 600)):
        if not confirms.acquire(timeout=_TIMEOUT_S):
            run.found("I9", f"no confirm came for {_TIMEOUT_S:.0f} s: {broker.log_tail()}", "load")
            break
    if (code := broker.kill()) is not None:
        run.found("I9", f"the broker ended by itself ({code}): {broker.log_tail()}", "load")
    for client in clients:
        client.join(_TIMEOUT_S)
        if client.failure:
            run.found("I9", client.failure, "load")
    for publisher in publishers:
        known.sent += publisher.sent
        known.confirmed |= publisher.confirmed
    for consumer in consumers:
        known.acked[consumer.queue] |= consumer.acked
        run.account.did["deliveries"] += consumer.taken
    run.account.did["kills"] += 1
    return sum(len(publisher.confirmed) for publisher in publishers)


def _declare(address: Address) -> None:
    try:
        connection = Connection(address)
        connection.declare_fanout_exchange(FANOUT)
        for name in QUEUES:
            connection.declare_queue(name, {})
            connection.bind_queue(name, FANOUT)
        connection.close()
    except (ConnectError, PeerError) as error:
        raise OSError(f"the broker cannot be used: {error}") from error


def _look(run: Run, directory: str, known: _Known) -> Iterator[Fault]:
    """What is wrong with a copy of what the broker left behind."""
    copy = os.path.join(run.settings.work, "look")
    link_store(directory, copy)
    try:
        store = Store.open(copy, worker=InlineWorker())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield "I9", f"opening failed: {error!r}"
        return
    try:
        observation = observe(store)
        store.checkpoint()
        misaccounts = misaccounted(store, OsFiles())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield "I9", f"using the store failed: {error!r}"
        return
    finally:
        store.abandon()
    faults = [*observation.faults, *reported_damage(observation.report), *misaccounts]
    faults += [*touched_strangers(directory), *touched_strangers(copy)]
    promised = known.promised_count
    found: dict[str, list[Key]] = {}
    for name in QUEUES:
        queue = observation.queues.get(name)
        if queue is None:
            faults.append(("I1", f"queue {name} is gone"))
            continue
        found[name] = []
        faults += _queue_faults(name, queue, known, found[name])
    faults += _fan_out_faults(known, found)
    yield from faults
    survived = sum(map(len, found.values()))
    did = "kill -9"
    run.step(Step(run.round, 1, did, promised, survived, survived, 0, bool(faults)))


def _queue_faults(
    name: str, queue: ObservedQueue, known: _Known, found: list[Key]
) -> Iterator[Fault]:
    sent = {key for key in known.sent if name in routes_of(key)}
    for seen in queue.ready:
        key = key_of(seen.payload.body)
        if key not in sent or key is None:
            yield "I2", f"{name} has a message that was never sent there ({key})"
            continue
        found.append(key)
        if seen.payload.body != body_of(key):
            yield "I2", f"the body of {key} in {name} is not what was sent"
        if key in known.gone[name]:
            yield "I5", f"{key} was acked and gone from {name}, and is back"
    if twice := [key for key, count in Counter(found).items() if count > 1]:
        yield "I1", f"{name} has {len(twice)} messages twice: {twice[:3]}"
    if lost := sorted(known.promised(name) - set(found)):
        yield "I1", f"{name}: {len(lost)} confirmed messages are lost: {lost[:3]}"
    by_publisher: dict[int, list[Key]] = {}
    for key in found:
        by_publisher.setdefault(key.publisher, []).append(key)
    for keys in by_publisher.values():
        if keys != sorted(keys):
            yield "I6", f"{name}: messages of publisher {keys[0].publisher} are out of order"
    # Promised once more: each of these was seen to be gone, or to be there.
    known.gone[name] |= known.acked[name] - set(found)
    known.confirmed.update(found)


def _fan_out_faults(known: _Known, found: dict[str, list[Key]]) -> Iterator[Fault]:
    there = {name: set(keys) for name, keys in found.items()}
    for key in known.sent:
        if routes_of(key) != QUEUES or len(there) < len(QUEUES):
            continue
        here = [name for name in QUEUES if key in there[name]]
        missing = [name for name in QUEUES if name not in here and key not in known.acked[name]]
        if here and missing:
            yield "I3", f"{key} is in {here[0]}, and not in {missing[0]}"
