"""Dead letters: messages that leave a queue without being consumed, and where they go instead.

The headers are those of RabbitMQ: x-death, newest first, one entry with a count for each queue and
reason; x-first-death-* and x-last-death-* beside it. Each move is a transaction. In a queue whose
dead letters go at least once they wait first: see `waiting_letters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from amqpstore import Envelope, Message
from amqpstore.format.departures import Departure
from amqpstore_server.broker.messages.cycles import (
    LANDMARK_FIELD,
    Landmark,
    deaths_since_publish,
    landmark_after,
    mark_of,
)
from amqpstore_server.broker.messages.deaths import (
    DEATHS_FIELD,
    Death,
    Reason,
    deaths_of,
    encode_deaths,
    first_and_last,
    one_more_death,
)
from amqpstore_server.broker.messages.envelope import KEY_HEADERS, ParsedEnvelope, more_keys
from amqpstore_server.broker.messages.shortening import SAFE_BYTES, limit_entries
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Route, Router
from amqpstore_server.broker.rules.settings import LetterStrategy
from amqpstore_server.broker.transactions.transaction import Plan, Transaction, move
from amqpstore_server.broker.transactions.waiting_letters import (
    NO_EXCHANGE,
    DeathNote,
    WaitingLetters,
    in_a_cycle,
    nowhere,
    refusal,
)
from amqpstore_server.broker.weak_references import weak_method
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.protocol.content import (
    BasicProperties,
    decode_property,
    join_properties,
    split_properties,
)
from amqpstore_server.protocol.field_table import (
    EMPTY_TABLE,
    decode_value,
    encode_name,
    join_table,
    split_table,
)


class Fate:
    """The fate of messages that died in a queue: how many were cut as cycles, how many found no
    queue, and how many are `kept` in it until others take them. The others arrived in one.
    """

    __slots__ = ("cycles", "kept", "unrouted")

    def __init__(self) -> None:
        self.cycles = self.kept = self.unrouted = 0

    def note(self, queue: Queue, reason: Reason, count: int) -> None:
        """Count them as gone from their queue. Args: reason, why they died; count, of all of
        them.
        """
        departures = queue.departures
        # What waits in its queue has not left it, and counts when it does.
        arrived = count - self.cycles - self.unrouted - self.kept
        departures.note(reason.departure, arrived, arrived)
        departures.note(Departure.CYCLE, self.cycles)
        departures.note(Departure.NO_ROUTE, self.unrouted)


_KEY_HEADERS = [(name, encode_name(name)) for name in KEY_HEADERS]


class DeadLetters:
    """The dead letters of one virtual host. Args: waiting, those that wait in their queues."""

    def __init__(self, services: BrokerServices, router: Router, waiting: WaitingLetters) -> None:
        self._services = services
        self._router = router
        self._waiting = waiting
        waiting.plan = weak_method(self.plan_letter)
        self._mark = mark_of(services.store.store_id)

    def dead_letter(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> bool:
        """Send messages that were taken off a queue to its dead-letter exchange, or drop them.

        Returns False if the disk is full: the messages are back in the queue.
        """
        if not queue.sends_on:
            # A full queue drops one for each that arrives, so this should be cheap.
            count = self._count(queue, taken, reason)
            for run in taken:
                self._services.store.ack(*run)
            queue.departures.note(reason.departure, count)
            return True
        is_kept = queue.letter_strategy is LetterStrategy.AT_LEAST_ONCE
        if is_kept and not self._waiting.can_keep(queue):
            for run in taken:
                queue.backlog.put_back(run)
            return False
        fate = Fate()
        add = partial(self._add, queue=queue, taken=taken, reason=reason, fate=fate)
        # The ack and the letters are one transaction: a crash leaves each message in its queue or
        # in those that its letters go to.
        if not move(self._services, queue, taken, add):
            return False
        fate.note(queue, reason, self._count(queue, taken, reason))
        return True

    def dead_letter_refused(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Send messages that a full queue refused to its dead-letter exchange. Returns how many
        arrived in a queue.
        """
        transaction = Transaction(self._services)
        arrived = self.add_refused(transaction, queue, messages)
        transaction.commit()
        return arrived

    def add_refused(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message]
    ) -> int:
        """Add to a transaction: messages that a full queue refused go to its dead-letter exchange.
        Returns how many arrive in a queue.
        """
        dead_letters = self._services.statistics.dead_letters
        dead_letters[Reason.MAXLEN, LetterStrategy.AT_MOST_ONCE] += len(messages)
        fate = Fate()
        self.add_messages(transaction, queue, messages, Reason.MAXLEN, fate)
        return len(messages) - fate.cycles - fate.unrouted

    def _add(
        self,
        transaction: Transaction,
        *,
        queue: Queue,
        taken: Sequence[Taken],
        reason: Reason,
        fate: Fate,
    ) -> None:
        """Add to a transaction: messages that were taken off a queue leave it as dead letters.

        Raises: ReadLaterError, MessageDamagedError (a body has to be read back and cannot be).
        """
        for one in taken:
            transaction.ack(queue, one)
            messages = self._services.store.stored.read_all(one.run)
            if queue.letter_strategy is LetterStrategy.AT_LEAST_ONCE:
                self._keep(transaction, queue, messages, reason, fate)
            else:
                self.add_messages(transaction, queue, messages, reason, fate)

    def add_rejected(
        self, transaction: Transaction, queue: Queue, messages: Sequence[Message], fate: Fate
    ) -> None:
        """Add to a transaction: rejected messages become dead letters, if their queue has any, and
        wait in it, if its dead letters go at least once.

        Args: fate, to which it adds what becomes of them.
        Raises: ResourceExhaustedError, if they are to wait, and cannot.
        """
        if queue.letter_strategy is LetterStrategy.AT_LEAST_ONCE:
            self._keep(transaction, queue, messages, Reason.REJECTED, fate)
        else:
            self.add_messages(transaction, queue, messages, Reason.REJECTED, fate)

    def _keep(
        self,
        transaction: Transaction,
        queue: Queue,
        messages: Sequence[Message],
        reason: Reason,
        fate: Fate,
    ) -> None:
        """Add to a transaction: messages wait in their queue as dead letters. Raises:
        ResourceExhaustedError, if they cannot.
        """
        self._waiting.add(transaction, queue, messages, reason)
        fate.kept += len(messages)

    def _count(self, queue: Queue, taken: Sequence[Taken], reason: Reason) -> int:
        """Count messages that have died, by RabbitMQ's reasons. Returns how many there are."""
        count = sum([one.run.count for one in taken])
        if reason != Reason.REJECTED:  # those its channel has counted
            self._services.statistics.dead_letters[reason, queue.letter_strategy] += count
        return count

    def add_messages(
        self,
        transaction: Transaction,
        queue: Queue,
        messages: Sequence[Message],
        reason: Reason,
        fate: Fate,
    ) -> None:
        """Add to a transaction: messages that leave a queue become dead letters, if it has any.

        They go now or never: see `add_rejected`.
        Args: fate, to which it adds what becomes of them.
        """
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            # The setting may be gone since: then a rejected message is just dropped.
            return
        now_s = self._services.clock.wall_ms() // 1000
        known: Route | None = None
        targets: list[Queue] = []
        first: ParsedEnvelope | None = None
        letters: list[Message] = []
        for envelope, group in groupby(messages, attrgetter("envelope")):
            parsed, deaths, landmark = self._envelope(queue, exchange, envelope, reason, now_s)
            # A letter without a route, or whose exchange does not exist, is dropped, as in
            # RabbitMQ; the strategy `at-least-once` keeps it.
            route = self._router.route(parsed)
            group_targets = route.queues
            # As in RabbitMQ, what a client rejects may go in circles: only a cycle that nothing
            # else ends is cut.
            if reason != Reason.REJECTED:
                group_targets = [
                    target for target in route.queues if not landmark.is_cycle(target.name, deaths)
                ]
            alike = [Message(parsed, message.body) for message in group]
            if not group_targets:
                if route.queues:
                    fate.cycles += len(alike)
                else:
                    fate.unrouted += len(alike)
            if first is None or not (
                route is known and group_targets == targets and parsed.alike == first.alike
            ):
                _publish(transaction, targets, first, letters)
                known, targets, first, letters = route, group_targets, parsed, []
            letters += alike
        _publish(transaction, targets, first, letters)

    def plan_letter(
        self, queue: Queue, letter: Message, death: DeathNote, full: dict[Queue, None]
    ) -> Plan | str:
        """Return where a letter that waits in a queue goes now, or why it has to wait. It does if
        only queues would get it in which it has been: unlike one that goes at most once it is not
        dropped for that.

        Args: letter, as it was before it died; full, queues that take no letter, and the one that
        refuses this one is added to them.
        """
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            return NO_EXCHANGE
        envelope = letter.envelope
        parsed, deaths, landmark = self._envelope(
            queue, exchange, envelope, death.reason, death.time_s
        )
        queues = self._router.route(parsed).queues
        if not queues:
            return nowhere(self._router, exchange, parsed.routing_key)
        targets = queues
        if death.reason != Reason.REJECTED:
            targets = [one for one in queues if not landmark.is_cycle(one.name, deaths)]
            if not targets:
                return in_a_cycle(queues[0])
        messages = [Message(parsed, letter.body)]
        placements = []
        for target in targets:
            placement = target.unlimited_placement(parsed)
            # It takes no room in its own queue: it has counted there all the time.
            if target is not queue and (
                target in full or target.placement(parsed, messages, immediate=False).most == 0
            ):
                full[target] = None
                return refusal(target)
            placements.append(placement)
        return Plan(parsed, messages, targets, placements, 1, 1)

    def _envelope(
        self, queue: Queue, exchange: str, envelope: Envelope, reason: Reason, now_s: int
    ) -> tuple[ParsedEnvelope, list[Death], Landmark]:
        """Return the envelope of a dead letter, its deaths, and its landmark.

        The properties are changed where they stand: most are never looked at.
        """
        parts = split_properties(envelope.properties)
        headers = split_table(parts.get("headers", EMPTY_TABLE))
        copies = {
            name: decode_value(headers[encoded])
            for name, encoded in _KEY_HEADERS
            if encoded in headers
        }
        # As in RabbitMQ: in the next queue it would expire again at once. x-death keeps the value.
        expiration = parts.pop("expiration", None)
        shown_keys = (envelope.routing_key, *more_keys(copies, ["CC"]))
        before = deaths_of(headers.get(DEATHS_FIELD))
        deaths, index = one_more_death(
            before,
            queue.name,
            reason,
            (envelope.exchange, shown_keys),
            None if expiration is None else decode_property("expiration", expiration),
            now_s,
        )
        mark = headers.pop(LANDMARK_FIELD, None)
        if index < len(before) and index >= deaths_since_publish(mark, self._mark):
            deaths[0] = deaths[0].published_by(envelope.exchange, shown_keys)
        max_deaths = self._services.limits.max_deaths
        landmark, marked = landmark_after(mark, self._mark, index, queue.name, reason, max_deaths)
        # A message that goes round for months would outgrow a frame.
        deaths = deaths[:max_deaths]
        headers[DEATHS_FIELD] = encode_deaths(deaths)
        first, last = first_and_last(queue.name, reason, envelope.exchange)
        # The landmark is the first: see `envelope.visible`.
        headers = {LANDMARK_FIELD: marked, **first, **headers, **last}
        if envelope.properties[SAFE_BYTES:]:  # without a call
            limit_entries(headers)
        key = queue.settings.dead_letter_routing_key
        # BCC keys route the letter like its others, and are not shown in x-death: consumers would
        # see them there.
        keys = (*shown_keys, *more_keys(copies, ["BCC"]))
        if key is not None:
            keys = (key,)
            # A dead-letter routing key replaces all of them; left in, CC would route the letter
            # once more.
            for _, encoded in _KEY_HEADERS:
                headers.pop(encoded, None)
        parts["headers"] = join_table(headers)
        mode, priority = (
            parts[name][0] if name in parts else None for name in ("delivery_mode", "priority")
        )
        raw = join_properties(parts)
        read = BasicProperties(delivery_mode=mode, priority=priority)
        return ParsedEnvelope(exchange, keys[0], raw, read, keys[1:]), deaths, landmark


def _publish(
    transaction: Transaction,
    targets: list[Queue],
    envelope: ParsedEnvelope | None,
    letters: list[Message],
) -> None:
    """Add to a transaction: dead letters that are alike, so that full queues accept them too; there
    is no publisher to refuse them to.
    """
    if envelope is not None and targets:
        # A letter that a full queue refused would die again, for the same reason, for ever.
        placements = [queue.unlimited_placement(envelope) for queue in targets]
        count = len(letters)
        transaction.publish(Plan(envelope, letters, targets, placements, count, count))
