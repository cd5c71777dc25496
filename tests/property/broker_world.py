"""The broker for the state machine, on a simulated disk, with a record of what it does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amqpstore import Message, Options, Run
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.operations import Operation
from tests.property.broker_letters import Letter, label_of, letter_of
from tests.property.broker_model import MAX_DROPPING, Delivered, Event, Flushed, Left
from tests.recording_outlet import (
    Back,
    Cancelled,
    Committed,
    Confirmed,
    RecordingOutlet,
    Refused,
    Told,
)
from tests.simulated_broker import SimulatedBroker
from tests.small_limits import small_limits

OPTIONS = Options(
    segment_bytes=2_000,
    memory_bytes=300,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
    least_free_bytes=0,
    limits=small_limits(entries_a_file=4, max_runs=1),
)
"""Checkpoints come by their rule alone; few bodies stay in memory."""

LIMITS = BROKER_LIMITS._replace(max_dropping=MAX_DROPPING)


class ChannelOutlet(RecordingOutlet):
    """The way out of channel `number`: deliveries are events of the world as well."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__()
        self._world = world
        self._number = number

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        super().deliver(consumer, first_tag, run)
        letters = [letter_of(message) for message in run.messages or ()]
        redelivered = bool(run.delivery_count)
        self._world.happened.append(
            Delivered(self._number, consumer.tag, first_tag, letters, redelivered)
        )

    def take_answers(self) -> list[tuple[Any, ...]]:
        """Return what the client was told since the last call, in the form of the model."""
        record, self.record = self.record, []
        return [answer for told in record for answer in _answers(told)]


def _answers(told: Told) -> list[tuple[Any, ...]]:
    match told:
        case Back(message, reason):
            return [("returned", reason.name, letter_of(message))]
        case Confirmed(tags):
            return [("confirmed", tag) for tag in tags]
        case Refused(tag):
            return [("refused", tag)]
        case Committed():
            return [("committed",)]
        case Cancelled(consumer_tag):
            return [("cancelled", consumer_tag)]
        case _:
            return []  # deliveries are in what happened


@dataclass(eq=False)
class WatchedServices(BrokerServices):
    """Services that know where to write down what happens."""

    happened: deque[Event] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flush = self._flush

    def _flush(self) -> None:
        self.happened.append(Flushed())
        self.store.sync()


class WatchedHost(VirtualHost):
    """A virtual host that writes down what leaves its queues without a consumer, and when."""

    def _way_out(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        assert isinstance(self.services, WatchedServices)
        # What is taken together is one transaction: none of it arrives before all of it does.
        count = sum(one.run.count for one in taken)
        self.services.happened.append(Left(queue.name, reason, count))
        return super()._way_out(queue, taken, reason)


class WatchedBroker(Broker):
    """A broker of such virtual hosts."""

    vhost_type = WatchedHost


class World(SimulatedBroker):
    """A broker, its channels, its disk and its clock. The `Choices` of the model."""

    services_type = WatchedServices
    broker_type = WatchedBroker

    def __init__(self) -> None:
        self.happened: deque[Event] = deque()
        self.channels: dict[int, Channel] = {}
        self.outlets: dict[int, ChannelOutlet] = {}
        self.kept: dict[Queue, int] = {}
        """How many messages each queue had when the broker started."""
        self.recovered: dict[str, list[tuple[bytes, int]]] = {}
        super().__init__(options=OPTIONS, limits=LIMITS)

    def open(self, *, look: bool = False) -> None:
        """Start a broker on what is on the disk. With `look` say in `recovered` what that is."""
        self._looks = look
        self.channels.clear()
        self.outlets.clear()
        self.kept.clear()
        super().open()

    def store_opened(self) -> None:
        if self._looks:
            self.recovered = self._recovered()

    def make_services(self) -> BrokerServices:
        services = super().make_services()
        assert isinstance(services, WatchedServices)
        services.happened = self.happened
        return services

    def _recovered(self) -> dict[str, list[tuple[bytes, int]]]:
        """Return what is ready in each queue: bodies, and how often they were delivered."""
        found: dict[str, list[tuple[bytes, int]]] = {}
        definitions: list[tuple[Any, Any]] = [
            (queue.definition, queue) for queue in self.store.queues.values()
        ]
        for definition, level in sorted(definitions, key=lambda one: -one[0].get("level", 0)):
            held = found.setdefault(definition["name"], [])
            self.store.stored.paging.read_index(level)
            for run in level.ready:
                messages = list(run.messages or ())
                while len(messages) < run.count:
                    place = len(messages)
                    read = self.store.log.read(run.first_id + place, run.count - place)
                    assert isinstance(read, list)
                    messages += read
                held += [(one.body, run.delivery_count) for one in messages]
        return found

    # What the model asks for (see `Choices`).

    def peek(self) -> Event | None:
        return self.happened[0] if self.happened else None

    def pop(self) -> Event:
        return self.happened.popleft()

    def order(self, letter: Letter, queues: set[str]) -> list[str]:
        route = [queue.name for queue in self.vhost.router.route(label_of(letter)).queues]
        return sorted(queues, key=lambda name: route.index(name) if name in route else len(route))

    # What goes on.

    def open_channel(self, number: int, connection: object) -> None:
        self.outlets[number] = ChannelOutlet(self, number)
        self.channels[number] = Channel(self.vhost, connection, self.outlets[number])

    def publish(
        self, number: int, letters: list[Letter], *, mandatory: bool, immediate: bool
    ) -> None:
        """One read of a connection in which these letters came."""
        label = label_of(letters[0])
        channel = self.channels[number]
        messages = [Message(label, letter.body) for letter in letters]
        channel.publish(label, messages, Flags(mandatory=mandatory, immediate=immediate))
        channel.confirm_published()

    def get(self, number: int, queue: str, *, no_ack: bool) -> tuple[int, Letter, bool] | None:
        got = self.channels[number].get(self.vhost.queues[queue], no_ack=no_ack)
        if got is None:
            return None
        tag, run = got
        assert run.messages is not None
        (message,) = run.messages
        return tag, letter_of(message), bool(run.delivery_count)

    def close_connection(self, connection: object) -> None:
        for channel in self.channels.values():
            if channel.connection is connection:
                channel.close()
        self.vhost.owned_queues.end(connection)

    def stop(self) -> None:
        """End the process cleanly; the connections are closed, and all is durable."""
        assert self.store.log.is_empty
        self.store.close()

    def lose_power(self, seed: int | None) -> None:
        """Cut the power. With a seed, while the open batch is written: any part of it may be
        on the disk."""
        disks = [self.disk.fork()]
        if seed is not None and (batch := self.store.log.seal(self.now_ms)):

            def keep(_: Operation) -> None:
                disks.append(self.disk.fork())

            self.disk.record = keep
            self.store.log.write(batch)
            self.disk.record = None
        chance = random.Random(seed)
        images = list(crash_images(chance.choice(disks), chance, 8))
        self.cut_power(chance.choice(images).files)
        self.happened.clear()
