"""Browsing: what is in a queue, message by message, for operators; nothing is taken off it.

A queue is walked in the order in which it is served: the highest priority first. A message's
position in it, its priority and its sequence in the store's queue for that, never changes and is
never given to another one; so a walk can go on at a position, whatever has happened in between.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import amqpstore
from amqpstore import Message, Run
from amqpstore.queues.browsing import Browsed, Browser, read_messages
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.filters import Matcher
from amqpstore_server.protocol.bounds import MessageRoom

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.work.services import BrokerServices

SEEN_AT_ONCE = 128
"""Messages that a step reads, and a filter looks at: about 2 ms."""

MAX_PAYLOADS_BYTES = 16 << 20
"""The bytes that the bodies of a page may have in all; the bodies after those are left empty."""

_POSITION = re.compile(r"(?:([0-9]{1,18}):)?([0-9]{1,18})")

_UNACKED_AT_ONCE = 4096
"""Unacked runs that are collected before others have their turn."""


class MessagePosition(NamedTuple):
    """The position of a message in a queue. Its text is the sequence, after `PRIORITY:` if that is
    not 0.
    """

    priority: int
    sequence: int

    @classmethod
    def of(cls, text: str | int) -> MessagePosition:
        """Parse a text. Raises: PreconditionFailedError."""
        if not (found := _POSITION.fullmatch(str(text))):
            raise PreconditionFailedError(
                f"'{text}' is not the position of a message: that is a number, or two with a colon"
            )
        priority, sequence = found.groups(default="0")
        return cls(int(priority), int(sequence))

    def __str__(self) -> str:
        return f"{self.priority}:{self.sequence}" if self.priority else str(self.sequence)

    @property
    def order(self) -> tuple[int, int]:
        """The key that positions are sorted by."""
        return -self.priority, self.sequence


class SeenMessage(NamedTuple):
    """A message of a queue; without `message`, one that cannot be read. In a page it may have only
    the beginning of its body, of `body_bytes`.
    """

    position: MessagePosition
    message: Message | None
    delivery_count: int
    expires_ms: int
    is_unacked: bool = False
    body_bytes: int = 0


class Walk:
    """A walk through the ready messages of a queue, from a position to the end.

    `position` is where the next step starts, and None at the end.
    Args: until_now, what arrives from now on is not visited.
    """

    def __init__(
        self,
        services: BrokerServices,
        queue: Queue,
        start: MessagePosition | None = None,
        *,
        until_now: bool = False,
    ) -> None:
        levels = queue.priorities.levels()
        self.position = start or MessagePosition(levels[0][0], 0)
        self.is_done = False
        self._queue = queue
        self._stored = services.store.stored
        # A walk that copies a queue into itself would otherwise never end.
        self._ends = {level: one.next_sequence for level, one in levels} if until_now else None
        self._browsers: dict[int, Browser] = {}

    def step(self, most: int = SEEN_AT_ONCE) -> list[SeenMessage]:
        """Return about `most` of the next messages; there may be none although the walk is not at
        its end.
        """
        level = self._level()
        if level is None:
            return []
        browsed, next_sequence = self._browsers[level].read(self.position.sequence, most)
        end = None if self._ends is None else self._ends.get(level, 0)
        # Places are compared by sequence: what came since has a higher one, and what is requeued
        # has its old one.
        if end is not None and (not next_sequence or next_sequence >= end):
            browsed = [one for one in browsed if one.sequence < end]
            next_sequence = 0
        self._go_on(level, next_sequence)
        return [_seen(level, one) for one in browsed]

    def skip(self, count: int) -> int:
        """Skip some of the next `count` messages. Returns how many of them are still to be
        skipped.
        """
        level = self._level()
        if level is None:
            return 0
        next_sequence, left = self._browsers[level].skip(self.position.sequence, count)
        self._go_on(level, next_sequence)
        return left

    def _level(self) -> int | None:
        """Find the priority to go on with; None at the end."""
        if not (self.is_done or self._queue.is_deleted):
            for level, store_queue in self._queue.priorities.levels():
                if level <= self.position.priority:
                    if level < self.position.priority:
                        self.position = MessagePosition(level, 0)
                    if level not in self._browsers:
                        self._browsers[level] = Browser(self._stored, store_queue)
                    return level
        self.is_done = True
        return None

    def _go_on(self, level: int, next_sequence: int) -> None:
        if next_sequence:
            self.position = MessagePosition(level, next_sequence)
            return
        lower = [one for one, _ in self._queue.priorities.levels() if one < level]
        self.is_done = not lower
        # Behind everything of this priority that there will ever be.
        self.position = MessagePosition(max(lower, default=0), 0 if lower else _BEHIND)


_BEHIND = 1 << 63


def _seen(level: int, one: Browsed) -> SeenMessage:
    return SeenMessage(
        MessagePosition(level, one.sequence), one.message, one.delivery_count, one.expires_ms
    )


class Page(NamedTuple):
    """Messages of a queue in order, and where the next page starts, None at the end; `scanned` is
    how many were looked at, and `unacked` how many there are in the queue.
    """

    messages: list[SeenMessage]
    next: MessagePosition | None
    scanned: int
    unacked: int


class PageRequest(NamedTuple):
    """The page that is asked for: `limit` messages from `start` on, after `offset` ready ones; of
    those that `matcher` selects, and no more than `max_scanned` are looked at. Of each body the
    first `kept_bytes` are kept. A page may have fewer messages, if these have long properties.
    """

    start: MessagePosition | None
    offset: int
    limit: int
    matcher: Matcher | None
    max_scanned: int
    kept_bytes: int


class _PageMessages:
    """Messages that a page keeps, cut as they are seen: whole bodies of a thousand would not fit
    into memory.
    """

    def __init__(self, kept_bytes: int) -> None:
        self.messages: list[SeenMessage] = []
        self._kept_bytes = kept_bytes
        self._room = MessageRoom(MAX_PAYLOADS_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether no more properties should be kept."""
        return self._room.properties_left_bytes <= 0

    def add(self, seen: SeenMessage) -> None:
        """Keep a message, with the beginning of its body."""
        if (message := seen.message) is not None:
            body_bytes = len(message.body)
            most = min(self._kept_bytes, self._room.bodies_left_bytes)
            if body_bytes > most:
                # Bodies are cut while they are read: a page of 40 bodies of 64 MiB took 2.6 GB
                # when they were kept until the end.
                message = Message(message.envelope, bytes(message.body[:most]))
            self._room.take(len(message.body), len(message.envelope.properties))
            seen = seen._replace(message=message, body_bytes=body_bytes)
        self.messages.append(seen)


