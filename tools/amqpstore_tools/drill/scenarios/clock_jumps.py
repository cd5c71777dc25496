"""The wall clock jumps: by seconds or years, forwards or backwards, between batches and restarts.

The store records the time with each batch and expires messages by a time that its caller gives; its
order is by numbers alone. So whatever the clock says, everything that was promised is there except
messages that had expired by the time given, and those never return. The store's own work,
checkpoints and compaction, is due by a clock that cannot be set: it neither stops nor comes all at
once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from amqpstore import Envelope, Message, MessageDamagedError, Queue, ReadLaterError, Store
from amqpstore.catalog import tables
from amqpstore.system.clock import SimulatedClock
from amqpstore_tools.drill.invariants import Fault, reported_damage
from amqpstore_tools.drill.manual import FOLLOWED
from amqpstore_tools.drill.observation import ObservedQueue, observe
from amqpstore_tools.drill.outside import NOW_MS
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios.simulated import OPTIONS, base_of, manual_faults, open_store
from amqpstore_tools.drill.verdict import Step
from amqpstore_tools.simulation.memory_files import MemoryFiles

ABOUT = "let the clock jump back and forth while messages arrive, expire, and the process is killed"

_CHECKED_EACH_KILL = ("I1", "I2", "I5", "I6", "I9", "I10", "I12", "I13")
CHECKED = (*_CHECKED_EACH_KILL, *FOLLOWED)
_OPTIONS = OPTIONS._replace(checkpoint_bytes=1 << 60, checkpoint_ms=5000)
_SECOND_MS = 1000
_YEAR_MS = 365 * 24 * 3600 * _SECOND_MS
_JUMPS_MS = (1, _SECOND_MS, 3600 * _SECOND_MS, _YEAR_MS, 40 * _YEAR_MS)
_STEPS = 40
_QUIET_STEPS = 20
_GARBAGE_BYTES = 8 * _OPTIONS.segment_bytes
_MAX_BYTES = 5 * _OPTIONS.segment_bytes
"""Segments beyond twice the live bytes: the log's own, two more, and one that was just begun."""

_QUEUE = "drill-orders"


@dataclass
class _World:
    """A store, its disk, its clocks, and the expected content of its queue: bodies, in order, with
    the time when each expires (0: never).
    """

    files: MemoryFiles
    store: Store
    queue: Queue
    clock: SimulatedClock
    before: dict[str, ObservedQueue] = field(default_factory=dict)
    number: int = 0
    expected: dict[bytes, int] = field(default_factory=dict)


def run(run: DrillRun) -> None:
    """Run one history per round."""
    base = base_of(run)
    for rng in run.rounds():
        files = base.disk.fork()
        clock = SimulatedClock(NOW_MS)
        store = open_store(files, _OPTIONS, clock)
        world = _World(files, store, store.create_queue({"name": _QUEUE}), clock)
        if base.before is not None:
            world.before = base.before.queues
        for number in range(1, _STEPS + 1):
            did, faults = _step(world, rng)
            if did.startswith("killed"):
                run.saw(_CHECKED_EACH_KILL)
            for invariant, text in faults:
                run.found(invariant, text, f"step {number}, {did}")
            held = world.queue.ready_count
            promised = len(world.expected)
            run.step(Step(run.round, number, did, promised, held, held, 0, bool(faults)))
            if faults:
                break
        world.store.abandon()
        if run.follows_manual:
            for invariant, text in manual_faults(run, world.files.power_cut({}, {})):
                run.found(invariant, text, f"after step {number}, power cut")


def _step(world: _World, rng: random.Random) -> tuple[str, list[Fault]]:
    draw = rng.random()
    if draw < 0.35:
        jump_ms = rng.choice(_JUMPS_MS) * rng.choice([-1, 1])
        # Times that no operating system's clock reports are not tried.
        world.clock.set_wall(max(1, world.clock.wall_ms() + jump_ms))
        return f"clock jumped by {jump_ms} ms, to {world.clock.wall_ms()}", []
    if draw < 0.6:
        return _publish(world, rng)
    if draw < 0.75:
        return _expire(world)
    if draw < 0.9:
        return _work(world, rng)
    return "killed, power cut, opened", list(_reopen(world))


