"""The broker's promises as a plain model, without a thought of speed.

The model is told everything that clients, the operator and the clock do, and says what each queue
holds, what is unacked, and what clients are told. Where the broker has a choice the model follows:
`Choices` tells what the broker did, and the model insists that it was allowed to. The choices are:
which of equal consumers is served, how many messages leave a queue in one go, which of several
queues has its turn first, and when queues that got a publish together with many others drop the
messages beyond their limits: at the latest before anything else is done with them.

Past 600 lines because it is all that the broker promises, in one place, in the order in which a
client meets it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from tests.property.broker_letters import (
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    REJECTED,
    Letter,
    dead,
    is_in_a_circle,
    shown,
)
from tests.property.broker_queues import (
    Channel,
    Consumer,
    Entry,
    Queue,
    Sent,
    Settled,
    State,
    Unacked,
    Uncommitted,
    Window,
)
from tests.property.broker_topology import Binding, Exchange, Policy, Topology, chosen, settings

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.replay": "x-replay",
}


class RefusedError(Exception):
    """A request that the broker refuses; the argument is the name of its error."""


class Delivered(NamedTuple):
    """The broker sent letters to a consumer, under ascending delivery tags."""

    channel: int
    consumer: str
    first_tag: int
    letters: list[Letter]
    redelivered: bool


class Left(NamedTuple):
    """Messages left a queue, in one go, without a consumer."""

    queue: str
    reason: str
    messages: int


MAX_DROPPING = 1
"""A publish to more limited queues than this drops what is too much later."""


class Flushed(NamedTuple):
    """The broker made everything durable, as what it was about to do could not wait."""


Event = Delivered | Left | Flushed


class Choices(Protocol):
    """The choices that the broker made of its own accord, in order."""

    def peek(self) -> Event | None:
        """Return the broker's next choice, if there is any."""

    def pop(self) -> Event:
        """Return the broker's next choice, and go on to the one after it."""

    def order(self, letter: Letter, queues: set[str]) -> list[str]:
        """Return the queues of a route in the order in which they take the letter."""


