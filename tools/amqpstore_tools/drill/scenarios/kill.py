"""The real broker process, killed with SIGKILL at any moment while real clients work.

Publishers with confirms, one with transactions, and two consumers are at work on two durable
queues; messages of a third are moved to a fourth, in transactions, and those of a fifth are
rejected and dead-lettered. After each kill the store is opened, and its content compared with what
the clients were told. The actions of the clients and the time of the kill depend on the seed; how
far the broker had come by then depends on the machine.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from amqpstore import Store
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.client.errors import ConnectError, PeerError
from amqpstore_tools.client.wire import TableItem
from amqpstore_tools.drill.accounting import misaccounted
from amqpstore_tools.drill.broker import DrilledBroker
from amqpstore_tools.drill.client import (
    FANOUT,
    MOVES,
    PUBLISHERS,
    QUEUES,
    REJECTS,
    DrillConsumer,
    DrillPublisher,
    Key,
    Mover,
    Rejecter,
    Taker,
    Transactor,
    body_of,
    homes_of,
    key_of,
    routes_of,
    transaction_of,
)
from amqpstore_tools.drill.copying import copy_store, link_store
from amqpstore_tools.drill.invariants import Fault, reported_damage
from amqpstore_tools.drill.manual import DOING, FOLLOWED, after_crash
from amqpstore_tools.drill.observation import ObservedQueue, observe
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.unknown_files import changed_unknown_files, put_unknown_files
from amqpstore_tools.drill.verdict import Step

ABOUT = "kill the real broker with kill -9, again and again, under client load"

_CHECKED_EACH_ROUND = (
    *("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12"),
)
CHECKED = (*_CHECKED_EACH_ROUND, *FOLLOWED)
_TIMEOUT_S = 30.0
_ALL = (*QUEUES, *MOVES, *REJECTS)
_TO_DEAD: dict[str, TableItem] = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": REJECTS[1],
}


@dataclass
class _Known:
    """The clients' knowledge, over all kills. `gone` are messages that were missing when the store
    was examined after their ack: they must not come back. `moved` are in the target for good, and
    `delivered` count as delivered. `before` has the unused queues, with their content.
    """

    before: dict[str, ObservedQueue] = field(default_factory=dict)
    sent: list[Key] = field(default_factory=list)
    confirmed: set[Key] = field(default_factory=set)
    acked: dict[str, set[Key]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    gone: dict[str, set[Key]] = field(default_factory=lambda: {name: set() for name in QUEUES})
    moved: set[Key] = field(default_factory=set)
    delivered: set[Key] = field(default_factory=set)

    @property
    def promised_count(self) -> int:
        pairs = sum(homes_of(key) in (MOVES, REJECTS) for key in self.confirmed)
        return pairs + sum(len(self.promised(name)) for name in QUEUES)

    def promised(self, name: str) -> set[Key]:
        return {key for key in self.confirmed if name in routes_of(key)} - self.acked[name]


def run(run: DrillRun) -> None:
    """Kill the broker once per round; every tenth round begins with a new store, or a new copy."""
    run.rounds_follow = run.settings.round is None
    known = _Known()
    directory = ""
    for rng in run.rounds():
        if not directory or run.round % 10 == 1:
            directory = os.path.join(run.settings.work, f"store-{run.round}")
            known = _Known()
            if run.settings.data is not None:
                known.before = _copied(os.path.join(run.settings.work, "store"), directory)
        with DrilledBroker(directory) as broker:
            address = broker.start()
            if not known.sent:
                put_unknown_files(directory)
            confirms = _work_and_kill(run, broker, address, known, rng)
        faults: list[Fault] = []
        if run.follows_manual:
            run.show(DOING)
            faults += after_crash(directory, run.settings.work)
            run.account.checked(FOLLOWED)
        faults += _look(run, directory, known)
        run.saw(_CHECKED_EACH_ROUND)
        for invariant, text in faults:
            run.found(invariant, text, f"kill {run.round}, after {confirms} confirms")
        run.account.did["confirms"] += confirms


def _copied(source: str, directory: str) -> dict[str, ObservedQueue]:
    """Copy a store once more. Returns its content. Raises: StoreError."""
    store = Store.open(source, worker=InlineWorker())
    try:
        queues = observe(store).queues
    finally:
        store.abandon()
    copy_store(source, directory)
    return {name: queue for name, queue in queues.items() if not name.startswith("drill-")}


def _work_and_kill(
    run: DrillRun, broker: DrilledBroker, address: Address, known: _Known, rng: random.Random
) -> int:
    """Let clients work until a random number of confirms arrived. Returns how many arrived in
    all.
    """
    _declare(address)
    confirms = threading.Semaphore(0)
    window = rng.choice([1, 20, 200])
    publishers: list[DrillPublisher | Transactor] = [
        DrillPublisher(address, run.round, number, window, confirms) for number in PUBLISHERS
    ]
    publishers.append(Transactor(address, run.round))
    consumers = [DrillConsumer(address, queue, random.Random(rng.random())) for queue in QUEUES]  # noqa: S311 (no secret)
    mover = Mover(address)
    rejecter = Rejecter(address, random.Random(rng.random()))  # noqa: S311 (no secret)
    takers: list[Taker] = [*consumers, mover, rejecter]
    clients = [*publishers, *takers]
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
        if some := sorted(consumer.given_back):
            text = f"{len(some)} messages requeued to {consumer.queue} came back unflagged"
            run.found("I5", f"{text}: {some[:3]}", "load")
    if some := sorted(known.delivered & mover.unflagged):
        text = f"{len(some)} messages of {mover.queue} were delivered before, but are unflagged"
        run.found("I5", f"{text}: {some[:3]}", "load")
    known.moved |= mover.moved
    known.delivered |= mover.delivered
    run.account.did["deliveries"] += sum(taker.taken for taker in takers)
    run.account.did["messages moved"] += len(mover.moved)
    run.account.did["kills"] += 1
    return sum(len(publisher.confirmed) for publisher in publishers)


def _declare(address: Address) -> None:
    try:
        connection = Connection(address)
        connection.declare_exchange(FANOUT, "fanout")
        for name in _ALL:
            connection.declare_queue(name, _TO_DEAD if name == REJECTS[0] else {})
        for name in QUEUES:
            connection.bind_queue(name, FANOUT)
        connection.close()
    except (ConnectError, PeerError) as error:
        raise OSError(f"the broker cannot be used: {error}") from error


def _look(run: DrillRun, directory: str, known: _Known) -> Iterator[Fault]:
    """Yield the faults in a copy of what the broker left behind."""
    copy = os.path.join(run.settings.work, "look")
    link_store(directory, copy)
    try:
        store = Store.open(copy, worker=InlineWorker())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield "I9", f"opening failed: {error!r}"
        return
    try:
        observation = observe(store)
        store.upkeep.checkpoint()
        misaccounts = misaccounted(store, OsFiles())
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield "I9", f"using the store failed: {error!r}"
        return
    finally:
        store.abandon()
    faults = [*observation.faults, *reported_damage(observation.report), *misaccounts]
    faults += [*changed_unknown_files(directory), *changed_unknown_files(copy)]
    promised = known.promised_count
    keys_of: dict[str, list[Key]] = {}
    for name in _ALL:
        queue = observation.queues.get(name)
        if queue is None:
            faults.append(("I1", f"queue {name} is gone"))
            continue
        keys_of[name] = []
        faults += _queue_faults(name, queue, known, keys_of[name])
    faults += _fan_out_faults(known, keys_of)
    faults += _transaction_faults(known, keys_of)
    for pair in (MOVES, REJECTS):
        faults += _pair_faults(pair, known, keys_of)
    faults += _untouched_faults(known, observation.queues)
    # Promised once more: each of these was seen to be there, or to be gone.
    for name in QUEUES:
        known.gone[name] |= known.acked[name] - set(keys_of.get(name, ()))
    for keys in keys_of.values():
        known.confirmed.update(keys)
    known.moved |= set(keys_of.get(MOVES[1], ()))
    yield from faults
    survived = sum(map(len, keys_of.values()))
    did = "kill -9"
    run.step(Step(run.round, 1, did, promised, survived, survived, 0, bool(faults)))


def _queue_faults(
    name: str, queue: ObservedQueue, known: _Known, seen_keys: list[Key]
) -> Iterator[Fault]:
    sent = {key for key in known.sent if name in homes_of(key)}
    for seen in queue.ready:
        key = key_of(seen.payload.body)
        if key not in sent or key is None:
            yield "I2", f"{name} has a message that was never sent there ({key})"
            continue
        seen_keys.append(key)
        if seen.payload.body != body_of(key):
            yield "I2", f"the body of {key} in {name} differs from what was sent"
        if key in known.gone.get(name, ()):
            yield "I5", f"{key} was acked and gone from {name}, and is back"
        if key in known.delivered and name == MOVES[0] and not seen.delivery_count:
            yield "I5", f"{key} in {name} was delivered, but is not flagged"
    if twice := [key for key, count in Counter(seen_keys).items() if count > 1]:
        yield "I1", f"{name} has {len(twice)} messages twice: {twice[:3]}"
    if name in QUEUES and (lost := sorted(known.promised(name) - set(seen_keys))):
        yield "I1", f"{name}: {len(lost)} confirmed messages are lost: {lost[:3]}"
    if name == REJECTS[1]:
        # Messages that were unacked when the broker was killed are rejected later.
        return
    by_publisher: dict[int, list[Key]] = {}
    for key in seen_keys:
        by_publisher.setdefault(key.publisher, []).append(key)
    for keys in by_publisher.values():
        if keys != sorted(keys):
            yield "I6", f"{name}: messages of publisher {keys[0].publisher} are out of order"


def _fan_out_faults(known: _Known, found: dict[str, list[Key]]) -> Iterator[Fault]:
    there = {name: set(keys) for name, keys in found.items()}
    for key in known.sent:
        if routes_of(key) != QUEUES or len(there) < len(_ALL):
            continue
        here = [name for name in QUEUES if key in there[name]]
        missing = [name for name in QUEUES if name not in here and key not in known.acked[name]]
        if here and missing:
            yield "I3", f"{key} is in {here[0]}, and not in {missing[0]}"


def _transaction_faults(known: _Known, found: dict[str, list[Key]]) -> Iterator[Fault]:
    """Check I4: of a transaction everything is there, except what was acked since, or nothing."""
    there = {name: set(found.get(name, ())) for name in QUEUES}
    kept: dict[tuple[int, int], str] = {}
    missing: dict[tuple[int, int], str] = {}
    for key in known.sent:
        if (transaction := transaction_of(key)) is None:
            continue
        for name in routes_of(key):
            if key in there[name]:
                kept[transaction] = f"{key} is in {name}"
            elif key not in known.acked[name]:
                missing[transaction] = f"{key} is not in {name}"
    for transaction in kept.keys() & missing.keys():
        yield "I4", f"of one transaction {kept[transaction]}, and {missing[transaction]}"


def _pair_faults(
    pair: tuple[str, str], known: _Known, found: dict[str, list[Key]]
) -> Iterator[Fault]:
    """Check I7: each message is in the source or in the target; I5: moved messages are in the
    target.
    """
    source, target = (set(found.get(name, ())) for name in pair)
    if both := sorted(source & target):
        yield "I7", f"{len(both)} messages are in {pair[0]} and in {pair[1]}: {both[:3]}"
    confirmed = {key for key in known.confirmed if homes_of(key) == pair}
    if lost := sorted(confirmed - source - target):
        yield "I7", f"{len(lost)} messages are neither in {pair[0]} nor in {pair[1]}: {lost[:3]}"
    if pair == MOVES and (undone := sorted(known.moved & source)):
        yield "I5", f"{len(undone)} messages were moved, but are in {pair[0]} again: {undone[:3]}"


def _untouched_faults(known: _Known, queues: dict[str, ObservedQueue]) -> Iterator[Fault]:
    """Yield differences in the unused queues of a copied store, except for expired messages."""
    for name, before in known.before.items():
        queue = queues.get(name)
        held = set(queue.ready) if queue else set()
        if unexpected := held - set(before.ready):
            yield "I2", f"{name} has {len(unexpected)} messages that were not there before"
        if not _expires(before) and (lost := set(before.ready) - held):
            yield "I1", f"{name}: {len(lost)} messages that nobody consumed are lost"


def _expires(queue: ObservedQueue) -> bool:
    definition = queue.definition if isinstance(queue.definition, dict) else {}
    arguments = definition.get("arguments") or {}
    return any(name in arguments for name in ("x-message-ttl", "x-expires")) or any(
        seen.payload.properties[:1] and seen.payload.properties[0] & 1 for seen in queue.ready
    )
