"""A whole broker on a simulated disk and clock, its clients, and what a crash may leave of it.

A history tells the broker what to do, step by step, and says before each step where every message
is once the step is done. A step is atomic: so what is on a disk that a crash left is what one of
the steps left, not an earlier one than the last that was promised, and not one that was yet to
come. Messages are called by their bodies.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amqpstore import Message, Options, Run, Store
from amqpstore.log.batch import Batch
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions
from amqpstore_server.broker.queues.kinds import DelayQueue
from amqpstore_server.broker.rights.permissions import ALL, Access
from amqpstore_server.broker.rules.settings import is_quorum
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties
from amqpstore_tools.drill.invariants import reported_damage
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.recording_outlet import Back, RecordingOutlet, Refused
from tests.simulated_broker import ROUNDS, SimulatedBroker
from tests.small_limits import small_limits

OPTIONS = Options(
    segment_bytes=2500,
    memory_bytes=600,
    checkpoint_bytes=2500,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    least_free_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
FAR_MS = 1 << 40
"""Longer than anything waits in these histories."""

IN_DOUBT = "in.doubt"
"""In `Contents`: the branches that are prepared, with how many messages each has locked.

What they are to ack or to publish is in no queue.
"""

ANYBODY = Access("guest", DEFAULT_VHOST, ALL)

Contents = dict[str, tuple[str, ...]]
"""By queue, the messages in it in the order in which they would be taken; empty ones are left out.

A message that died has its deaths behind its body, the newest first: see `described`.
"""


class Step(NamedTuple):
    """The broker is about to get a request; `contents` are the contents after it."""

    contents: Contents


class Promised(NamedTuple):
    """A client was told that the first `steps` steps are on disk."""

    steps: int


class Delivered(NamedTuple):
    """A message went out to a client; `durable` once that was made durable too.

    `message` is as in `Contents`: one that died and came back is another.
    """

    queue: str
    message: str
    durable: bool


class Clock(NamedTuple):
    """The clock shows a time."""

    now_ms: int


Event = Operation | Step | Promised | Delivered | Clock


class Client(RecordingOutlet):
    """One channel, and what its client was told. It is the channel's outlet."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.channel = Channel(world.vhost, self, self)
        self._world = world
        self._tags: dict[str, int] = {}
        self._steps_of_publishes: dict[int, int] = {}
        self._steps_of_commits: list[int] = []

    # What the client does.

    def publish(
        self,
        exchange: str,
        key: str,
        *bodies: str,
        mandatory: bool = False,
        delivery_mode: int | None = 2,
        **properties: Any,
    ) -> None:
        """Publish messages that are alike, persistent where nothing else is said."""
        of_all = BasicProperties(delivery_mode=delivery_mode, **properties)
        parsed = parse_envelope(exchange, key, encode_properties(of_all), of_all)
        messages = [Message(parsed, content_of(body)) for body in bodies]
        first = len(self._steps_of_publishes) + 1
        for tag in range(first, first + len(bodies)):
            # Of what is transient nothing is promised, but by quorum queues.
            is_kept = delivery_mode == 2 or self._world.has_quorum_queues
            self._steps_of_publishes[tag] = self._world.steps if is_kept else 0
        self.channel.publish(parsed, messages, Flags(mandatory=mandatory))
        self.channel.confirm_published()

    def commit(self) -> None:
        self._steps_of_commits.append(self._world.steps)
        self.channel.commit()

    def consume(self, queue: str, *, no_ack: bool = False, prefetch: int = 0) -> None:
        self.channel.consumer_window = prefetch, 0
        options = ConsumerOptions(no_ack=no_ack)
        self.channel.consume(self._world.vhost.queue(queue), f"from {queue}", options)

    def get(self, queue: str, *, no_ack: bool = False) -> str:
        """Fetch one message: its body."""
        got = self.channel.get(self._world.vhost.queue(queue), no_ack=no_ack)
        assert got is not None
        self._received(queue, *got, acked=no_ack)
        assert got[1].messages is not None
        return body_of(got[1].messages[0])

    def tag(self, body: str) -> int:
        """The delivery tag under which it got a message last."""
        return self._tags[body]

    def ack(self, *bodies: str) -> None:
        for body in bodies:
            self.channel.ack(self.tag(body), self.tag(body))

    def reject(self, *bodies: str) -> None:
        for body in bodies:
            self.channel.reject(self.tag(body), requeue=False)

    def requeue(self, *bodies: str) -> None:
        for body in bodies:
            self.channel.reject(self.tag(body), requeue=True)

    def _received(self, queue: str, first_tag: int, run: Run, *, acked: bool) -> None:
        for tag, message in enumerate(run.messages or (), first_tag):
            self._tags[body_of(message)] = tag
            if not acked:
                self._world.delivered(queue, described(message))

    # What it is told.

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        super().deliver(consumer, first_tag, run)
        self._received(consumer.queue.name, first_tag, run, acked=consumer.no_ack)

    def confirm(self, tag: int, *, multiple: bool) -> None:
        super().confirm(tag, multiple=multiple)
        first = 1 if multiple else tag
        steps = [self._steps_of_publishes[one] for one in range(first, tag + 1)]
        self._world.promised(max(steps))

    def committed(self) -> None:
        super().committed()
        self._world.promised(self._steps_of_commits.pop(0))

    @property
    def returned_bodies(self) -> list[str]:
        return [body_of(told.message) for told in self.record if isinstance(told, Back)]

    @property
    def refused(self) -> list[int]:
        return [told.tag for told in self.record if isinstance(told, Refused)]