class Model:
    """One virtual host. `now_ms` is the time, `durable` what a power cut leaves of each queue."""

    def __init__(self, choices: Choices, now_ms: int) -> None:
        self.choices = choices
        self.now_ms = now_ms
        self.topology = Topology()
        for name, kind in PREDECLARED.items():
            self.topology.exchanges[name] = Exchange(name, kind)
        self.queues: dict[str, Queue] = {}
        self.channels: dict[int, Channel] = {}
        self.late: dict[Queue, None] = {}
        self.durable: dict[Queue, list[Entry]] = {}
        self.is_logged = False
        self._logged_count = 0
        self._waiters: list[Callable[[], None]] = []
        self.left: Counter[str] = Counter()
        """Counts of messages that left deleted queues, and of those that never entered a queue, by
        reason.
        """

    # Exchanges and bindings.

    def declare_exchange(self, exchange: Exchange) -> None:
        present = self.topology.exchanges.get(exchange.name)
        if not exchange.name:
            raise RefusedError("AccessRefusedError")
        if present is not None:
            if present.compared != exchange.compared:
                raise RefusedError("PreconditionFailedError")
            return
        if exchange.name.startswith("amq."):
            raise RefusedError("AccessRefusedError")
        self.topology.exchanges[exchange.name] = exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange, with the bindings from it and to it."""
        if not name or name in PREDECLARED:
            raise RefusedError("AccessRefusedError")
        if name not in self.topology.exchanges:
            return
        if if_unused and self.topology.bindings_of(name):
            raise RefusedError("PreconditionFailedError")
        del self.topology.exchanges[name]
        self.topology.bindings = [one for one in self.topology.bindings if one.source != name]
        self._delete_if_unbound(self.topology.unbind_all("exchange", name))

    def bind(self, binding: Binding) -> bool:
        """Add a binding; an equal one is not an error, and is not added twice. Returns whether it
        is new.
        """
        self._check_binding(binding)
        if binding in self.topology.bindings:
            return False
        self.topology.bindings.append(binding)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; an auto-delete exchange goes with its last one. Returns whether there
        was one.
        """
        self._check_binding(binding)
        if binding not in self.topology.bindings:
            return False
        self.topology.bindings.remove(binding)
        self._delete_if_unbound([binding.source])
        return True

    def _check_binding(self, binding: Binding) -> None:
        if not binding.source:
            raise RefusedError("AccessRefusedError")
        ends: Mapping[str, Any] = (
            self.queues if binding.kind == "queue" else self.topology.exchanges
        )
        if binding.name not in ends or binding.source not in self.topology.exchanges:
            raise RefusedError("NotFoundError")

    def _delete_if_unbound(self, names: Iterable[str]) -> None:
        for name in names:
            exchange = self.topology.exchanges.get(name)
            if exchange and exchange.auto_delete and not self.topology.bindings_of(name):
                self.delete_exchange(name)

    # Queues.

    def queue(self, name: str, connection: object) -> Queue:
        """Return a queue that a connection may use."""
        queue = self.queues.get(name)
        if queue is None:
            raise RefusedError("NotFoundError")
        if queue.owner not in (None, connection):
            raise RefusedError("ResourceLockedError")
        return queue

    def declare_queue(self, asked: Queue, connection: object) -> Queue:
        if asked.name in self.queues:
            present = self.queue(asked.name, connection)
            if present.owner != asked.owner:
                raise RefusedError("ResourceLockedError")
            for what in ("survives", "auto_delete", "arguments"):
                if getattr(present, what) != getattr(asked, what):
                    raise RefusedError("PreconditionFailedError")
            self._used(present)
            return present
        self.queues[asked.name] = asked
        self._apply_policies(asked)
        return asked

    def delete_queue(
        self,
        queue: Queue,
        reason: str = "queue_deleted",
        *,
        if_unused: bool = False,
        if_empty: bool = False,
    ) -> int:
        """Delete a queue, without dead letters. Its consumers are told, and acks of its unacked
        messages have no effect. Returns how many messages were ready.
        """
        self._drop_late(queue)
        if (if_unused and queue.consumers) or (if_empty and queue.ready):
            raise RefusedError("PreconditionFailedError")
        count = len(queue.ready)
        unbound = self.topology.unbind_all("queue", queue.name)
        if isinstance(self.choices.peek(), Flushed):
            # The deletion is durable at once, and what left the queue before has to be.
            self.choices.pop()
            self.settled(self.seal())
        del self.queues[queue.name]
        queue.is_deleted = True
        self.left += queue.left
        self.left[reason] += sum(entry.state is not State.GONE for entry in queue.entries)
        for consumer in queue.consumers:
            del consumer.channel.consumers[consumer.tag]
            consumer.channel.answers.append(("cancelled", consumer.tag))
        queue.consumers.clear()
        queue.moving.clear()
        self._delete_if_unbound(unbound)
        return count

    def purge(self, queue: Queue) -> int:
        """Remove ready messages; those that are unacked, or come with a transaction, stay."""
        self._drop_late(queue)
        ready = queue.ready
        for entry in ready:
            self._gone(queue, entry)
        queue.left["purged"] += len(ready)
        return len(ready)

    def _used(self, queue: Queue) -> None:
        queue.unused_since_ms = self.now_ms

    # Policies.

    def define_policies(self, policies: list[Policy], *, operator: bool) -> None:
        """Set the policies. They hold at once, for existing queues too: messages beyond a limit are
        dropped.
        """
        if operator:
            self.topology.operator_policies = policies
        else:
            self.topology.policies = policies
        for queue in list(self.queues.values()):
            self._apply_policies(queue)

    def _apply_policies(self, queue: Queue) -> None:
        policy = chosen(self.topology.policies, queue.name, "queues")
        operator = chosen(self.topology.operator_policies, queue.name, "queues")
        queue.settings = settings(queue.arguments, policy, operator)
        self._used(queue)
        self._drop_excess(queue)

    # Publishing.

    def publish(
        self, channel: Channel, letters: list[Letter], *, mandatory: bool, immediate: bool
    ) -> None:
        """Publish letters that differ in their bodies only.

        The route is found now, on a transacted channel too. A letter is confirmed when it is
        durable wherever it has to be, at once where it has not; it is refused when any queue of
        the route has no room.
        """
        name = letters[0].exchange
        if name:
            exchange = self.topology.exchanges.get(name)
            if exchange is None:
                raise RefusedError("NotFoundError")
            if exchange.internal:
                raise RefusedError("AccessRefusedError")
        sent = Sent(self._route(letters[0]), letters, mandatory, immediate)
        if channel.transaction is not None:
            channel.transaction.sent.append(sent)
            return
        self._return_unrouted(channel, sent)
        taken = [self._most(queue, letters, immediate=immediate) for queue in sent.route]
        before = self._logged_count
        placed = self._enqueue(sent, taken)
        for _, entries in placed:
            self._make_ready(entries)
        logged = self._logged_count > before
        self._arrived(placed, is_wide=sum(not one.is_plain for one in sent.route) > MAX_DROPPING)
        self._return_undelivered(channel, sent, taken)
        accepted = len(letters) if immediate else min(taken, default=len(letters))
        if channel.confirms:
            first = channel.next_publish
            channel.next_publish += len(letters)
            confirmed = range(first, first + accepted)
            if logged:
                self._when_durable(partial(_confirm, channel, confirmed))
            else:
                _confirm(channel, confirmed)
            channel.answers += [
                ("refused", tag) for tag in range(first + accepted, first + len(letters))
            ]
        self._count_missing(sent, sent.route, taken)
        for queue, count in zip(sent.route, taken, strict=True):
            if not immediate:
                queue.left["publish_rejected"] += len(letters) - count
            if queue.settings.get("overflow") == "reject-publish-dlx" and not immediate:
                self._bury_letters(queue, letters[count:], MAXLEN)

    def _route(self, letter: Letter) -> list[Queue]:
        found = self.topology.route(letter, self.queues)
        return [self.queues[name] for name in self.choices.order(letter, found)]

    def _most(
        self,
        queue: Queue,
        letters: Sequence[Letter],
        *,
        immediate: bool,
        before: Sequence[Letter] = (),
    ) -> int:
        """Return how many of these letters a queue takes, behind those `before` them.

        Of immediate letters it takes as many as its consumers can take at once; of others, as many
        as there is room for if it would refuse the rest, and those that do not stay.
        """
        if not (immediate or queue.rejects):
            return len(letters)
        self._pump(queue)
        able = self._able(queue, letters)
        if immediate:
            return able
        held = [entry.letter for entry in (*queue.ready, *queue.coming)] + list(before)
        room = max(queue.settings.get("max-length", 1 << 60) - len(held), 0)
        room_bytes = queue.settings.get("max-length-bytes", 1 << 60)
        room_bytes -= sum(len(letter.body) for letter in held)
        taken = min(able, len(letters))
        for letter in letters[taken:]:
            room -= 1
            room_bytes -= len(letter.body)
            if room < 0 or room_bytes < 0:
                break
            taken += 1
        return taken

    def _able(self, queue: Queue, letters: Sequence[Letter]) -> int:
        """Return how many of these letters the consumers of a queue can take at once, if each is as
        large as the largest of them. No consumer takes any if letters wait already, and a window
        that counts bytes takes one. A consumer without acks takes them all, unless others may use
        up the window of its channel: then it waits with them.
        """
        if queue.ready:
            return 0
        size = max(len(letter.body) for letter in letters)
        able = 0
        for channel in {consumer.channel: None for consumer in queue.active}:
            served = [one for one in queue.active if one.channel is channel and one.has_room(size)]
            acking = [one for one in served if not one.no_ack]
            limit = channel.window.messages
            if len(acking) < len(served) and not (limit and acking):
                return len(letters)
            by_channel = 0
            for consumer in acking:
                own = sum(one.consumer is consumer for one in channel.counted)
                room = consumer.window.messages - own if consumer.window.messages else len(letters)
                by_channel += 1 if consumer.has_size_limit else room
            if channel.window.size:
                by_channel = min(by_channel, 1)
            left = max(limit - len(channel.counted), 0)
            able += min(by_channel, left) if limit else by_channel
        return min(able, len(letters))

    def _enqueue(self, sent: Sent, taken: Sequence[int]) -> list[tuple[Queue, list[Entry]]]:
        """Put letters at the end of their queues, where they are not ready yet."""
        placed = []
        for queue, count in zip(sent.route, taken, strict=True):
            entries = [self._entry(queue, letter) for letter in sent.letters[:count]]
            if queue.is_deleted or not entries:
                continue
            queue.entries += entries
            placed.append((queue, entries))
            for entry in entries:
                self._log(queue, entry)
        return placed

    def _entry(self, queue: Queue, letter: Letter) -> Entry:
        """Return when a letter expires: the smaller of the message's and the queue's time to live
        applies.
        """
        level = min(letter.priority or 0, queue.settings.get("max-priority", 0))
        lives = [queue.settings["message-ttl"]] if "message-ttl" in queue.settings else []
        if letter.expiration is not None:
            lives.append(int(letter.expiration))
        expires_ms = self.now_ms + min(lives) if lives else 0
        return Entry(letter, level, expires_ms, State.COMING, self.now_ms)

    def _make_ready(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.state = State.READY
            entry.ready_since_ms = self.now_ms

    def _arrived(self, placed: Iterable[tuple[Queue, list[Entry]]], *, is_wide: bool) -> None:
        """Have consumers take ready letters before a limit, or a time to live of 0, removes
        them.
        """
        for queue, entries in placed:
            is_due = 0 < entries[0].expires_ms <= self.now_ms
            is_full = queue.is_over_its_limit and not queue.rejects
            if not queue.is_deleted and (is_full or is_due):
                self._serve(queue)
                self._expire(queue)
                if is_wide:
                    self.late[queue] = None
                else:
                    self._drop_excess(queue)

    def _count_missing(self, sent: Sent, route: Sequence[Queue], taken: Sequence[int]) -> None:
        """Count the letters that enter no queue: there is none, or no consumer can take them at
        once.
        """
        if not route:
            is_back = sent.mandatory and not sent.route
            self.left["returned" if is_back else "unroutable"] += len(sent.letters)
        elif sent.immediate:
            self.left["returned"] += len(sent.letters) - max(taken)

    def _return_unrouted(self, channel: Channel, sent: Sent) -> None:
        if sent.mandatory and not sent.route:
            channel.answers += [("returned", "NO_ROUTE", shown(one)) for one in sent.letters]

    def _return_undelivered(self, channel: Channel, sent: Sent, taken: Sequence[int]) -> None:
        """Return immediate letters to the client that no consumer of any queue can take at once."""
        if sent.immediate and sent.route:
            back = sent.letters[max(taken) :]
            channel.answers += [("returned", "NO_CONSUMERS", shown(one)) for one in back]

    # What leaves a queue without a consumer.

    def _expire(self, queue: Queue) -> None:
        """Remove the messages that are due to expire, wherever they are in the queue."""
        while due := self._due(queue):
            for entry in due:
                assert self.now_ms in (entry.expires_ms, entry.ready_since_ms), "expired too late"
            self._bury(queue, due, EXPIRED)

    def _due(self, queue: Queue) -> list[Entry]:
        due = [one for one in queue.ready if 0 < one.expires_ms <= self.now_ms]
        return sorted(due, key=lambda one: (-one.level, one.expires_ms))

    def _drop_excess(self, queue: Queue) -> None:
        """Drop messages over the limit, unless publishes are refused instead."""
        self.late.pop(queue, None)
        while not queue.rejects and queue.is_over_its_limit:
            left = self._left(queue, MAXLEN)
            going = []
            for _ in range(left.messages):
                assert queue.is_over_its_limit, "more was dropped than there was too much"
                entry = queue.first_to_drop
                entry.state = State.GONE
                going.append(entry)
            self._bury_together(queue, going, MAXLEN)

    def _drop_late(self, queue: Queue) -> None:
        """Drop the messages over the limit that were left for later."""
        if queue in self.late:
            self._drop_excess(queue)

    def _left(self, queue: Queue, reason: str) -> Left:
        left = self.choices.peek()
        assert isinstance(left, Left), f"{queue.name}: nothing was {reason}, but {left}"
        assert left[:2] == (queue.name, reason), f"{queue.name}: not {reason}, but {left}"
        self.choices.pop()
        return left

    def _bury(self, queue: Queue, entries: Sequence[Entry], reason: str) -> None:
        """Remove the first of these entries from their queue; the broker chooses how many."""
        left = self._left(queue, reason)
        assert left.messages <= len(entries), f"{left}, but there are {len(entries)}"
        self._bury_together(queue, entries[: left.messages], reason)

    def _bury_together(self, queue: Queue, entries: Sequence[Entry], reason: str) -> None:
        """Move entries from their queue to others, or to none, at once and for good."""
        for entry in entries:
            entry.state = State.GONE
        plans = self._dead_letters(queue, [entry.letter for entry in entries], reason)
        self._move(plans, [(queue, entry) for entry in entries])

    def _see_off(self) -> None:
        """Take out of the queues as many of their moving letters as the broker chose to."""
        while self._is_moving(left := self.choices.peek()):
            assert isinstance(left, Left)
            self.choices.pop()
            queue = self.queues[left.queue]
            going, queue.moving = (
                queue.moving[: left.messages],
                queue.moving[left.messages :],
            )
            assert [reason for _, reason in going] == [left.reason] * left.messages
            self._bury_together(queue, [entry for entry, _ in going], left.reason)

    def _is_moving(self, event: Event | None) -> bool:
        """Tell whether an event is about messages on their way out of a queue."""
        moving = self.queues[event.queue].moving if isinstance(event, Left) else []
        return isinstance(event, Left) and bool(moving) and moving[0][1] == event.reason

    def _bury_letters(self, queue: Queue, letters: Sequence[Letter], reason: str) -> None:
        """Dead-letter the letters that a queue refused."""
        left = queue.left.copy()  # they have never been in it
        self._move(self._dead_letters(queue, letters, reason), [])
        queue.left = left

    def _dead_letters(
        self, queue: Queue, letters: Sequence[Letter], reason: str
    ) -> list[tuple[Sent, list[int]]]:
        """Return where letters go that leave a queue: to its dead letter exchange, if it has one,
        but not to a queue where they have been since they were rejected: that could go on for ever.
        """
        exchange = queue.settings.get("dead-letter-exchange")
        if exchange is None:
            queue.left[reason] += len(letters)
            return []
        key = queue.settings.get("dead-letter-routing-key")
        plans = []
        for letter in letters:
            changed = dead(letter, queue.name, reason, exchange, key, self.now_ms)
            route = self._route(changed)
            targets = [
                target
                for target in route
                if reason == REJECTED or not is_in_a_circle(changed, target.name)
            ]
            queue.left[reason if targets else "cycle" if route else "no_route"] += 1
            if targets:
                sent = Sent(targets, [changed], mandatory=False, immediate=False)
                # Full queues take dead letters as well.
                plans.append((sent, [1] * len(targets)))
        return plans

    def _move(
        self,
        plans: Sequence[tuple[Sent, Sequence[int]]],
        acked: Iterable[tuple[Queue, Entry]],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Move messages in one transaction: acked messages are gone at once; when all of it is
        durable, the new ones are ready, and `then` is called. Their queues are served in their
        turn.
        """
        placed = [self._enqueue(sent, taken) for sent, taken in plans]
        for queue, entry in acked:
            self._gone(queue, entry)
        for _, entries in itertools.chain(*placed):
            self._when_durable(partial(self._make_ready, entries))
        if then:
            self._when_durable(then)

    # Consuming.

    def qos(self, channel: Channel, window: Window, *, whole_channel: bool) -> None:
        """Set the window of the channel, or that of each later consumer."""
        if whole_channel:
            channel.window = window
        else:
            channel.consumer_window = window

    def consume(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        priority: int,
    ) -> None:
        if tag in channel.consumers:
            raise RefusedError("NotAllowedError")
        if exclusive and queue.settings.get("single-active-consumer"):
            raise RefusedError("AccessRefusedError")
        if queue.consumers and (exclusive or queue.consumers[0].exclusive):
            raise RefusedError("AccessRefusedError")
        window = channel.consumer_window
        consumer = Consumer(channel, queue, tag, no_ack, exclusive, priority, window)
        channel.consumers[tag] = consumer
        queue.consumers.append(consumer)
        queue.elect()

    def cancel(self, channel: Channel, tag: str) -> None:
        """Cancel a consumer; its unacked messages stay with the client."""
        if tag in channel.consumers:
            self._remove_consumer(channel.consumers.pop(tag))

    def _remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; an auto-delete queue goes with its last one."""
        queue = consumer.queue
        queue.consumers.remove(consumer)
        queue.elect()
        if queue.auto_delete and not queue.consumers:
            self.delete_queue(queue, "owner_gone")
        else:
            self._used(queue)

    def get(
        self, channel: Channel, queue: Queue, *, no_ack: bool
    ) -> tuple[int, Letter, bool] | None:
        """The first message: its delivery tag, the letter, and whether it was delivered before."""
        self._used(queue)
        self._drop_late(queue)
        self._expire(queue)
        while queue.ready:
            entry = queue.ready[0]
            if queue.is_delivered_too_often(entry) and not no_ack:
                self._bury(queue, [entry], DELIVERY_LIMIT)
                continue
            return self._hand_out(channel, queue, entry, None, no_ack=no_ack)
        return None

    def _hand_out(
        self,
        channel: Channel,
        queue: Queue,
        entry: Entry,
        consumer: Consumer | None,
        *,
        no_ack: bool,
    ) -> tuple[int, Letter, bool]:
        """Deliver an entry to a client, which may have to ack it."""
        tag = channel.next_tag
        channel.next_tag += 1
        letter = shown(entry.letter)
        if entry.deliveries and "delivery-limit" in queue.settings:
            letter = letter.with_header("x-delivery-count", entry.deliveries)
        handed = tag, letter, entry.deliveries > 0
        entry.deliveries += 1
        if no_ack:
            self._gone(queue, entry)
            queue.left["acked"] += 1
        else:
            entry.state = State.UNACKED
            self._log(queue, entry)
            channel.unacked.append(Unacked(tag, queue, entry, consumer))
        return handed

    def _pump(self, queue: Queue | None = None) -> None:
        """Follow the turn of a queue, or of each queue: due messages are gone, consumers with room
        were served, and nothing is left above a limit.
        """
        while True:
            self._serve(queue)
            event = self.choices.peek()
            if not isinstance(event, Left) or event.reason not in (EXPIRED, MAXLEN):
                return
            if queue and event.queue != queue.name:
                return
            left = self.queues[event.queue]
            if event.reason == EXPIRED and self._due(left):
                self._expire(left)
            elif event.reason == MAXLEN and left.is_over_its_limit:
                self._drop_excess(left)
            else:
                return

    def _serve(self, queue: Queue | None = None) -> None:
        """Check that consumers of a queue, or of all queues, got what they could: never more, never
        less.
        """
        served = list(self.queues.values()) if queue is None else [queue]
        while (event := self.choices.peek()) is not None:
            if isinstance(event, Delivered):
                consumer = self.channels[event.channel].consumers[event.consumer]
                if consumer.queue not in served or not consumer.queue.can_be_served(consumer):
                    break
                self.choices.pop()
                self._follow(event, consumer)
            elif self._is_moving(event):
                self._see_off()
            elif isinstance(event, Left) and event.reason == DELIVERY_LIMIT:
                if self.queues[event.queue] not in served:
                    break
                self._bury_delivered_too_often(self.queues[event.queue])
            else:
                break
        if isinstance(event, Left) and event.reason == EXPIRED:
            return
        if isinstance(event, Left) and event.reason == MAXLEN:
            served = [self.queues[event.queue]]  # the others may have their turn later
        for each in served:
            for consumer in each.active if each not in self.late else ():
                entry = each.can_be_served(consumer)
                assert entry is None, f"{each.name}: {consumer.tag} could have {entry}"

    def _follow(self, event: Delivered, consumer: Consumer) -> None:
        """Follow a delivery, and check that it was the consumer's turn: of all consumers that could
        have the message, one with the highest priority gets it.
        """
        queue = consumer.queue
        channel = consumer.channel
        assert queue not in self.late, f"{queue.name}: served what should have been dropped"
        assert event.first_tag == channel.next_tag
        for place, letter in enumerate(event.letters):
            assert consumer in queue.active
            entry = queue.can_be_served(consumer)
            assert entry is not None, f"{event} is for {consumer.tag}, which can have nothing"
            for other in queue.active:
                is_first = other.priority > consumer.priority and len(queue.active) > 1
                assert not (is_first and queue.can_be_served(other)), f"{other.tag} comes first"
            assert consumer.no_ack or not queue.is_delivered_too_often(entry)
            handed = self._hand_out(channel, queue, entry, consumer, no_ack=consumer.no_ack)
            assert (event.first_tag + place, letter, event.redelivered) == handed

    def _bury_delivered_too_often(self, queue: Queue) -> None:
        """Dead-letter the messages that crashes interrupted too often, or that a new limit is too
        low for, when they would be delivered."""
        entries = [queue.can_be_served(consumer) for consumer in queue.active]
        found = [one for one in entries if one and queue.is_delivered_too_often(one)]
        assert found, f"{queue.name}: nothing was delivered too often"
        entry = found[0]
        behind = queue.ready[queue.ready.index(entry) :]
        self._bury(
            queue, [one for one in behind if queue.is_delivered_too_often(one)], DELIVERY_LIMIT
        )

    # Acks.

    def ack(self, channel: Channel, tag: int, *, multiple: bool) -> None:
        self._settle(channel, self._named(channel, tag, multiple=multiple), requeue=None)

    def reject(self, channel: Channel, tag: int, *, multiple: bool, requeue: bool) -> None:
        self._settle(channel, self._named(channel, tag, multiple=multiple), requeue=requeue)

    def recover(self, channel: Channel, *, requeue: bool) -> None:
        """Requeue all unacked messages, or redeliver them, under new tags, to the consumers that
        have them. A message whose consumer is gone is requeued in any case, and none is delivered
        too often.
        """
        held, channel.unacked = channel.unacked, []
        while held:
            unacked = held[0]
            consumer = unacked.consumer
            is_there = consumer and channel.consumers.get(consumer.tag) is consumer
            too_often = unacked.queue.is_delivered_too_often(unacked.entry)
            if requeue or not is_there or consumer is None or too_often:
                self._give_back(held.pop(0))
                continue
            self._see_off()
            event = self.choices.pop()
            assert isinstance(event, Delivered)
            assert event[:3] == (channel.number, consumer.tag, channel.next_tag)
            for place, letter in enumerate(event.letters):
                entry = held.pop(0).entry
                handed = self._hand_out(channel, unacked.queue, entry, consumer, no_ack=False)
                assert (event.first_tag + place, letter, event.redelivered) == handed
        self._see_off()

    def _named(self, channel: Channel, tag: int, *, multiple: bool) -> list[Unacked]:
        """Return what a client means by a delivery tag: 0 is all. Unknown tags are an error."""
        if not multiple:
            named = [one for one in channel.unacked if one.tag == tag]
        elif tag == 0:
            return list(channel.unacked)
        else:
            named = [one for one in channel.unacked if one.tag <= tag]
        if not named or tag >= channel.next_tag:
            raise RefusedError("PreconditionFailedError")
        return named

    def _settle(self, channel: Channel, named: Sequence[Unacked], *, requeue: bool | None) -> None:
        """Settle deliveries; on a transacted channel that waits for the commit."""
        channel.unacked = [one for one in channel.unacked if one not in named]
        if channel.transaction is not None:
            channel.transaction.settled += [Settled(one, requeue) for one in named]
            return
        if requeue is None:
            for one in named:
                self._gone(one.queue, one.entry)
                one.queue.left["acked"] += 1
        elif requeue:
            self._give_all_back(named)
        else:
            for one in [one for one in named if not one.queue.is_deleted]:
                one.queue.moving.append((one.entry, REJECTED))
            self._see_off()

    def _give_all_back(self, given: Iterable[Unacked]) -> None:
        for one in given:
            self._give_back(one)
        self._see_off()

    def _give_back(self, given: Unacked) -> None:
        """Return a delivery to its place, or dead-letter it when that happened too often."""
        queue, entry = given.queue, given.entry
        if queue.is_deleted:
            return
        if queue.is_delivered_too_often(entry):
            queue.moving.append((entry, DELIVERY_LIMIT))
            return
        entry.given_back_by = given.consumer
        self._make_ready([entry])

    # Transactions.

    def select_confirms(self, channel: Channel) -> None:
        if channel.transaction is not None:
            raise RefusedError("PreconditionFailedError")
        channel.confirms = True

    def select_transactions(self, channel: Channel) -> None:
        if channel.confirms:
            raise RefusedError("PreconditionFailedError")
        if channel.transaction is None:
            channel.transaction = Uncommitted()

    def commit(self, channel: Channel) -> None:
        """Commit all publishes, acks and rejections as one transaction. Nothing of it happens if a
        queue refuses any message. Returned messages come before commit-ok.
        """
        transaction = channel.transaction
        if transaction is None:
            raise RefusedError("PreconditionFailedError")
        plans = []
        placed: dict[Queue, list[Letter]] = {}
        for sent in transaction.sent:
            there = [queue for queue in sent.route if not queue.is_deleted]
            known = sent._replace(route=there)
            taken = []
            for queue in there:
                before = placed.setdefault(queue, [])
                most = self._most(queue, sent.letters, immediate=sent.immediate, before=before)
                taken.append(most)
            if not sent.immediate and min(taken, default=len(sent.letters)) < len(sent.letters):
                raise RefusedError("PreconditionFailedError")
            for queue, most in zip(there, taken, strict=True):
                placed[queue] += sent.letters[:most]
            plans.append((known, taken))
        for sent, (known, taken) in zip(transaction.sent, plans, strict=True):
            self._return_unrouted(channel, sent)
            self._count_missing(sent, known.route, taken)
            if sent.immediate and (sent.route or not sent.mandatory):
                back = sent.letters[max(taken, default=0) :]
                channel.answers += [("returned", "NO_CONSUMERS", shown(one)) for one in back]
        gone = []
        for unacked, requeue in transaction.settled:
            if requeue or unacked.queue.is_deleted:
                continue
            unacked.entry.state = State.GONE
            if requeue is False:
                plans += self._dead_letters(unacked.queue, [unacked.entry.letter], REJECTED)
            else:
                unacked.queue.left["acked"] += 1
            gone.append((unacked.queue, unacked.entry))
        self._move(plans, gone, lambda: channel.answers.append(("committed",)))
        settled = transaction.settled
        channel.transaction = Uncommitted()
        self._give_all_back([one for one, requeue in settled if requeue])

    def rollback(self, channel: Channel) -> None:
        """Forget the publishes of a transaction; what was acked or rejected is unacked again."""
        transaction = channel.transaction
        if transaction is None:
            raise RefusedError("PreconditionFailedError")
        channel.unacked += [one.unacked for one in transaction.settled]
        channel.unacked.sort(key=lambda one: one.tag)
        channel.transaction = Uncommitted()

    # Channels and connections.

    def open_channel(self, number: int, connection: object) -> Channel:
        self.channels[number] = Channel(number, connection)
        return self.channels[number]

    def close_channel(self, channel: Channel) -> None:
        """Close a channel: cancel its consumers, roll back its transaction, requeue its unacked
        messages.
        """
        for consumer in channel.consumers.values():
            self._remove_consumer(consumer)
        channel.consumers.clear()
        if channel.transaction is not None:
            self.rollback(channel)
            channel.transaction = None
        held, channel.unacked = channel.unacked, []
        self._give_all_back(held)

    def close_connection(self, connection: object) -> None:
        """Close the channels of a connection, and delete its exclusive queues."""
        for channel in [one for one in self.channels.values() if one.connection is connection]:
            self.close_channel(channel)
        for queue in [one for one in self.queues.values() if one.owner is connection]:
            self.delete_queue(queue, "owner_gone")

    # Time, and the disk.

    def turn(self) -> None:
        """Follow a turn of the broker: all that is due has happened, and all consumers with room
        were served.
        """
        for queue in list(self.queues.values()):
            if 0 < queue.unused_until_ms <= self.now_ms:
                assert queue.unused_until_ms == self.now_ms, f"{queue.name} was deleted too late"
                self.delete_queue(queue, "queue_expired")
        self._pump()
        self.late.clear()
        for queue in self.queues.values():
            assert queue.rejects or not queue.is_over_its_limit, f"{queue.name} holds too much"
            assert not queue.moving, f"{queue.name}: {queue.moving} should have left"
            late = self._due(queue)
            assert not late, f"{queue.name}: {late} should have expired"
        assert self.choices.peek() is None, f"nobody expected {self.choices.peek()}"

    def seal(self) -> dict[Queue, list[Entry]]:
        """Return what a power cut leaves once the disk has all that was done so far."""
        self.is_logged = False
        held = {}
        for queue in self.queues.values():
            held[queue] = [
                Entry(one.letter, one.level, one.expires_ms, State.READY, 0, one.deliveries)
                for one in queue.entries
                if one.letter.persistent and one.state is not State.GONE
            ]
        return held

    def settled(self, durable: dict[Queue, list[Entry]]) -> None:
        """Note that the disk has everything: clients that waited for that are told."""
        self.durable = durable
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def restart(self, durable: Mapping[Queue, list[Entry]]) -> None:
        """Continue with what a power cut or a clean stop left.

        Durable queues, exchanges, and bindings between two of these are there. Messages have
        their places; those that were delivered say so.
        """
        self.channels.clear()
        self.late.clear()
        self.left.clear()
        self._waiters.clear()
        self.is_logged = False
        topology = self.topology
        topology.exchanges = {name: one for name, one in topology.exchanges.items() if one.durable}
        self.queues = {name: one for name, one in self.queues.items() if one.survives}
        ends: dict[str, Mapping[str, Any]] = {"queue": self.queues, "exchange": topology.exchanges}
        topology.bindings = [
            one
            for one in topology.bindings
            if one.source in topology.exchanges and one.name in ends[one.kind]
        ]
        for queue in self.queues.values():
            queue.consumers.clear()
            queue.moving.clear()
            queue.left.clear()
            queue.entries = [replace(entry) for entry in durable.get(queue, [])]
            self._make_ready(queue.entries)
        self.durable = dict(durable)
        for queue in list(self.queues.values()):
            self._apply_policies(queue)

    def _gone(self, queue: Queue, entry: Entry) -> None:
        entry.state = State.GONE
        self._log(queue, entry)
        if entry in queue.entries:
            queue.entries.remove(entry)

    def _log(self, queue: Queue, entry: Entry) -> None:
        """Note that something was done to a message: the log is told if message and queue are
        durable.
        """
        if queue.survives and not queue.is_deleted and entry.letter.persistent:
            self.is_logged = True
            self._logged_count += 1

    def _when_durable(self, callback: Callable[[], None]) -> None:
        """Call back when all that was done so far is durable: now, where it is already."""
        if self.is_logged:
            self._waiters.append(callback)
        else:
            callback()


def _confirm(channel: Channel, tags: range) -> None:
    channel.answers += [("confirmed", tag) for tag in tags]