def browse(
    services: BrokerServices, queue: Queue, asked: PageRequest
) -> Generator[None, None, Page]:
    """Read a page, in steps: others may have their turn after each.

    Raises: ReadLaterError.
    """
    unacked = yield from _unacked(services, queue)
    walk = Walk(services, queue, asked.start)
    left = asked.offset
    while left and not walk.is_done:
        services.work["browse"] = None
        # The walk is done in steps, as an offset may be a million.
        left = walk.skip(left)
        yield
    first = walk.position
    after: MessagePosition | None = None
    part = _PageMessages(asked.kept_bytes)
    listed = part.messages
    scanned = 0
    while not (walk.is_done or part.is_full or after) and (
        len(listed) < asked.limit and scanned < asked.max_scanned
    ):
        services.work["browse"] = None
        # Small pages read little; where a filter looks for few, much is read.
        most = asked.limit - len(listed) if asked.matcher is None else SEEN_AT_ONCE
        seen = walk.step(min(most, SEEN_AT_ONCE, asked.max_scanned - scanned))
        for index, candidate in enumerate(seen):
            if len(listed) == asked.limit or part.is_full:
                # The next page starts with it: it is not looked at twice, nor counted twice.
                after = candidate.position
                del seen[index:]
                break
            if _is_wanted(candidate, asked.matcher):
                part.add(candidate)
        scanned += len(seen)
        yield
    if after is None and not walk.is_done:
        after = walk.position
    more, stopped = yield from _read_unacked(services, unacked, first, after, asked)
    merged = {one.position: one for one in (*more, *listed)}  # what is ready again, is ready
    messages = sorted(merged.values(), key=lambda one: one.position.order)
    if stopped is not None:
        after = stopped
        messages = [one for one in messages if one.position.order < stopped.order]
    if len(messages) > asked.limit:
        after = messages[asked.limit].position
        del messages[asked.limit :]
    return Page(messages, after, scanned, sum(run.count for _, run in unacked))