class World(SimulatedBroker):
    """A broker from its first day on, and all that happens to it, as `events`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.steps = 0
        self.contents: Contents = {}
        self._batch: Batch | None = None
        super().__init__(options=OPTIONS)
        self.base = self.disk

    def make_services(self) -> BrokerServices:
        services = super().make_services()
        services.flush = self.flush
        return services

    @property
    def has_quorum_queues(self) -> bool:
        return any(is_quorum(queue.arguments) for queue in self.vhost.queues.values())

    def begin(self) -> None:
        """The queues and exchanges are there: from now on each operation may be the last."""
        self.base = self.disk.fork()
        self.disk.record = self.events.append
        self.events += [Clock(self.now_ms), Step(dict(self.contents))]
        self.steps = 1
        self.promised(1)

    def client(self) -> Client:
        return Client(self)

    # What is written down.

    def step(self, **changed: str) -> None:
        """Announce an atomic step, after which these queues hold these messages."""
        for queue, bodies in changed.items():
            self.contents[queue.replace("__", ".")] = tuple(bodies.split())
        self.contents = {queue: bodies for queue, bodies in self.contents.items() if bodies}
        self.steps += 1
        self.events.append(Step(dict(self.contents)))

    def promised(self, steps: int) -> None:
        self.events.append(Promised(steps))

    def promise(self) -> None:
        """Promise the last step to the client that asked for it, once the step is durable."""
        self.store.log.when_durable(functools.partial(self.promised, self.steps))

    def delivered(self, queue: str, message: str) -> None:
        self.events.append(Delivered(queue, message, durable=False))
        note = functools.partial(self.events.append, Delivered(queue, message, durable=True))
        self.store.log.when_durable(note)

    # Time and the disk.

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.events.append(Clock(self.now_ms))
        self.work()

    def sync(self) -> None:
        """Have everything done, and made durable."""
        self.finish_sync()
        self.settle()

    def flush(self) -> None:
        """Do what the broker does when something must be durable at once."""
        self.finish_sync()
        self.store.sync()

    def begin_sync(self) -> None:
        """Seal the batch; what is done from now on is the next one's."""
        self.finish_sync()
        self.work()
        self._batch = self.store.log.seal(self.now_ms)

    def finish_sync(self) -> None:
        """Write the batch that was sealed."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self.store.log.write(batch)
            self.store.log.complete(batch)
            self.work()

    def restart(self, after_ms: int = 0) -> None:
        """Kill the process, with all that was synced, and start it anew a while later."""
        self.sync()
        self.store.abandon()
        self.clock.advance(after_ms)
        self.events.append(Clock(self.now_ms))
        self.open()


class Meanwhile:
    """Work between the steps of long work: another client publishes to the queue `others`, and
    everything that was done so far becomes durable.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = world.client()
        self._bodies: list[str] = []

    def publish(self) -> None:
        """Publish a message, and do no other work but the disk's."""
        world = self._world
        self._bodies.append(f"other{len(self._bodies)}")
        world.step(others=" ".join(self._bodies))
        self._client.publish("", "others", self._bodies[-1])
        world.flush()
        world.promised(world.steps)
        if not len(self._bodies) % 4:
            world.store.upkeep.checkpoint()


