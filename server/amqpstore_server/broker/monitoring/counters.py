"""The broker's counters: messages in and out of queues, exchanges, channels and virtual hosts.

Everything is counted for a run or a column of messages, never for each of them, and only ever goes
up, but for `unacked_count` of a queue; who wants a rate looks twice. The names are those of
RabbitMQ's management API. How many messages entered a queue is not counted: its sequences tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter

from amqpstore import Queue, Run
from amqpstore.log.measures import BucketHistogram

_MAX_PROBES = 64


class DeliveryCounters:
    """Counts of messages that left queues. `deliver` and `get` are those that have to be acked, the
    others with `no_ack` are gone at once; `redeliver` are those of all of them that were delivered
    before; `reject` are those that were rejected without being requeued. `late_ack` are those of
    `ack` whose queue had been deleted before, and they with it.
    """

    __slots__ = (
        "ack",
        "deliver",
        "deliver_no_ack",
        "get",
        "get_empty",
        "get_no_ack",
        "late_ack",
        "redeliver",
        "reject",
        "requeue",
    )

    def __init__(self) -> None:
        self.deliver = self.deliver_no_ack = 0
        self.get = self.get_no_ack = self.get_empty = 0
        self.redeliver = self.late_ack = 0
        self.ack = self.reject = self.requeue = 0

    def fetched(self, *, no_ack: bool, redelivered: bool) -> None:
        """Count a message that was fetched."""
        if no_ack:
            self.get_no_ack += 1
        else:
            self.get += 1
        self.redeliver += redelivered

    def rejected(self, count: int, *, requeue: bool) -> None:
        """Count messages that were rejected, or requeued."""
        if requeue:
            self.requeue += count
        else:
            self.reject += count


class ChannelCounters(DeliveryCounters):
    """Counts of messages that passed through a channel, or all channels of a virtual host.

    `publish` are all messages that clients published; `return_unroutable` and `drop_unroutable`
    are those of them without a queue, with `mandatory` and without; `return_undelivered` are those
    that no consumer could take at once, with `immediate`. `confirmable` are those that
    were published with confirms on, `confirm` those of them that were confirmed, and `refuse` those
    that were refused (basic.nack).
    """

    __slots__ = (
        "confirm",
        "confirmable",
        "drop_unroutable",
        "publish",
        "refuse",
        "return_undelivered",
        "return_unroutable",
    )

    def __init__(self) -> None:
        super().__init__()
        self.publish = self.confirmable = self.confirm = self.refuse = 0
        self.return_unroutable = self.drop_unroutable = self.return_undelivered = 0

    @classmethod
    def sum_of(cls, summands: Collection[ChannelCounters]) -> ChannelCounters:
        """Return the sums of each count."""
        total = cls()
        for name in (*ChannelCounters.__slots__, *DeliveryCounters.__slots__):
            setattr(total, name, sum(map(attrgetter(name), summands)))
        return total

    def add(self, other: ChannelCounters) -> None:
        """Add the counts of others to these."""
        for name in (*ChannelCounters.__slots__, *DeliveryCounters.__slots__):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ChannelTotals:
    """Counts of what has passed through the channels of a virtual host: each channel keeps its own,
    and they are summed when somebody asks.
    """

    __slots__ = ("_open", "past")

    def __init__(self) -> None:
        self.past = ChannelCounters()
        """The counts of closed channels, and of those that are not listed."""
        self._open: set[ChannelCounters] = set()

    def begin(self) -> ChannelCounters:
        """Return the counters of a new channel."""
        counters = ChannelCounters()
        self._open.add(counters)
        return counters

    def end(self, counters: ChannelCounters) -> ChannelCounters:
        """Keep what a channel has counted, which is not listed any more. Returns the counters for
        what becomes of its messages later.
        """
        self._open.remove(counters)
        self.past.add(counters)
        return self.past

    def total(self) -> ChannelCounters:
        """Return the sum of all."""
        return ChannelCounters.sum_of((self.past, *self._open))


class MessageSizes:
    """Sizes of the messages that clients publish: how many have a body of up to each of `bounds`,
    in bytes, which are those of RabbitMQ. `total` is the sum of all.
    """

    __slots__ = ("buckets", "total")

    bounds = (100, 1000, 10**4, 10**5, 10**6, 10**7, 5 * 10**7, 10**8)

    def __init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)
        """How many belong to each bound, and at last how many are above all of them."""
        self.total = 0

    def observe(self, size: int, count: int = 1) -> None:
        """Count messages of one size."""
        self.buckets[bisect_left(self.bounds, size)] += count
        self.total += size * count

    def observe_all(self, sizes: Sequence[int]) -> None:
        """Count messages, at least one."""
        first = bisect_left(self.bounds, min(sizes))
        if max(sizes) <= self.bounds[min(first, len(self.bounds) - 1)]:
            self.buckets[first] += len(sizes)
            self.total += sum(sizes)
        else:
            for size in sizes:
                self.observe(size)


class DeliveryProbes:
    """Measures how long messages wait for their delivery, on some of them: the last message of a
    run now and then, one in each queue of the store.

    `is_due` is set when the next run may be chosen; `waiting` has the sequences of those that were,
    by their queue of the store, and when they were read.
    """

    __slots__ = ("delivery_s", "is_due", "waiting")

    def __init__(self) -> None:
        self.delivery_s = BucketHistogram.of_seconds()
        self.is_due = False
        self.waiting: dict[int, tuple[int, float]] = {}

    def begin(self, queue: Queue, read_s: float) -> None:
        """Choose the message that came last into a queue."""
        self.is_due = False
        if queue.id in self.waiting:
            return
        if len(self.waiting) >= _MAX_PROBES:
            # Their queues may never have a consumer.
            del self.waiting[next(iter(self.waiting))]
        self.waiting[queue.id] = queue.next_sequence - 1, read_s

    def delivered(self, queue: Queue, run: Run) -> None:
        """Note a run that was taken off a queue in which a message was chosen."""
        sequence, read_s = self.waiting[queue.id]
        if run.end > sequence:
            del self.waiting[queue.id]
            # Otherwise the message has left in another way, such as by its expiry.
            if run.first_sequence <= sequence:
                self.delivery_s.observe_since(read_s)


class ExchangeCounters:
    """Counts of messages that were published to an exchange (`publish_in`), and the copies of it
    that went to queues (`publish_out`).
    """

    __slots__ = ("publish_in", "publish_out")

    def __init__(self) -> None:
        self.publish_in = self.publish_out = 0


class OctetCounters:
    """The bytes that were received and sent, as RabbitMQ's management API calls them, and how many
    reads and writes that took.
    """

    __slots__ = ("recv_cnt", "recv_oct", "send_cnt", "send_oct")

    def __init__(self) -> None:
        self.recv_oct = self.send_oct = 0
        self.recv_cnt = self.send_cnt = 0

    def add(self, other: OctetCounters) -> None:
        """Add the counts of another to these."""
        self.recv_oct += other.recv_oct
        self.send_oct += other.send_oct
        self.recv_cnt += other.recv_cnt
        self.send_cnt += other.send_cnt


class ChurnCounters:
    """Counts of connections, channels and queues that came and went since the start.

    `queue_declared` are declarations, those of existing queues too.
    """

    __slots__ = (
        "channel_closed",
        "channel_created",
        "connection_closed",
        "connection_created",
        "queue_created",
        "queue_declared",
        "queue_deleted",
    )

    def __init__(self) -> None:
        self.connection_created = self.connection_closed = 0
        self.channel_created = self.channel_closed = 0
        self.queue_declared = self.queue_created = self.queue_deleted = 0
