"""Dispatch: which of a queue's consumers gets the ready messages.

Consumers of the highest priority are served first, those of equal priority in turns. A requeued
message goes to another consumer if there is one.

With a single active consumer only that one is served. When it has gone, the one of the highest
priority follows, and of these the oldest. In a quorum queue one of a higher priority does not wait
for that: nothing more is delivered to the active one, and once it has settled what it has, the
other takes over.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.rules.settings import is_quorum
from amqpstore_server.broker.weak_references import weakly
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.consumer import Consumer, ConsumingChannel
    from amqpstore_server.broker.queues.queue import Queue


_UNLIMITED = 1 << 32
_ROOM_WEIGHT = 0.13
"""The part that a second adds to the share of time with room: half of it is of the last five."""
_MANY = 8


class Dispatch:
    """The consumers of a queue, in the order in which they started."""

    def __init__(self, services: BrokerServices, queue: Queue) -> None:
        # Ordered dictionaries: of a hundred thousand consumers each can leave in no time.
        self.consumers: OrderedDict[Consumer, None] = OrderedDict()
        self._services = services
        self._agenda = services.agenda
        self._queue = weakly(queue)
        self._backlog = queue.backlog
        self._priorities = queue.backlog.priorities
        self._lines: dict[int, OrderedDict[Consumer, None]] = {}
        """By priority, those that are looked at: the next in line first."""
        self._falling: list[int] = []
        """The priorities, negated and ascending."""
        self._room_share: float | None = None
        self._single: Consumer | None = None
        """The single active consumer; None where all are served."""
        self._is_challenged = False
        """Whether one of a higher priority is to take over from it."""

    def __bool__(self) -> bool:
        return bool(self.consumers)

    def __len__(self) -> int:
        return len(self.consumers)

    @property
    def room_share(self) -> float:
        """The share of the last seconds in which a message could be delivered at once; 0 without
        consumers.
        """
        if not self.consumers:
            return 0.0
        return self._can_deliver() if self._room_share is None else self._room_share

    def note_room(self) -> None:
        """Note whether a message could be delivered at once: to be called once a second."""
        if not self.consumers:
            self._room_share = None
            return
        before = self.room_share
        self._room_share = before + (self._can_deliver() - before) * _ROOM_WEIGHT

    def _can_deliver(self) -> float:
        return float(any(one.capacity > 0 for one in self.active))

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises: AccessRefusedError, when a consumer has, or asks for, the queue
        exclusively.
        """
        # RabbitMQ refuses this pair as well: one of the two could never act.
        if consumer.exclusive and self._queue().settings.single_active_consumer:
            raise AccessRefusedError(
                f"queue '{self._queue().name}' has a single active consumer: none can be exclusive"
            )
        first = next(iter(self.consumers), None)
        if first is not None and (consumer.exclusive or first.exclusive):
            raise AccessRefusedError(f"queue '{self._queue().name}' in exclusive use")
        self.consumers[consumer] = None
        self._line_up(consumer)
        if self._queue().settings.single_active_consumer:
            if self._single is None:
                self._single = consumer
            # Classic queues of RabbitMQ keep the active consumer until it goes; quorum queues do
            # not.
            elif consumer.priority > self._single.priority and is_quorum(self._queue().arguments):
                self._is_challenged = True

    def _elect(self) -> None:
        """Make the first in line the single active consumer."""
        line = self._lines[-self._falling[0]] if self._falling else self.consumers
        self._single = next(iter(line), None)
        self._is_challenged = False

    def _has_taken_over(self) -> bool:
        """Have a challenger take over if it can. Returns False while it has to wait."""
        active = self._single
        # Two consumers at work at once is what a single active consumer is there to prevent.
        if active is not None and active.window.unacked:
            # So that `readmit` is called when it settles something.
            active.is_apart = True
            self._remove_from_line([active])
            return False
        self._elect()
        return True

    def _line_up(self, consumer: Consumer) -> None:
        """Add a consumer at the end of the line of its priority."""
        line = self._lines.get(consumer.priority)
        if line is None:
            line = self._lines[consumer.priority] = OrderedDict()
            insort(self._falling, -consumer.priority)
        line[consumer] = None

    def _remove_from_line(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers from the lines of their priorities."""
        lines = self._lines
        for consumer in consumers:
            priority = consumer.priority
            if (line := lines.get(priority)) and consumer in line:
                del line[consumer]
                if not line:
                    del lines[priority]
                    del self._falling[bisect_left(self._falling, -priority)]

    def readmit(self, consumer: Consumer) -> None:
        """Look at a consumer again that could take nothing: it is the last in line."""
        consumer.is_apart = False
        # The consumer may have been cancelled while it stood apart.
        if consumer in self.consumers:
            self._line_up(consumer)
            if self._is_challenged:
                self._queue().touch()

    def _set_apart(self, line: Iterable[Consumer]) -> None:
        """Do not look at those of some consumers that can take nothing until they can: there may be
        thousands. Their channel calls `readmit` then.
        """
        # What holds up a whole channel often lasts for one round only.
        are_many = len(self.consumers) > _MANY
        if apart := [one for one in line if one.is_full or (are_many and one.capacity <= 0)]:
            for consumer in apart:
                consumer.is_apart = True
            self._remove_from_line(apart)

    def remove(self, consumers: Iterable[Consumer]) -> bool:
        """Remove consumers. Returns whether any of them was there."""
        gone = [one for one in consumers if one in self.consumers]
        for consumer in gone:
            del self.consumers[consumer]
        self._remove_from_line(gone)
        if self._single in gone:
            self._elect()
        return bool(gone)

    def clear(self) -> list[Consumer]:
        """Remove and return all consumers."""
        consumers = list(self.consumers)
        self.consumers.clear()
        self._lines.clear()
        self._falling.clear()
        self._single = None
        self._is_challenged = False
        return consumers

    @property
    def active(self) -> Collection[Consumer]:
        """The consumers that may be served."""
        return self.consumers if self._single is None else (self._single,)

    def capacity(self, size: int) -> int:
        """Return a lower bound of how many messages of `size` bytes the consumers can take now,
        together.
        """
        able = []
        by_channel: dict[ConsumingChannel, int] = {}
        for consumer in self.active:
            taken = consumer.capacity
            if taken <= 0 or (consumer.has_size_limit and not consumer.fits(size)):
                continue
            able.append(consumer)
            if consumer.no_ack:
                continue
            window = consumer.channel.window
            if consumer.has_size_limit:
                taken = 1
            else:
                own = consumer.window
                taken = own.messages - own.unacked if own.messages else _UNLIMITED
            taken += by_channel.get(consumer.channel, 0)
            if window.size:
                taken = min(taken, 1)
            if window.messages:
                taken = min(taken, window.messages - window.unacked)
            by_channel[consumer.channel] = taken
        total = sum(by_channel.values())
        for consumer in able:
            channel = consumer.channel
            # It waits too, once others have used up the channel's limit.
            if consumer.no_ack and not (channel.window.messages and channel in by_channel):
                total += _UNLIMITED
        return total

    def pump(self, *, yields: bool) -> None:
        """Hand out ready messages while consumers can take them.

        Each consumer gets its share as one run, so that a round costs per run, not per message.
        Args: yields, whether others have their turn before everything is handed out: after many
        messages, and where consumers share the limit of their channel, the other queues that they
        consume from after one share.
        """
        self._backlog.is_reading = False
        if self._single is not None:
            if not self._is_challenged or self._has_taken_over():
                self._serve(self.active, self._priorities.ready_count, yields=yields)
            return
        ready = self._priorities.ready_count
        # A copy: handing out may cancel consumers, and so change the lines.
        for negated in [*self._falling]:
            if ready <= 0:
                return
            # The queue may be deleted in the middle of a round.
            ready = self._serve(self._lines.get(-negated, ()), ready, yields=yields)

    def _serve(self, line: Collection[Consumer], ready: int, *, yields: bool) -> int:
        """Serve consumers of one priority.

        Args: ready, how many messages there are: fewer, if some of them cannot be delivered.
        Returns how many are left for other priorities: 0, too, if the queue has to let others have
        their turn first.
        """
        queue = self._queue()
        agenda = self._agenda
        most = self._services.limits.max_handed_out
        while ready > 0:
            count = len(line)
            if count <= ready:
                able = [consumer for consumer in line if consumer.capacity > 0]
                able_count = len(able)
                if able_count < count:
                    self._set_apart(line)
            else:
                able = self._first_able(line, ready)
                able_count = len(able)
            if not able:
                return ready
            others = able_count == ready < count
            # A round is about as long whether one consumer takes all or many do.
            share = max(1, (min(ready, most) if yields else ready) // able_count)
            # Every consumer must be asked, not just up to the first that takes something.
            given = sum([self._hand_out(consumer, share) for consumer in able])
            # All consumers that were asked may have requeued what is ready: then it goes to the
            # ones behind them.
            if not given and others:
                able = [one for one in line if one.capacity > 0]
                for consumer in able:
                    if given < ready:
                        given += self._hand_out(consumer, share)
            if not given:
                return ready
            ready -= given
            agenda.handed_out += given
            if yields and (
                agenda.handed_out >= most or any(consumer.shares_limit for consumer in able)
            ):
                queue.touch()
                return 0
        return 0

    def _first_able(self, line: Iterable[Consumer], most: int) -> list[Consumer]:
        """Return the first consumers that can take a message: of thousands no more are looked for
        than there are messages.
        """
        able, others = [], []
        for consumer in line:
            if consumer.capacity > 0:
                able.append(consumer)
                if len(able) == most:
                    break
            else:
                others.append(consumer)
        self._set_apart(others)
        return able

    def _hand_out(self, consumer: Consumer, share: int) -> int:
        """Give a consumer its share, as far as it can take it, and move it to the end of the
        line.
        """
        queue = self._queue()
        # A message that it requeued goes to another consumer, if there is one.
        others_too = len(self.consumers) > 1 and not queue.settings.single_active_consumer
        shunned = consumer.identity if others_too else None
        share = min(share, consumer.fair_share)
        given = 0
        while not self._backlog.is_reading and (limit := min(share - given, consumer.capacity)) > 0:
            if consumer.has_size_limit:
                # The limit is asked before messages are taken: one that does not fit stays where
                # it is, and is not flagged as redelivered.
                heads = self._priorities.peek(limit, shunned)
                limit = consumer.fitting(heads) if heads else 1
                if not limit:
                    break
            taken = self._backlog.take(
                limit, acked=consumer.no_ack, not_from=shunned, in_chunks=True
            )
            if taken is None:
                break
            given += taken.run.count
            consumer.channel.deliver(consumer, taken)
        line = self._lines.get(consumer.priority)
        if given and line and len(line) > 1 and consumer in line:
            # Only a consumer that got something loses its turn.
            line.move_to_end(consumer)
        return given