@dataclass
class Found:
    """The contents of a disk: where messages are, and how often each was delivered, by queue."""

    contents: Contents
    counts: Counter[tuple[str, str]]


@dataclass
class Expected:
    """The contents that a disk may have, by what has happened so far."""

    steps: list[Contents] = field(default_factory=list)
    promised: int = 0
    asked_deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    durable_deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    now_ms: int = 0

    def note(self, event: Step | Promised | Delivered | Clock) -> None:
        if isinstance(event, Step):
            self.steps.append(event.contents)
        elif isinstance(event, Promised):
            self.promised = max(self.promised, event.steps)
        elif isinstance(event, Clock):
            self.now_ms = event.now_ms
        elif event.durable:
            self.durable_deliveries[event.queue, event.message] += 1
        else:
            self.asked_deliveries[event.queue, event.message] += 1

    def faults(self, found: Found) -> Iterator[str]:
        """Yield what is wrong with the contents of a disk, in words."""
        if found.contents not in self.steps[self.promised - 1 :]:
            if found.contents in self.steps:
                yield f"undone: {found.contents}, and promised was {self.steps[self.promised - 1]}"
            else:
                yield f"in pieces: {found.contents}, which no step left"
        for key, count in found.counts.items():
            least, most = self.durable_deliveries[key], self.asked_deliveries[key]
            if not least <= count <= most:
                yield f"count: {key} was delivered {least} to {most} times, and has {count}"


Later = Callable[[Contents], Contents]
"""A function that returns where the messages end up if only time passes."""


def violations(
    world: World,
    *,
    images: int = 12,
    later: Later | None = None,
    stop_after: int = 5,
    until: str | tuple[()] = (),
    seed: int = 0,
) -> list[str]:
    """Return what is wrong with any of the disks that a crash may leave, at each operation of a
    history.

    Each is recovered, and the broker opened; and then the power is cut once more. With `until` this
    ends when something is wrong whose description begins so.
    """
    world.sync()
    world.store.abandon()
    expected = Expected()
    known: dict[bytes, Found | str] = {}
    at_last: list[tuple[str, Found]] = []
    wrong: dict[str, str] = {}
    disk = world.base
    rng = random.Random(f"broker {seed}")

    def check() -> None:
        for where, recovered in at_last:
            for fault in expected.faults(recovered):
                wrong.setdefault(fault, where)

    for event in world.events:
        if isinstance(event, Step | Promised | Delivered | Clock):
            expected.note(event)
            continue
        if len(wrong) >= stop_after or any(fault.startswith(until) for fault in wrong):
            break
        # Everything promised before this operation is in each image of the operation before it.
        check()
        at_last.clear()
        disk.redo(event)
        for image in crash_images(disk, rng, images):
            where = f"at {event} ({image.description})"
            digest = image.files.digest()
            if digest not in known:
                known[digest] = recovered = _recovered(image.files.fork(), expected.now_ms)
                if later and isinstance(recovered, Found):
                    for fault in _later_faults(image.files, expected.now_ms, recovered, later):
                        wrong.setdefault(fault, where)
            recovered = known[digest]
            if isinstance(recovered, str):
                wrong.setdefault(recovered, where)
            else:
                at_last.append((where, recovered))
        # What was asked for only after this operation is in none of its images.
        check()
    check()
    assert wrong or len(known) > 10, "the history leaves nothing to look at"
    return [f"{fault} [{where}]" for fault, where in wrong.items()]


