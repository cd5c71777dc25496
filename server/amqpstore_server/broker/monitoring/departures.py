"""Counts of the messages that have left, by queue and reason, and the line of the log about them.

What is acked is counted with the deliveries: see `DeliveryCounters`. Everything else passes here,
a batch at a time. Counts are kept in lists, by the numbers of the reasons: a full queue drops one
message for each that arrives, and to look up a member of an enumeration in a table takes longer
than the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from amqpstore.format.departures import Departure
from amqpstore_server.broker.monitoring.counters import ChannelCounters, DeliveryCounters

_log = logging.getLogger(__name__)

_MAX_NAMED = 10
"""The most queues and reasons that a line of the log names; the others are summed up."""

DYING = (
    Departure.REJECTED,
    Departure.DELIVERY_LIMIT,
    Departure.EXPIRED,
    Departure.MAXLEN,
    Departure.PUBLISH_REJECTED,
)
"""The reasons for which a message may become a dead letter."""

_MAX_EXCHANGES = 1000
"""The most exchanges whose unroutable messages are told apart in a line; the rest is a sum."""

_WIDTH = max(Departure) + 1
_NONE = [0] * _WIDTH
"""Shared by all queues from which nothing has left but by acks, and never added to."""


class Departures:
    """Counts of messages that have left since the start, by the number of the reason, without those
    that were acked.

    `dead_lettered` are those of them that arrived in another queue as dead letters. `came_back` are
    messages that had been counted, and are in their queue again: a purge was undone, a prepared
    branch was rolled back, or the disk was too full to move what had been acked. So are those of a
    transaction that came to nothing, whose queue was deleted while they were coming.
    """

    __slots__ = ("came_back", "dead_lettered", "left")

    def __init__(self) -> None:
        self.left = self.dead_lettered = _NONE
        self.came_back = 0

    def count(self, reason: Departure, count: int, dead_lettered: int) -> None:
        """Add to the counts."""
        if self.left is _NONE:
            self.left = [0] * _WIDTH
            self.dead_lettered = [0] * _WIDTH
        self.left[reason] += count
        self.dead_lettered[reason] += dead_lettered

    def add(self, other: Departures) -> None:
        """Add the counts of others to these."""
        self.left = [one + more for one, more in zip(self.left, other.left, strict=True)]
        letters = zip(self.dead_lettered, other.dead_lettered, strict=True)
        self.dead_lettered = [one + more for one, more in letters]
        self.came_back += other.came_back


class QueueDepartures(Departures):
    """The departures from one queue. Whatever is noted is added to the totals, and to the log.

    Args: totals, of the virtual host; log, None if nothing is to be told: it has only copies.
    """

    __slots__ = ("_log", "_told", "_totals", "name", "vhost")

    def __init__(self, vhost: str, name: str, totals: Departures, log: DepartureLog | None) -> None:
        super().__init__()
        self.vhost = vhost
        self.name = name
        self._totals = totals
        self._log = log
        self._told = _NONE

    def note(self, reason: Departure, count: int, dead_lettered: int = 0) -> None:
        """Count messages that have left for good. Args: dead_lettered, how many of them arrived in
        another queue.
        """
        if count:
            self.count(reason, count, dead_lettered)
            self._totals.count(reason, count, dead_lettered)
            if self._log is not None:
                self._log.waiting[self] = None

    def note_back(self, count: int) -> None:
        """Count messages that are in the queue again, though they had been counted as gone."""
        self.came_back += count
        self._totals.came_back += count

    def closed(self) -> None:
        """Note that the queue is gone: the log keeps its counts, its name only if it is told."""
        if self._log is not None:
            self._log.sum_up(self)

    def untold(self) -> list[tuple[Departure, int]]:
        """Return what has left since the last call, but for what got where it was to go."""
        told, self._told = self._told, [*self.left]
        return [
            (reason, count)
            for reason in Departure
            if (count := self.left[reason] - told[reason]) and not reason.is_routine
        ]


class DepartureLog:
    """Departures since the last line of the log about them: the queues that messages have left are
    `waiting`. Those that are gone are summed up at once, as clients may make up and delete any
    number of them before the next line. So are messages that no queue was bound for, by the virtual
    host and the exchange they were published to.
    """

    def __init__(self) -> None:
        self.waiting: dict[QueueDepartures, None] = {}
        self._gone: list[tuple[str, int]] = []
        """Queues that are gone, as a line would name them, the most first."""
        self._gone_reasons: Counter[str] = Counter()
        self._unroutable: Counter[tuple[str, str]] = Counter()

    def unroutable(self, vhost: str, exchange: str, count: int) -> None:
        """Count messages that were published and never entered a queue, nor were returned."""
        self._gone_reasons[Departure.UNROUTABLE.label] += count
        if len(self._unroutable) < _MAX_EXCHANGES:
            self._unroutable[vhost, exchange] += count

    def sum_up(self, one: QueueDepartures) -> None:
        """Count what has left a queue that is gone, and do not keep it."""
        if one not in self.waiting:
            return
        del self.waiting[one]
        for which, label, count in _named(one):
            self._gone_reasons[label] += count
            self._gone.append((which, count))
        self._gone.sort(key=_count, reverse=True)
        del self._gone[_MAX_NAMED:]

    def write(self, **more: object) -> None:
        """Write one line for all that has left since the last. To be called about once a second.

        Args: more, what the line says besides.
        """
        waiting, self.waiting = self.waiting, {}
        left, self._gone = self._gone, []
        reasons, self._gone_reasons = self._gone_reasons, Counter()
        exchanges, self._unroutable = self._unroutable, Counter()
        for queue_departures in waiting:
            for which, label, count in _named(queue_departures):
                reasons[label] += count
                left.append((which, count))
        if not reasons:
            return
        left.sort(key=_count, reverse=True)
        named = left[:_MAX_NAMED]
        named_exchanges = [
            (f"{vhost} {exchange} {Departure.UNROUTABLE.label}", count)
            for (vhost, exchange), count in exchanges.most_common(_MAX_NAMED)
        ]
        extra: dict[str, object] = {
            "count": reasons.total(),
            "reasons": _listed(reasons.most_common()),
        }
        if named:
            extra["queues"] = _listed(named)
        if named_exchanges:
            extra["exchanges"] = _listed(named_exchanges)
        if others := reasons.total() - sum(map(_count, [*named, *named_exchanges])):
            extra["others"] = others
        _log.info("messages left their queues", extra={**extra, **more})


def _named(one: QueueDepartures) -> list[tuple[str, str, int]]:
    """Return what has left a queue since it was last told: its name with the reason, that, and how
    many.
    """
    return [
        (f"{one.vhost} {one.name} {reason.label}", reason.label, count)
        for reason, count in one.untold()
    ]


def _count(named: tuple[str, int]) -> int:
    return named[1]


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={count}" for name, count in counts)


def acked(counters: DeliveryCounters) -> int:
    """Return how many messages were acked, or were delivered without acks, while their queue was
    there.
    """
    return counters.ack - counters.late_ack + counters.deliver_no_ack + counters.get_no_ack


def labelled(counts: Mapping[Departure, int]) -> dict[str, int]:
    """Return the counts that are not 0, by the labels of their reasons."""
    return {reason.label: count for reason, count in counts.items() if count}


def dead_lettered(departures: Departures) -> dict[Departure, int]:
    """Return how many messages arrived in another queue as dead letters, by reason."""
    return {reason: departures.dead_lettered[reason] for reason in DYING}


def reasons_of_queue(departures: Departures, counters: DeliveryCounters) -> dict[Departure, int]:
    """Return how many messages have left a queue, by reason."""
    counts = {reason: departures.left[reason] for reason in Departure}
    counts[Departure.ACKED] = acked(counters)
    return counts


def reasons_of_all(departures: Departures, counters: ChannelCounters) -> dict[Departure, int]:
    """Return how many messages have left all queues of some virtual hosts, or never entered one, by
    reason.
    """
    counts = reasons_of_queue(departures, counters)
    counts[Departure.UNROUTABLE] = counters.drop_unroutable
    counts[Departure.RETURNED] = counters.return_unroutable + counters.return_undelivered
    return counts