def _work(world: _World, rng: random.Random) -> tuple[str, list[Fault]]:
    """Make garbage, let the clock jump, and let some time pass without any activity."""
    jump_ms = rng.choice(_JUMPS_MS) * rng.choice([-1, 0, 1])
    _consume(world, rng)
    world.clock.set_wall(max(1, world.clock.wall_ms() + jump_ms))
    for _ in range(_QUIET_STEPS):
        world.clock.advance(_SECOND_MS)
        world.store.upkeep.housekeep()
    faults: list[Fault] = []
    store = world.store
    if store.log.durable_messages:
        text = f"{store.log.durable_messages} operations are not in a checkpoint"
        faults.append(("I13", f"{text} {_QUIET_STEPS} s after the last of them"))
    rows = tables.SEGMENTS.read(store.definitions.rows).values()
    live = sum(row.live_bytes for row in rows)
    on_disk = sum(one.size for one in store.log.segments)
    if on_disk > 2 * live + _MAX_BYTES:
        faults.append(("I13", f"segments have {on_disk} bytes, and {live} of them are live"))
    return f"clock jumped by {jump_ms} ms, then {_QUIET_STEPS} s of quiet", faults


def _consume(world: _World, rng: random.Random) -> None:
    """Send messages through the queue, behind its content: they alone become garbage."""
    bodies = [rng.randbytes(200) for _ in range(_GARBAGE_BYTES // 200)]
    envelope = Envelope("", "orders", b"\x10\x00\x02", persistent=True)
    first = world.queue.next_sequence
    for start in range(0, len(bodies), 3):
        some = [Message(envelope, body) for body in bodies[start : start + 3]]
        world.store.publish([world.queue], some)
        _sync(world)
    while run := world.store.take(world.queue, 3, acked=True, first_sequence=first):
        if isinstance(run, MessageDamagedError):
            raise run
        _sync(world)


def _publish(world: _World, rng: random.Random) -> tuple[str, list[Fault]]:
    expires_ms = rng.choice([0, 0, world.clock.wall_ms() + rng.choice(_JUMPS_MS)])
    bodies = [b"%d " % (world.number + index) + rng.randbytes(50) for index in range(3)]
    world.number += len(bodies)
    envelope = Envelope("", "orders", b"\x10\x00\x02", persistent=True)
    messages = [Message(envelope, body) for body in bodies]
    world.store.publish([world.queue], messages, expires_ms=expires_ms)
    _sync(world)
    world.expected.update(dict.fromkeys(bodies, expires_ms))
    return f"published {len(bodies)}, which expire at {expires_ms}", []


def _expire(world: _World) -> tuple[str, list[Fault]]:
    """Remove what has expired by now, as a broker does."""
    faults: list[Fault] = []
    now_ms = world.clock.wall_ms()
    count = 0
    while run := world.store.withdrawals.withdraw_expired(world.queue, now_ms, bodies=True):
        if isinstance(run, MessageDamagedError | ReadLaterError):
            return "expired", [("I1", f"an expired message cannot be read: {run}")]
        for message in run.messages or ():
            count += 1
            due_ms = world.expected.pop(message.body, -1)
            if not 0 < due_ms <= now_ms:
                text = f"a message that expires at {due_ms} expired at {now_ms}"
                faults.append(("I1", text))
        world.store.ack(world.queue, run)
    left = [one for one in world.expected.values() if 0 < one <= now_ms]
    if left:
        faults.append(("I5", f"{len(left)} messages have expired by {now_ms}, but are still there"))
    _sync(world)
    return f"expired {count}", faults


def _sync(world: _World) -> None:
    """Make a batch durable, with the time of the clock."""
    log = world.store.log
    if batch := log.seal(world.clock.wall_ms()):
        log.write(batch)
        log.complete(batch)


def _reopen(world: _World) -> Iterator[Fault]:
    world.store.abandon()
    # Only synced data survives.
    world.files = world.files.power_cut({}, {})
    try:
        # A start does not know the monotonic clock's readings before it.
        world.clock = SimulatedClock(world.clock.wall_ms())
        world.store = open_store(world.files, _OPTIONS, world.clock)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield "I9", f"opening failed: {error!r}"
        return
    observation = observe(world.store)
    world.queue = world.store.queues[observation.queues[_QUEUE].id]
    for name, queue in world.before.items():
        if observation.queues.get(name) != queue:
            yield "I1", f"queue {name}, which nobody used, has changed"
    yield from (*observation.faults, *reported_damage(observation.report))
    bodies = [seen.payload.body for seen in observation.queues[_QUEUE].ready]
    if unexpected := set(bodies) - world.expected.keys():
        yield "I2", f"{len(unexpected)} messages are there that had expired, or never existed"
    if lost := world.expected.keys() - set(bodies):
        yield "I1", f"{len(lost)} messages are missing"
    if bodies != list(world.expected) and not (unexpected or lost):
        yield "I6", "the queue is out of order"