def _recovered(files: MemoryFiles, now_ms: int) -> Found | str:
    """Open the broker, twice, with a power cut in between; what is there, or what is wrong."""
    try:
        simulation = reopened(files, now_ms)
        simulation.cut_power(files.power_cut({}, {}))
        simulation.open()
    except Exception as error:  # noqa: BLE001 (any error is a finding)
        return f"not opened: {error!r}"
    try:
        damage = reported_damage(simulation.store.recovery_report)
        return str(damage) if damage else found_in(simulation)
    finally:
        simulation.store.abandon()


def _later_faults(files: MemoryFiles, now_ms: int, found: Found, later: Later) -> Iterator[str]:
    """Yield what is wrong once all time has passed."""
    simulation = reopened(files.fork(), now_ms)
    try:
        for _ in range(ROUNDS):
            simulation.settle()
            due_ms = simulation.services.ms_to_next_timer()
            if due_ms is None or simulation.now_ms + due_ms > now_ms + FAR_MS:
                break
            simulation.clock.advance(due_ms)
        at_last = found_in(simulation).contents
        if at_last != later(found.contents):
            yield f"later: {found.contents} became {at_last}"
    finally:
        simulation.store.abandon()


def reopened(disk: MemoryFiles, now_ms: int) -> SimulatedBroker:
    """Open the broker that is on a disk."""
    return SimulatedBroker(options=OPTIONS, disk=disk, now_ms=now_ms)


def found_in(simulation: SimulatedBroker) -> Found:
    """Take all that is ready in a broker, and return it."""
    contents = Found({}, Counter())
    for name, queue in simulation.vhost.queues.items():
        bodies: list[str] = []
        levels = list(queue.priorities)
        if isinstance(queue, DelayQueue):
            levels.reverse()  # of slices of time, and the soonest leaves it first
        for level in levels:
            while (run := simulation.store.take(level, 1000)) is not None:
                assert isinstance(run, Run), run
                for message in run.messages or ():
                    contents.counts[name, described(message)] = run.delivery_count
                    bodies.append(described(message))
        if bodies:
            contents.contents[name] = tuple(bodies)
    undecided = {xid.global_id.decode() for xid in simulation.vhost.branches.recover(ANYBODY)}
    locked = {
        prepared.label["xid"][1].decode(): sum(run.count for _, run in prepared.locked)
        for prepared in simulation.store.prepared.values()
    }
    assert undecided == locked.keys()
    if undecided:
        contents.contents[IN_DOUBT] = tuple(f"{name}*{locked[name]}" for name in sorted(locked))
    return contents


def sync_at_once(store: Store) -> None:
    """Make everything durable that was done so far, where no batch is under way: for broken
    copies.
    """
    if store.log.is_idle:
        store.sync()


def content_of(body: str) -> bytes:
    """A body with some weight, so that it takes a few messages to fill a segment."""
    return f"{body} ".encode() + b"the same " * 20


def body_of(message: Message) -> str:
    return message.body.split()[0].decode()


def described(message: Message) -> str:
    """A message's body and deaths: `a:rejected@work*2:expired@slow*1` died three times."""
    headers = decode_properties(message.envelope.properties).headers or {}
    deaths: Any = headers.get("x-death", [])
    told = [f"{one['reason']}@{one['queue']}*{one['count']}" for one in deaths]
    return ":".join([body_of(message), *told])
