"""Queues, consumers and channels in the model: plain lists, and questions about them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.property.broker_letters import Letter


class State(enum.Enum):
    """The state of a message in its queue."""

    COMING = enum.auto()
    """Published by a transaction, or moved here, and not yet on disk: consumers do not see it."""
    READY = enum.auto()
    UNACKED = enum.auto()
    GONE = enum.auto()


@dataclass(eq=False)
class Entry:
    """A letter in a queue, which keeps its place there, whatever happens to it.

    `deliveries` is how often it was handed out, `given_back_by` the consumer that gave it back
    last. `expires_ms` is 0 where it never does.
    """

    letter: Letter
    level: int
    expires_ms: int
    state: State
    ready_since_ms: int
    deliveries: int = 0
    given_back_by: Consumer | None = None

    @property
    def size(self) -> int:
        return len(self.letter.body)


@dataclass(eq=False)
class Queue:
    """A queue; its messages in the order in which they were published."""

    name: str
    durable: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    owner: object = None
    settings: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    single: Consumer | None = None
    moving: list[tuple[Entry, str]] = field(default_factory=list)
    """Messages that were rejected, or given back too often, and why: they leave in this order, by
    the end of the turn.
    """
    left: Counter[str] = field(default_factory=Counter)
    """How many messages have left the queue since the start, by reason."""
    unused_since_ms: int = 0
    is_deleted: bool = False

    @property
    def survives(self) -> bool:
        """Whether the queue is there after a restart: an exclusive queue never is."""
        return self.durable and self.owner is None

    @property
    def ready(self) -> list[Entry]:
        """The ready messages, in the order in which they are delivered: by priority, then by
        age.
        """
        ready = [entry for entry in self.entries if entry.state is State.READY]
        return sorted(ready, key=lambda entry: -entry.level)

    @property
    def coming(self) -> list[Entry]:
        """The messages that will be ready once they are durable."""
        return [entry for entry in self.entries if entry.state is State.COMING]

    @property
    def ready_bytes(self) -> int:
        return sum(entry.size for entry in self.ready)

    @property
    def rejects(self) -> bool:
        """Whether the queue refuses what it has no room for, instead of dropping what it has."""
        return bool(self.settings.get("overflow", "drop-head") != "drop-head")

    @property
    def is_limited(self) -> bool:
        return "max-length" in self.settings or "max-length-bytes" in self.settings

    @property
    def is_plain(self) -> bool:
        """Whether a message is only appended to the queue, and stays until a consumer takes it."""
        settings = self.settings
        return not (self.is_limited or settings.get("max-priority") or "message-ttl" in settings)

    @property
    def is_over_its_limit(self) -> bool:
        settings = self.settings
        return bool(
            len(self.ready) > settings.get("max-length", 1 << 60)
            or self.ready_bytes > settings.get("max-length-bytes", 1 << 60)
        )

    @property
    def first_to_drop(self) -> Entry:
        """The message that is dropped first: the oldest of the lowest priority."""
        return min(self.ready, key=lambda entry: entry.level)

    @property
    def unused_until_ms(self) -> int:
        """The time when the queue is deleted unless it is used before; 0 if it is not."""
        if self.consumers or "expires" not in self.settings:
            return 0
        return int(self.unused_since_ms + self.settings["expires"])

    def is_delivered_too_often(self, entry: Entry) -> bool:
        return bool(entry.deliveries > self.settings.get("delivery-limit", 1 << 60))

    @property
    def active(self) -> list[Consumer]:
        """The consumers that may be served: all, or the single active one."""
        alone = self.settings.get("single-active-consumer", False)
        return [one for one in self.consumers if one is self.single] if alone else self.consumers

    def elect(self) -> None:
        """Choose the next single active consumer: the oldest of the highest priority."""
        if self.single not in self.consumers:
            self.single = max(self.consumers, key=lambda one: one.priority, default=None)

    def next_for(self, consumer: Consumer) -> Entry | None:
        """Return the message that a consumer would get: the first that it did not give back, or
        simply the first if no other consumer could have it.
        """
        if len(self.active) > 1:
            return next((one for one in self.ready if one.given_back_by is not consumer), None)
        return next(iter(self.ready), None)

    def can_be_served(self, consumer: Consumer) -> Entry | None:
        """Return what a consumer gets now, if anything: its windows have to have room for it."""
        entry = self.next_for(consumer)
        return entry if entry and consumer.has_room(entry.size) else None


class Window(NamedTuple):
    """A limit of unacked messages, by their number and their bytes; 0 means no limit.

    A single message may always be unacked, however large it is.
    """

    messages: int = 0
    size: int = 0

    def has_room(self, unacked: list[Unacked], size: int) -> bool:
        if self.messages and len(unacked) >= self.messages:
            return False
        total = sum(one.entry.size for one in unacked)
        return not self.size or not unacked or total + size <= self.size


@dataclass(eq=False)
class Consumer:
    """A consumer. `window` is its own, from the basic.qos before it; its channel has another."""

    channel: Channel
    queue: Queue
    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    window: Window

    @property
    def has_size_limit(self) -> bool:
        """Whether the size of a message decides whether the consumer can have it."""
        return not self.no_ack and bool(self.window.size or self.channel.window.size)

    def has_room(self, size: int) -> bool:
        if self.channel.is_paused:
            return False
        counted = self.channel.counted
        if self.no_ack:
            # A consumer without acks takes nothing of its channel's window, but waits while that is
            # used up.
            limit = self.channel.window.messages
            return not limit or len(counted) < limit
        own = [one for one in counted if one.consumer is self]
        return self.window.has_room(own, size) and self.channel.window.has_room(counted, size)


@dataclass(eq=False)
class Unacked:
    """A message that was handed out under a delivery tag; `consumer` is None for basic.get."""

    tag: int
    queue: Queue
    entry: Entry
    consumer: Consumer | None


class Sent(NamedTuple):
    """Letters that wait for the commit, with the queues that they were routed to when sent."""

    route: list[Queue]
    letters: list[Letter]
    mandatory: bool
    immediate: bool


class Settled(NamedTuple):
    """A delivery that is acked (`requeue` is None), rejected or requeued by the commit."""

    unacked: Unacked
    requeue: bool | None


@dataclass(eq=False)
class Uncommitted:
    """The publishes, acks and rejections of a transacted channel since its last commit."""

    sent: list[Sent] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)


@dataclass(eq=False)
class Channel:
    """A channel. `answers` is what the client was told since the last look at it."""

    number: int
    connection: object
    consumers: dict[str, Consumer] = field(default_factory=dict)
    window: Window = field(default_factory=lambda: Window())
    consumer_window: Window = field(default_factory=lambda: Window())
    is_paused: bool = False
    unacked: list[Unacked] = field(default_factory=list)
    next_tag: int = 1
    confirms: bool = False
    next_publish: int = 1
    transaction: Uncommitted | None = None
    answers: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def held(self) -> list[Unacked]:
        """The messages that are unacked until their acks are committed."""
        settled = self.transaction.settled if self.transaction else []
        return [*self.unacked, *(one.unacked for one in settled)]

    @property
    def counted(self) -> list[Unacked]:
        """The messages that fill the window: all but those that were fetched."""
        return [one for one in self.held if one.consumer is not None]
