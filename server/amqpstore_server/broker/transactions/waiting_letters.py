"""Dead letters that wait in the queue they died in, until all queues that they go to take them.

They are those of queues with the dead-letter strategy `at-least-once`. Each goes through the
letters of its queue (see `queues.letters`): there in one transaction, when it dies, and on in
another, to all of its targets or to none. So a target that is full holds up what would go to others
too, and no target gets a letter twice. What has no route, or a target that refuses it, stays, and
so does what only queues would get in which it has been, as RabbitMQ has it: who asks for at least
once does not lose it to a cycle. All that stay are looked at again when exchanges, bindings, queues
or their settings change; and after a while, if they wait for a queue with room, as nothing tells
when it has some. None holds up another one that can go.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from amqpstore import DiskFullError, Envelope, Message, ReadLaterError
from amqpstore.format.departures import Departure
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.messages.envelope import KEY_HEADERS, ParsedEnvelope
from amqpstore_server.broker.queues.browsing import MessagePosition, SeenMessage, Walk
from amqpstore_server.broker.queues.letters import LettersQueue
from amqpstore_server.broker.queues.pending_moves import affordable
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE, Router
from amqpstore_server.broker.rules.names import own_name
from amqpstore_server.broker.transactions.selected import (
    DISK_FULL,
    UNREADABLE,
    commit,
    put_back,
    take,
)
from amqpstore_server.broker.transactions.transaction import Plan, Transaction
from amqpstore_server.broker.weak_references import weak_method, weakly
from amqpstore_server.protocol.content import BasicProperties, decode_properties, edit_properties
from amqpstore_server.protocol.field_table import FieldValue, Timestamp

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.work.services import BrokerServices

_log = logging.getLogger(__name__)

DEATH_NOTE = "x-died"
"""The header that says of what a letter that waits has died, and when. It goes when the letter
does.
"""

NO_EXCHANGE = "its queue has no dead-letter exchange any more"
_UNMARKED = "nothing says of what it died"

_PIECE = 64
"""Letters that are looked at, and may go on, in one transaction."""

_CHANGED_MS = 100
"""How long after a change letters are looked at again, as others are likely to follow it."""

_SOON_MS = 50
_MOST_MS = 1000
"""The time after which it is tried whether a full queue has room: at first, if it just had some,
and at most. It is twice as long each time that it had none.
"""

_PRICE = 10
"""How many times as long as a look at all letters has taken the next one waits at least."""

_MAX_KEYS = 1024
"""Routing keys whose queues are remembered while letters are looked at."""

_TOLD_MS = 60_000
"""For this time the log does not say again why the letters of a queue wait."""

_REASONS = {reason.value: reason for reason in Reason}
_MORE_KEYS = tuple(name.encode() for name in KEY_HEADERS)

Planner = Callable[[Queue, Message, "DeathNote", dict[Queue, None]], Plan | str]
"""Returns where a letter goes, or why it has to wait: see `DeadLetters.plan_letter`."""


class DeathNote(NamedTuple):
    """The reason of which a letter has died, and when, in seconds since 1970."""

    reason: Reason
    time_s: int

    @classmethod
    def of(cls, envelope: Envelope) -> DeathNote | None:
        """Return what the envelope of a letter says; None if it says nothing of that kind."""
        note = (decode_properties(envelope.properties).headers or {}).get(DEATH_NOTE)
        if not isinstance(note, Mapping):
            return None
        reason, time_s = _REASONS.get(str(note.get("reason"))), note.get("time")
        return cls(reason, time_s) if reason and isinstance(time_s, int) else None

    def on(self, envelope: Envelope) -> ParsedEnvelope:
        """Return the envelope of a message that waits as a letter from now on."""
        table: dict[str, FieldValue] = {
            "reason": self.reason.value,
            "time": Timestamp(self.time_s),
        }
        raw = edit_properties(envelope.properties, headers={DEATH_NOTE: table})
        properties = decode_properties(raw)
        return ParsedEnvelope(envelope.exchange, envelope.routing_key, raw, properties)


def _as_before(letter: Message) -> Message:
    """Return a letter as it was before it died."""
    envelope = letter.envelope
    raw = edit_properties(envelope.properties, without_headers=(DEATH_NOTE,))
    before = Envelope(envelope.exchange, envelope.routing_key, raw, persistent=envelope.persistent)
    return Message(before, letter.body)


def nowhere(router: Router, exchange: str, routing_key: str) -> str:
    """Return why a letter has no route."""
    if not router.has_exchange(exchange):
        return f"there is no exchange '{exchange}'"
    if exchange == DEFAULT_EXCHANGE:
        return f"there is no queue '{routing_key}'"
    return f"exchange '{exchange}' leads to no queue"


def in_a_cycle(target: Queue) -> str:
    """Return why a letter does not go to where it has been."""
    return f"queue '{target.name}' had it before: it would go in a cycle"


def refusal(target: Queue) -> str:
    """Return why a queue does not take a letter."""
    return f"queue '{target.name}' {'has failed' if target.is_set_aside else 'is full'}"


def _check_all_taken(
    found: Sequence[tuple[Taken, list[Message]]], count: int, letters: Queue
) -> None:
    """Make sure that none goes on that would stay as well. Raises: ReadLaterError."""
    if sum([taken.run.count for taken, _ in found]) < count:
        raise ReadLaterError(f"queue '{letters.name}'", "a letter cannot be taken off it")


class WaitingLetters:
    """The dead letters that wait in the `queues` of one virtual host.

    Args: create, creates a queue of that name for the letters of a queue.
    """

    plan: Planner

    def __init__(
        self,
        services: BrokerServices,
        router: Router,
        queues: Mapping[str, Queue],
        create: Callable[[str, Queue], Queue],
    ) -> None:
        self.router = router
        self._services = services
        self._queues = queues
        self._create = create
        self._stuck: dict[Forwarding, None] = {}
        self._has_changed = False
        self._retry = services.timers.timer(weak_method(self._look_again))

    def apply(self, queue: Queue) -> None:
        """Give a queue the letters that wait in it, if it has just been restored."""
        if queue.kind or queue.letters is not None:
            return
        letters = self._queues.get(own_name(LettersQueue.kind, queue.name))
        if isinstance(letters, LettersQueue):
            self._attach(queue, letters)

    def _attach(self, queue: Queue, letters: LettersQueue) -> None:
        letters.departures = queue.departures
        letters.forwarding = Forwarding(self._services, self, queue, letters)
        queue.letters = letters
        letters.look_again()

    def can_keep(self, queue: Queue) -> bool:
        """Tell whether dead letters can wait in a queue now: not if the disk is full, or the queue
        of its letters has failed.
        """
        if queue.letters is None:
            # Created when the first letter waits: most queues with this strategy never have one.
            try:
                letters = self._create(own_name(LettersQueue.kind, queue.name), queue)
            except DiskFullError:
                return False
            if isinstance(letters, LettersQueue):
                self._attach(queue, letters)
        return queue.letters is not None and not queue.letters.is_set_aside

    def add(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message], reason: Reason
    ) -> None:
        """Add to a transaction: messages that died in a queue wait in it as letters.

        Raises: ResourceExhaustedError, if they cannot.
        """
        if not self.can_keep(queue) or queue.letters is None:
            raise ResourceExhaustedError(f"the dead letters of queue '{queue.name}' cannot be kept")
        note = DeathNote(reason, self._services.clock.wall_ms() // 1000)
        for envelope, group in groupby(messages, attrgetter("envelope")):
            parsed = note.on(envelope)
            letters = [Message(parsed, message.body) for message in group]
            placement = queue.letters.unlimited_placement(parsed)
            transaction.add(queue.letters, parsed, letters, placement)

    # Letters that have to wait.

    def waits(self, forwarding: Forwarding) -> None:
        """Have the letters of a queue looked at again when something changes, or when it says."""
        self._stuck[forwarding] = None
        self.router.on_change = self._rerouted
        if forwarding.wants_to_look:
            self._retry.set_sooner(forwarding.due_ms)

    def waits_no_more(self, forwarding: Forwarding) -> None:
        """Note that no letters of a queue wait."""
        self._stuck.pop(forwarding, None)
        if not self._stuck:
            self.router.on_change = None
            self._retry.set(0)

    def _rerouted(self) -> None:
        self._has_changed = True
        self._retry.set_sooner(self._services.clock.monotonic_ms() + _CHANGED_MS)

    def _look_again(self) -> None:
        now_ms = self._services.clock.monotonic_ms()
        has_changed, self._has_changed = self._has_changed, False
        for forwarding in list(self._stuck):
            forwarding.has_news |= has_changed
            # Nothing that its letters wait for has changed.
            if not forwarding.wants_to_look:
                continue
            if forwarding.due_ms <= now_ms:
                forwarding.look_again()
            else:
                self._retry.set_sooner(forwarding.due_ms)


class Forwarding:
    """Sends the letters of one queue on.

    It `has_news` if what they wait for may have changed since they were looked at last. They are
    not looked at again before `due_ms`.
    """

    def __init__(
        self, services: BrokerServices, waiting: WaitingLetters, queue: Queue, letters: LettersQueue
    ) -> None:
        self.has_news = False
        self.due_ms = 0
        self._services = services
        self._waiting = waiting
        self._router = waiting.router
        self._queue = weakly(queue)
        self._letters = weakly(letters)
        self._next = 0
        """The sequence from which on letters have not been looked at."""
        self._is_done = True
        """Whether all have been looked at."""
        self._has_sent = False
        self._wait_ms = _SOON_MS
        self._began_ms = 0
        self._told = ("", 0)
        self._reasons: Counter[str] = Counter()
        self._shown: Mapping[str, int] = {}
        self._keys: dict[str, list[Queue] | None] = {}
        """Routing keys, each with the queues that it leads to; None if that depends on more."""
        self._version = self._router.version
        """The version of the routes among them."""
        self._full: dict[Queue, None] = {}
        """The queues that have refused a letter: no later one is to overtake it."""

    @property
    def reasons(self) -> Mapping[str, int]:
        """The reasons why letters wait, with the number of each, as of the last look at them."""
        return self._shown if self._letters().ready_count else {}

    @property
    def wants_to_look(self) -> bool:
        """Whether letters are to be looked at again at some time."""
        return self.has_news or bool(self._full)

    def look_again(self) -> None:
        """Look at all letters once more, in the turns of their queue."""
        # Begun again from the front each time, a queue of a million letters would never be looked
        # through while bindings change.
        if not self._is_done and self._next:
            self.has_news = True  # as soon as it is through
            return
        self.has_news = self._is_done = False
        self._next = 0
        self._reasons = Counter()
        self._full.clear()
        self._began_ms = self._services.clock.monotonic_ms()
        self._letters().touch()

    def arrived(self) -> None:
        """Look at the new letters as well."""
        if self._letters().ready_count < self._reasons.total():
            self.look_again()  # others were purged
        elif self._is_done:
            self._is_done = False
            self._began_ms = self._services.clock.monotonic_ms()

    def ended(self) -> None:
        """Note that the queue of the letters has ended, or has failed."""
        self._waiting.waits_no_more(self)
        self._full.clear()

    def pump(self) -> None:
        """Send on what can go, as far as the budget of a round allows."""
        moves, letters = self._services.moves, self._letters()
        # Its letters wait with it for the next start.
        if self._queue().is_set_aside:
            return
        while not self._is_done:
            if not letters.ready_count:
                self._reasons.clear()
                self._finish()
                return
            if not moves.has_room:
                moves.wait_for_room(letters.touch)
                return
            if moves.must_wait:
                letters.go_on_later()
                return
            if reason := self._stops_all():
                self._reasons = Counter({reason: letters.ready_count})
                # One look instead of one for each letter: a missing exchange stops them all.
                self._finish()
                return
            if not self._send_piece():
                return

    def _finish(self) -> None:
        """Note that all letters have been looked at, and when that is to be done again."""
        letters = self._letters()
        now_ms = self._services.clock.monotonic_ms()
        self._is_done = True
        self._shown = dict(self._reasons)
        has_sent, self._has_sent = self._has_sent, False
        if not letters.ready_count:
            self._keys.clear()
            self._full.clear()
            self._waiting.waits_no_more(self)
            return
        self._wait_ms = _SOON_MS if has_sent else min(2 * self._wait_ms, _MOST_MS)
        least_ms = self._wait_ms if self._full else 0
        self.due_ms = now_ms + max(least_ms, _PRICE * (now_ms - self._began_ms))
        self._waiting.waits(self)
        self._tell(now_ms)

    def _tell(self, now_ms: int) -> None:
        """Log why letters wait, unless that was said lately."""
        said, said_ms = self._told
        reasons = ", ".join(sorted(self._shown))
        if reasons and (reasons != said or now_ms - said_ms >= _TOLD_MS):
            self._told = reasons, now_ms
            count = self._letters().ready_count
            extra = {**self._queue().log_fields, "count": count, "reason": reasons}
            _log.warning("dead letters wait in the queue they died in", extra=extra)

    # What stops letters.

    def _stops_all(self) -> str:
        """Return why no letter can go, whatever it is; empty if some may."""
        settings = self._queue().settings
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        if exchange is None:
            return NO_EXCHANGE
        if not self._router.has_exchange(exchange):
            return nowhere(self._router, exchange, "")
        if key is None:
            return ""
        route = self._router.route_of_key(exchange, key)
        if route is None:
            return ""
        if not route.queues:
            return nowhere(self._router, exchange, key)
        probe = ParsedEnvelope(exchange, key, b"", BasicProperties())
        for target in route.queues:
            # In its own queue a letter takes no room: it has counted there all the time.
            if target is not self._queue() and not self._has_room(target, probe):
                return refusal(target)
        return ""

    def _has_room(self, target: Queue, probe: ParsedEnvelope) -> bool:
        """Tell whether a queue may take a letter."""
        if target not in self._full:
            placement = target.placement(probe, [Message(probe, b"")], immediate=False)
            if placement.most != 0:
                return True
            self._full[target] = None
        return False

    def _stops(self, letter: Message) -> str:
        """Return why a letter cannot go, by its routing key alone; empty if it may."""
        settings, envelope = self._queue().settings, letter.envelope
        exchange, key = settings.dead_letter_exchange, envelope.routing_key
        if exchange is None or settings.dead_letter_routing_key is not None:
            return ""
        if any(name in envelope.properties for name in _MORE_KEYS):
            return ""
        if self._version is not self._router.version:
            self._version = self._router.version
            self._keys.clear()
        if key in self._keys:
            queues = self._keys[key]
        else:
            route = self._router.route_of_key(exchange, key)
            queues = None if route is None else route.queues
            if len(self._keys) < _MAX_KEYS:
                self._keys[key] = queues
        if queues is None:
            return ""
        if not queues:
            return nowhere(self._router, exchange, key)
        return next((refusal(one) for one in queues if one in self._full), "")

    # What goes.

    def _send_piece(self) -> bool:
        """Look at the next letters, and send on those that can go, in one transaction. Returns
        False if the rest has to wait for another round.
        """
        services, letters = self._services, self._letters()
        most = max(1, int(_PIECE / services.moves.ratio))
        walk = Walk(services, letters, MessagePosition(0, self._next))
        began_s = services.cpu_s()
        transaction = Transaction(services)
        runs: list[tuple[Taken, list[Message]]] = []
        try:
            seen = walk.step(most)
            going, stays, fates = self._plan(transaction, seen)
            runs = take(letters, going)
            # A letter that is planned to go on and is still here would be in both places after the
            # commit.
            _check_all_taken(runs, len(going), letters)
            for taken, _ in runs:
                transaction.ack(letters, taken)
            commit(services, transaction)
        except Exception as error:
            transaction.undo()
            # Letters go back to their old places, so their order stays.
            put_back(letters, runs)
            if isinstance(error, ReadLaterError):
                letters.backlog.read_later(error)
                return False
            if not isinstance(error, ResourceExhaustedError):
                raise
            self._reasons = Counter({DISK_FULL: letters.ready_count})
            self._full[letters] = None
            self._finish()
            return False
        if took_s := services.cpu_s() - began_s:
            services.moves.took(took_s * 1e6)
        self._reasons.update(stays)
        self._note(fates)
        if walk.is_done:
            if seen:
                self._next = seen[-1].position.sequence + 1
            self._finish()
            return False
        is_further = walk.position.sequence > self._next
        self._next = walk.position.sequence
        if not is_further:
            letters.touch()  # a part of a large one was read
        return is_further

    def _plan(
        self, transaction: Transaction, seen: Sequence[SeenMessage]
    ) -> tuple[list[SeenMessage], Counter[str], Counter[Departure]]:
        """Add to a transaction where letters go. Returns those that do, why the others stay, and
        how those that go have left their queue.
        """
        moves = self._services.moves
        messages = [one.message for one in seen if one.message is not None]
        _, moves.expected_cost = affordable(messages, float("inf"))
        self._services.agenda.spent += (
            self._services.limits.look_cost + moves.expected_cost * moves.ratio
        )
        going: list[SeenMessage] = []
        stays: Counter[str] = Counter()
        fates: Counter[Departure] = Counter()
        for candidate in seen:
            letter = candidate.message
            if letter is None:
                # The letter stays in its place; others that can be read go on past it.
                stays[UNREADABLE] += 1
                continue
            if reason := self._stops(letter):
                stays[reason] += 1
                continue
            note = DeathNote.of(letter.envelope)
            planned = self._planned(letter, note) if note else _UNMARKED
            if note is None or isinstance(planned, str):
                stays[str(planned)] += 1
                continue
            transaction.publish(planned)
            going.append(candidate)
            fates[note.reason.departure] += 1
        return going, stays, fates

    def _planned(self, letter: Message, note: DeathNote) -> Plan | str:
        """Return where a letter goes, or why it has to wait."""
        return self._waiting.plan(self._queue(), _as_before(letter), note, self._full)

    def _note(self, fates: Mapping[Departure, int]) -> None:
        """Count letters that are gone from their queue."""
        departures = self._queue().departures
        for fate, count in fates.items():
            departures.note(fate, count, count)
            self._services.statistics.arrived_letters += count
            self._has_sent = True
