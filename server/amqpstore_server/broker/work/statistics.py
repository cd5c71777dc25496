"""The counts and measurements of a broker since its start, beside those of its virtual hosts:
metrics, samples and the log read them.
"""

from __future__ import annotations

from collections import Counter

from amqpstore.log.measures import BucketHistogram
from amqpstore_server.broker.monitoring.counters import (
    ChurnCounters,
    DeliveryProbes,
    MessageSizes,
    OctetCounters,
)
from amqpstore_server.broker.monitoring.departures import DepartureLog
from amqpstore_server.broker.rules.settings import LetterStrategy


class BrokerStatistics:
    """The counters and figures of one broker."""

    def __init__(self) -> None:
        self.churn = ChurnCounters()
        """Connections, channels and queues that have come and gone."""
        self.octets = OctetCounters()
        """The bytes of connections that have ended."""
        self.message_sizes = MessageSizes()
        """The sizes of what clients publish."""
        self.confirmed: list[tuple[float, int]] = []
        """The times of messages that `confirm_s` has not yet, in seconds, and how many had each."""
        self._confirm_s = BucketHistogram.of_seconds()
        self.probes = DeliveryProbes()
        """Times from the reads that brought messages to their deliveries, of some messages."""
        self.dead_letters: Counter[tuple[str, LetterStrategy]] = Counter()
        """Messages that left a queue without being consumed, by the reason and by what became of
        them then.
        """
        self.arrived_letters = 0
        """Dead letters that have waited, and are in all of their queues."""
        self.departures = DepartureLog()
        """Counts of messages that have left queues, for the log."""
        self.logins: Counter[tuple[str, bool]] = Counter()
        """Logins by protocol, and whether the client was let in."""

    @property
    def confirm_s(self) -> BucketHistogram:
        """Times from the reads that brought messages to their confirms, until now."""
        self.count_confirms()
        return self._confirm_s

    def count_confirms(self) -> None:
        """Count what was confirmed: not one by one, as nothing waits for it."""
        confirmed, self.confirmed = self.confirmed, []
        for seconds, count in confirmed:
            self._confirm_s.observe(seconds, count)