def _is_wanted(seen: SeenMessage, matcher: Matcher | None) -> bool:
    if matcher is None:
        return True
    return seen.message is not None and matcher.matches(seen.message, seen.delivery_count)


def _unacked(
    services: BrokerServices, queue: Queue
) -> Generator[None, None, list[tuple[int, Run]]]:
    """Return the runs that are unacked, or wait to be moved, each with its priority."""
    priorities = {store_queue: level for level, store_queue in queue.priorities.levels()}
    found: list[tuple[int, Run]] = []
    looked_at = 0
    for taken in _all_taken(services, queue):
        # Copied at once: its owner may split it, or drop its messages from memory, between two
        # steps.
        found += [(priorities[one], _copy_of(run)) for one, run in taken if one in priorities]
        looked_at += 1 + len(taken)
        if looked_at >= _UNACKED_AT_ONCE:
            looked_at = 0
            yield
    return sorted(found, key=lambda one: MessagePosition(one[0], one[1].first_sequence).order)


def _all_taken(
    services: BrokerServices, queue: Queue
) -> Iterator[Sequence[tuple[amqpstore.Queue, Run]]]:
    yield queue.pending_moves.waiting()
    for prepared in list(services.store.prepared.values()):
        yield prepared.locked
    for channel in list(services.ack_timeouts.channels):
        yield [(one.store_queue, one.run) for one in channel.unacked_in(queue)]


def _copy_of(run: Run) -> Run:
    return Run(
        run.first_sequence,
        run.count,
        first_id=run.first_id,
        ids=run.ids,
        messages=run.messages,
        delivery_count=run.delivery_count,
        expires_ms=run.expires_ms,
    )


def _read_unacked(
    services: BrokerServices,
    unacked: Sequence[tuple[int, Run]],
    first: MessagePosition,
    after: MessagePosition | None,
    asked: PageRequest,
) -> Generator[None, None, tuple[list[SeenMessage], MessagePosition | None]]:
    """Return the wanted ones of unacked messages between two positions, up to one more than the
    limit: that is where the next page starts. Returns also the position that the page has no room
    for, if there is one.
    """
    part = _PageMessages(asked.kept_bytes)
    listed = part.messages
    for level, run in unacked:
        if len(listed) > asked.limit:
            break
        if MessagePosition(level, run.end - 1).order < first.order:
            continue
        if after is not None and MessagePosition(level, run.first_sequence).order >= after.order:
            break
        index = max(first.sequence - run.first_sequence, 0) if level == first.priority else 0
        while index < run.count and len(listed) <= asked.limit:
            services.work["browse"] = None
            count = min(run.count - index, SEEN_AT_ONCE)
            for message in read_messages(services.store.stored, run, index, count):
                position = MessagePosition(level, run.first_sequence + index)
                index += 1
                if after is not None and position.order >= after.order:
                    return listed, None
                if part.is_full:
                    return listed, position
                seen = SeenMessage(
                    position, message, run.delivery_count, run.expires_ms, is_unacked=True
                )
                if _is_wanted(seen, asked.matcher):
                    part.add(seen)
            yield
    return listed, None
