"""The sampler: takes samples of all counters, in steps, within budgets of memory and time.

Totals and virtual hosts are sampled every second, queues, exchanges, connections and channels every
five seconds; less often where it would take more than half a percent of a processor. An object gets
a series when its counters change for the first time, and loses it when its last sample is too old
to be asked for: one that is idle costs a comparison every five seconds. Of many active ones each
keeps a shorter past, so that all together stay within `MAX_BYTES`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.counters import (
    ChannelCounters,
    ExchangeCounters,
    OctetCounters,
)
from amqpstore_server.broker.queues.message_sums import MessageSums, volatile_count
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.statistics.latencies import Quantiles, RecentLatency
from amqpstore_server.statistics.node import NODE_FIELDS, node_values
from amqpstore_server.statistics.series import (
    LEAST_SHARE,
    OBJECTS,
    RATE_MS,
    TOTALS,
    VHOSTS,
    CounterSeries,
    series_bytes,
)
from amqpstore_server.statistics.volatile import VolatileCounts

MAX_BYTES = 48 << 20
"""The memory that the samples of queues, exchanges, connections and channels may take."""

_TOTALS_S = 1.0
_OBJECTS_S = 5.0
_PRICE = 200
"""The pause after a pass, at least, divided by the processor time that the pass took."""

_KEPT_MS = OBJECTS[-1].step_ms * OBJECTS[-1].samples
"""The time without a change after which an object has no series any more."""

_AT_ONCE = 128
"""Objects that are sampled before others have their turn: a quarter of a millisecond."""

PUBLISH = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVER = (
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
)
LENGTHS = ("messages_ready", "messages_unacknowledged", "messages")
OCTETS = ("recv_oct", "send_oct")
EXCHANGE = ("publish_in", "publish_out")
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
QUEUE_FIELDS = ("publish", *DELIVER, *LENGTHS)
CHANNEL_FIELDS = (*PUBLISH, *DELIVER)
VHOST_FIELDS = (*PUBLISH, *DELIVER, *LENGTHS, *OCTETS)
DISK = ("disk_reads", "disk_writes")
"""Messages that were read back from disk, and written to the log."""
TOTAL_FIELDS = (*VHOST_FIELDS, *CHURN, *DISK)

_deliver = attrgetter(*DELIVER)
_channel = attrgetter(*CHANNEL_FIELDS)
_octets = attrgetter(*OCTETS)
_exchange = attrgetter(*EXCHANGE)
_churn = attrgetter(*CHURN)

_END = object()

T = TypeVar("T")


def queue_values(queue: Queue) -> tuple[int, ...]:
    """Return the values of `QUEUE_FIELDS`."""
    priorities, unacked = queue.priorities, queue.unacked_count
    ready = priorities.ready_count
    delivered: tuple[int, ...] = _deliver(queue.counters)
    total = ready + unacked
    if queue.letters is not None:
        total += queue.letters.ready_count
    return (priorities.published_count, *delivered, ready, unacked, total)


def channel_values(channel: AmqpChannel) -> tuple[int, ...]:
    """Return the values of `CHANNEL_FIELDS`."""
    values: tuple[int, ...] = _channel(channel.counters)
    return values


def connection_values(connection: AmqpConnection) -> tuple[int, ...]:
    """Return the values of `OCTETS`."""
    values: tuple[int, ...] = _octets(connection.octets)
    return values


def exchange_values(counters: ExchangeCounters) -> tuple[int, ...]:
    """Return the values of `EXCHANGE`."""
    values: tuple[int, ...] = _exchange(counters)
    return values


class QueueSums(NamedTuple):
    """The sums over all queues, as of the last pass: how many queues there are, and how many have
    all their entries `in_memory`; their consumers; messages whose entries are on disk only
    (`paged`), and the bytes of their bodies as far as they are known; messages that cannot be read;
    and how many messages there are where, with their bytes (`messages`).
    """

    queues: int = 0
    in_memory: int = 0
    consumers: int = 0
    paged: int = 0
    paged_bytes: int = 0
    unreadable: int = 0
    messages: MessageSums = MessageSums()

    @property
    def on_disk(self) -> int:
        """Queues with entries on disk only."""
        return self.queues - self.in_memory


class LastSample(NamedTuple):
    """The findings of the last pass: the values, a series if they have ever changed, and which pass
    was the first to find these values.
    """

    values: tuple[int, ...]
    series: CounterSeries | None
    changed_ms: int


class _Objects(Generic[T]):
    """The samples of all objects of one kind, by their counters. Those of an object that is gone
    are dropped with the next pass.

    Args: fields, of each; all_of, returns the objects that there are; counters_of, values_of, the
    counters of an object, and their values.
    """

    def __init__(
        self,
        fields: Sequence[str],
        all_of: Callable[[], list[T]],
        counters_of: Callable[[T], object],
        values_of: Callable[[T], tuple[int, ...]],
    ) -> None:
        self.bytes_of_one = series_bytes(OBJECTS, len(fields))
        self.active = 0
        """The number of objects that have a series."""
        self._width = len(fields)
        self._all_of = all_of
        self._counters_of = counters_of
        self._values_of = values_of
        self._seen: dict[object, LastSample] = {}
        self._before: dict[object, LastSample] = {}

    def seen(self, counters: object) -> LastSample | None:
        """Return what the last pass found of an object; None if the object came after that."""
        return self._seen.get(counters) or self._before.get(counters)

    def series(self, counters: object) -> CounterSeries | None:
        """Return the series of an object, if its counters have changed lately."""
        seen = self.seen(counters)
        return seen.series if seen else None

    def sample(self, now_ms: int, share: float) -> Iterator[None]:
        """Take a sample of each object, in steps.

        Args: share, as of `CounterSeries.add`; 0 for no new series.
        """
        # What is not seen in this pass is gone.
        self._before, self._seen = self._seen, {}
        active = 0
        for index, counted in enumerate(self._all_of(), 1):
            counters, values = self._counters_of(counted), self._values_of(counted)
            seen = self._before.pop(counters, None)
            if seen is None or (seen.series is None and seen.values == values):
                seen = seen or LastSample(values, None, now_ms)
            else:
                changed_ms = seen.changed_ms if seen.values == values else now_ms
                seen = LastSample(values, self._added(seen, now_ms, values, share), changed_ms)
            self._seen[counters] = seen
            active += seen.series is not None
            if not index % _AT_ONCE:
                yield
        self._before = {}
        self.active = active

    def _added(
        self, seen: LastSample, now_ms: int, values: tuple[int, ...], share: float
    ) -> CounterSeries | None:
        """Return the series with one more sample; None if there is none any more."""
        series = seen.series
        if series is None:
            if not share:
                return None
            series = CounterSeries(OBJECTS, self._width)
            series.add(now_ms - RATE_MS, seen.values, share)
        series.add(now_ms, values, share)
        return series if series.changed_ms > now_ms - _KEPT_MS else None


class Sampler:
    """Samples of one broker. `passes` has to be run as a task.

    Args: connections, returns those that there are.
    """

    def __init__(self, broker: Broker, connections: Callable[[], Iterable[AmqpConnection]]) -> None:
        self.totals = CounterSeries(TOTALS, len(TOTAL_FIELDS))
        self.node = CounterSeries(TOTALS, len(NODE_FIELDS))
        self.vhosts: dict[str, CounterSeries] = {}
        self.figures = QueueSums()
        self.volatile: VolatileCounts = {}
        """The counts of the last pass over the totals."""
        self._broker = broker
        self._connections = connections
        self._clock = broker.services.clock
        self._octets: dict[OctetCounters, tuple[int, ...]] = {}
        self._octets_of: dict[str, list[int]] = {}
        self._lengths: dict[str, tuple[int, int, int]] = {}
        self.queues = _Objects(QUEUE_FIELDS, self.all_queues, attrgetter("counters"), queue_values)
        self.channels = _Objects(
            CHANNEL_FIELDS, self._all_channels, attrgetter("counters"), channel_values
        )
        self.connections = _Objects(
            OCTETS, self._all_connections, attrgetter("octets"), connection_values
        )
        self.exchanges = _Objects(EXCHANGE, self._all_exchanges, _itself, exchange_values)
        self._latencies = {
            name: RecentLatency(histogram)
            for name, histogram in (
                ("sync", broker.services.store.measures.sync_s),
                ("confirm", broker.services.statistics.confirm_s),
                ("delivery", broker.services.statistics.probes.delivery_s),
            )
        }
        self._objects = (self.queues, self.channels, self.connections, self.exchanges)

    def all_queues(self) -> list[Queue]:
        """Return the queues of clients."""
        return [
            queue
            for vhost in self._broker.vhosts.values()
            for queue in vhost.queues.values()
            if queue.is_listed
        ]

    def _all_connections(self) -> list[AmqpConnection]:
        return [one for one in self._connections() if one.vhost]

    def _all_channels(self) -> list[AmqpChannel]:
        return [channel for one in self._connections() for channel in one.channels]

    def _all_exchanges(self) -> list[ExchangeCounters]:
        vhosts = self._broker.vhosts.values()
        default = [vhost.router.default_counters for vhost in vhosts]
        return default + [one.counters for vhost in vhosts for one in vhost.exchanges.values()]

    def latencies(self) -> dict[str, Quantiles]:
        """Return how long syncs took in the last seconds, and messages until their confirm and
        until their delivery.
        """
        return {name: latency.quantiles() for name, latency in self._latencies.items()}

    @property
    def history_bytes(self) -> int:
        """About how much memory the samples of objects would take if each kept all of its past."""
        return sum([objects.active * objects.bytes_of_one for objects in self._objects])

    def octets(self) -> OctetCounters:
        """Return what all connections, also those that have ended, received and sent."""
        total = OctetCounters()
        total.add(self._broker.services.statistics.octets)
        for one in self._connections():
            total.add(one.octets)
        return total

    @property
    def memory_bytes(self) -> int:
        """About how much memory the samples of objects may have taken by now, at most."""
        return min(self.history_bytes, MAX_BYTES)

    @property
    def share(self) -> float:
        """The share of its past that each object keeps; 0 if there is no memory for more of
        them.
        """
        share = MAX_BYTES / max(self.history_bytes, MAX_BYTES)
        return share if share > LEAST_SHARE else 0.0

    async def passes(self, pause: Callable[[float], Awaitable[object]]) -> None:
        """Take samples until it is cancelled. Args: pause, waits for a number of seconds."""
        totals, objects = _Pass(_TOTALS_S), _Pass(_OBJECTS_S)
        while True:
            now_s = self._clock.monotonic_ms() / 1000
            if now_s >= totals.due_s:
                await totals.run(self.sample_totals(), now_s, pause)
            if now_s >= objects.due_s:
                await objects.run(self.sample_objects(), now_s, pause)
            now_s = self._clock.monotonic_ms() / 1000
            await pause(max(min(totals.due_s, objects.due_s) - now_s, 0.0))

    def sample_objects(self) -> Iterator[None]:
        """Take a sample of each queue, channel, connection and exchange, in steps."""
        yield from self._sum_up()
        now_ms, share = self._clock.monotonic_ms(), self.share
        self.node.add(now_ms, self.node_values())
        for objects in self._objects:
            yield from objects.sample(now_ms, share)

    def _sum_up(self) -> Iterator[None]:
        in_memory = consumers = paged_in_all = paged_bytes = 0
        unreadable = self._broker.services.store.statistics.unreadable()
        messages = MessageSums()
        queues = self.all_queues()
        for index, queue in enumerate(queues, 1):
            paged = 0
            for stored in queue.priorities:
                paged += stored.paged_count
                paged_bytes += sum([file.body_bytes or 0 for file in stored.paged])
                unreadable.add(stored)
            in_memory += not paged
            paged_in_all += paged
            consumers += len(queue.consumers)
            if queue.ready_count or queue.unacked_count or queue.letters is not None:
                messages = messages.plus(MessageSums.of(queue))
            if not index % _AT_ONCE:
                yield
        self.figures = QueueSums(
            *(len(queues), in_memory, consumers, paged_in_all, paged_bytes, unreadable.messages),
            messages,
        )

    def sample_totals(self) -> Iterator[None]:
        """Take a sample of the virtual hosts and the totals, in steps."""
        yield from self._add_octets()
        volatile = {}
        for name, vhost in list(self._broker.vhosts.items()):
            ready = unacked = letters = 0
            for index, queue in enumerate(list(vhost.queues.values()), 1):
                if queue.is_listed:
                    ready += queue.ready_count
                    unacked += queue.unacked_count
                    if queue.letters is not None:
                        letters += queue.letters.ready_count
                    queue.consumers.note_room()
                if not queue.has_copies and (count := volatile_count(queue)):
                    volatile[name, queue.name] = count
                if not index % _AT_ONCE:
                    yield
            self._lengths[name] = ready, unacked, letters
        self.volatile = volatile
        for known in (self.vhosts, self._lengths, self._octets_of):
            for name in [name for name in known if name not in self._broker.vhosts]:
                del known[name]
        now_ms = self._clock.monotonic_ms()
        by_vhost, of_all = self._broker.counters_by_vhost()
        for name, counters in by_vhost.items():
            series = self.vhosts.get(name)
            if series is None:
                series = self.vhosts[name] = CounterSeries(VHOSTS, len(VHOST_FIELDS))
            series.add(now_ms, self.vhost_values(name, counters))
        self.totals.add(now_ms, self.total_values(of_all))
        for latency in self._latencies.values():
            latency.sample(now_ms)

    def _add_octets(self) -> Iterator[None]:
        """Add what connections have received and sent since the last time to their virtual
        hosts.
        """
        before, self._octets = self._octets, {}
        for index, one in enumerate(self._all_connections(), 1):
            values = connection_values(one)
            received, sent = before.get(one.octets, (0, 0))
            self._octets[one.octets] = values
            of_vhost = self._octets_of.setdefault(one.vhost, [0, 0])
            of_vhost[0] += values[0] - received
            of_vhost[1] += values[1] - sent
            if not index % _AT_ONCE:
                yield

    def vhost_values(self, name: str, counters: ChannelCounters) -> tuple[int, ...]:
        """Return the values of `VHOST_FIELDS`; lengths and octets are those of the last pass.

        Args: counters, the sums over the channels of the virtual host.
        """
        ready, unacked, letters = self._lengths.get(name, (0, 0, 0))
        octets = self._octets_of.get(name, (0, 0))
        passed: tuple[int, ...] = _channel(counters)
        return (*passed, ready, unacked, ready + unacked + letters, *octets)

    def node_values(self) -> tuple[int, ...]:
        """Return the values of `NODE_FIELDS`."""
        return node_values(self._broker, sum(1 for _ in self._connections()))

    def lengths(self) -> tuple[int, int, int]:
        """Return the values of `LENGTHS` of all virtual hosts, as of the last pass."""
        ready = sum([lengths[0] for lengths in self._lengths.values()])
        unacked = sum([lengths[1] for lengths in self._lengths.values()])
        messages = sum([sum(lengths) for lengths in self._lengths.values()])
        return ready, unacked, messages

    def total_values(self, counters: ChannelCounters) -> tuple[int, ...]:
        """Return the values of `TOTAL_FIELDS`, as `vhost_values` does. Args: counters, the sums
        over all channels.
        """
        services = self._broker.services
        return (
            *_channel(counters),
            *self.lengths(),
            *_octets(self.octets()),
            *_churn(services.statistics.churn),
            *(services.store.measures.read_messages, services.store.measures.written_messages),
        )


class _Pass:
    """The schedule of one kind of pass. It takes longer until the next one the more it costs."""

    def __init__(self, every_s: float) -> None:
        self.due_s = 0.0
        self._every_s = every_s

    async def run(
        self, steps: Iterator[None], now_s: float, pause: Callable[[float], Awaitable[object]]
    ) -> None:
        """Run a pass, and note when the next one is due."""
        spent_s = 0.0
        is_done = False
        while not is_done:
            began_s = time.thread_time()
            is_done = next(steps, _END) is _END
            spent_s += time.thread_time() - began_s
            if not is_done:
                await pause(0.0)
        every_s = max(self._every_s, _PRICE * spent_s)
        self.due_s = now_s - now_s % self._every_s + every_s


def _itself(counters: ExchangeCounters) -> ExchangeCounters:
    return counters
