"""Clients that go on whatever happens to a group, and a record of what they were told.

Publishers send numbered messages to one of two queues, or to both by an exchange, each with a
confirm or some of them in a transaction; consumers ack most of what they get, and requeue the rest.
"""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from tests.cluster_processes import GroupProcesses
from tests.waiting import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = ("left", "right")
BOTH = "both"
_ROUTES = (QUEUES[:1], QUEUES[1:], QUEUES)
_FILLERS = (0, 10, 2000, 20_000)
_TRANSACTION = 3
"""How many messages are published in one transaction."""

_PAUSE_S = 0.05
_PREFETCH = 20

Position = tuple[str, int]
"""A queue, and the number of a message that goes there."""


class Source(NamedTuple):
    """A connection: the member behind it, and since when. A leader that is deposed closes all of
    its clients, so what comes on one connection comes from one leader of one term.
    """

    member: str
    connected_at: float


class History:
    """A record of what clients tried and what they were told. `faults` says what should not have
    happened.

    A message that a leader delivers need not be in its log yet, or be committed, and is forgotten
    if the leader dies. The message is known to be in the log if the same leader has confirmed one
    that was published later.
    """

    def __init__(self) -> None:
        self.confirms = 0
        self.longest_s = 0.0
        """The longest time between two confirms since it was set to 0."""
        self.forgotten = 0
        """Messages that came again, and not as redelivered, as a leader was lost in between."""
        self._faults: list[str] = []
        self._attempts: list[tuple[Position, ...]] = []
        """Messages and transactions: each is in its queues as a whole, or not at all."""
        self._confirmed: set[Position] = set()
        self._delivered: dict[Position, tuple[str, float]] = {}
        """The member that delivered a message first, and when."""
        self._logged: dict[Source, float] = {}
        """The time when the last confirmed message of a connection was sent."""
        self._confirmed_at = time.monotonic()
        self._lock = threading.Lock()

    def attempted(self, whole: tuple[Position, ...]) -> None:
        """Note what is about to be published."""
        with self._lock:
            self._attempts.append(whole)

    def confirmed(self, whole: tuple[Position, ...], source: Source, sent_at: float) -> None:
        """Note a confirm."""
        with self._lock:
            self.confirms += 1
            self._confirmed.update(whole)
            self._logged[source] = sent_at
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self._confirmed_at)
            self._confirmed_at = now

    def delivered(self, position: Position, source: Source, *, is_redelivered: bool) -> None:
        """Note a delivery: it is flagged if the log has one before it."""
        with self._lock:
            before = self._delivered.get(position)
            if before is None:
                self._delivered[position] = source.member, time.monotonic()
            elif not is_redelivered:
                # A leader that was deposed may still deliver, and not know what the next one does.
                if self._is_logged(before) and source.connected_at > before[1]:
                    self._faults.append(f"{position} was delivered before, and is not flagged")
                self.forgotten += 1

    def _is_logged(self, delivery: tuple[str, float]) -> bool:
        member, at = delivery
        return any(
            source.member == member and source.connected_at < at < sent_at
            for source, sent_at in self._logged.items()
        )

    def faults(self) -> list[str]:
        """Return what is wrong, once all queues are empty."""
        with self._lock:
            found = list(self._faults)
            there = self._delivered.keys()
            if lost := sorted(self._confirmed - there):
                found.append(f"{len(lost)} confirmed messages are lost: {lost[:5]}")
            if strange := sorted(there - {one for whole in self._attempts for one in whole}):
                found.append(f"{len(strange)} were never published: {strange[:5]}")
            parts = [
                whole
                for whole in self._attempts
                if not there.isdisjoint(whole)
                and not there >= set(whole)
                and any(one in there and self._is_logged(self._delivered[one]) for one in whole)
            ]
            if parts:
                found.append(f"{len(parts)} are there in part: {parts[:5]}")
            return found


class _Client(threading.Thread):
    """A client that connects to any member that accepts it, again and again."""

    def __init__(self, load: "Load", seed: int) -> None:
        super().__init__(daemon=True)
        self.failure = ""
        self.load = load
        self.random = random.Random(seed)

    def run(self) -> None:
        while not self.load.is_stopped(self):
            connection = None
            try:
                connection, source = self.load.connect(self.random)
                if connection is not None:
                    self.work(connection, source)
            except (AMQPError, OSError):
                pass  # it was closed, or killed: what was not confirmed is unknown
            except Exception as error:  # any other error is a finding
                self.failure = repr(error)
                raise
            finally:
                _abandon(connection)
            self.load.stopped.wait(_PAUSE_S)

    def work(self, connection: pika.BlockingConnection, source: Source) -> None:
        """Use a connection until it is lost, or the load is stopped."""
        raise NotImplementedError


def _abandon(connection: pika.BlockingConnection | None) -> None:
    if connection is not None and connection.is_open:
        with contextlib.suppress(AMQPError, OSError):
            connection.close()


class _Publisher(_Client):
    def work(self, connection: pika.BlockingConnection, source: Source) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.load.stopped.wait(self.load.pace_s):
            number = next(self.load.numbers)
            routes = self.random.choice(_ROUTES)
            whole = tuple((queue, number) for queue in routes)
            self.load.history.attempted(whole)
            sent_at = time.monotonic()
            _publish(channel, number, routes, self.random)
            self.load.history.confirmed(whole, source, sent_at)


class _Transactor(_Client):
    def work(self, connection: pika.BlockingConnection, source: Source) -> None:
        channel = connection.channel()
        channel.tx_select()
        while not self.load.stopped.wait(self.load.pace_s):
            messages = [
                (next(self.load.numbers), self.random.choice(_ROUTES)) for _ in range(_TRANSACTION)
            ]
            whole = tuple((queue, number) for number, routes in messages for queue in routes)
            self.load.history.attempted(whole)
            sent_at = time.monotonic()
            for number, routes in messages:
                _publish(channel, number, routes, self.random)
            channel.tx_commit()
            self.load.history.confirmed(whole, source, sent_at)


def _publish(
    channel: BlockingChannel, number: int, routes: tuple[str, ...], rng: random.Random
) -> None:
    body = b"%d%s" % (number, b"." * rng.choice(_FILLERS))
    exchange, key = (BOTH, "") if routes == QUEUES else ("", routes[0])
    channel.basic_publish(exchange, key, body, PERSISTENT)


class _Consumer(_Client):
    def __init__(self, load: "Load", seed: int, queue: str) -> None:
        super().__init__(load, seed)
        self._queue = queue

    def work(self, connection: pika.BlockingConnection, source: Source) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        for method, _, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None and method.delivery_tag is not None and body is not None:
                position = (self._queue, int(body.rstrip(b".")))
                self.load.history.delivered(position, source, is_redelivered=method.redelivered)
                if self.random.random() < 0.8:
                    channel.basic_ack(method.delivery_tag)
                else:
                    channel.basic_nack(method.delivery_tag)
            if self.load.is_stopped(self):
                return


class Load:
    """Publishers, a tenth of them with transactions, and consumers.

    Args: pace_s, for how long a publisher waits behind each confirm.
    """

    def __init__(
        self, group: GroupProcesses, seed: int, publishers: int = 4, pace_s: float = 0.0
    ) -> None:
        self.history = History()
        self.connections = 0
        """The number of connections that all clients have made."""
        self.numbers: Iterator[int] = itertools.count()
        self.pace_s = pace_s
        self.stopped = threading.Event()
        self._is_drained = threading.Event()
        self._group = group
        self._consumers = [
            _Consumer(self, seed + number, queue) for number, queue in enumerate(QUEUES * 2)
        ]
        self._publishers: list[_Client] = [
            _Publisher(self, seed + number) if number % 10 else _Transactor(self, seed + number)
            for number in range(publishers)
        ]

    def start(self) -> None:
        channel = self._group.wait_for_leader().connect().channel()
        channel.exchange_declare(BOTH, "fanout", durable=True)
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, BOTH)
        channel.connection.close()
        for client in self._clients:
            client.start()

    @property
    def _clients(self) -> Iterable[_Client]:
        return (*self._publishers, *self._consumers)

    def is_stopped(self, client: _Client) -> bool:
        return (self._is_drained if client in self._consumers else self.stopped).is_set()

    def connect(self, rng: random.Random) -> tuple[pika.BlockingConnection | None, Source]:
        """Try all members, in any order, as client libraries do with a list of hosts."""
        members = list(self._group.members)
        rng.shuffle(members)
        for one in members:
            # The next one may lead.
            with contextlib.suppress(AMQPError, AMQPConnectorException, OSError):
                connection = pika.BlockingConnection(one.parameters(timeout_s=2.0, heartbeat_s=4))
                self.connections += 1
                # Behind a proxy the leader may be any member.
                return connection, Source("" if one.proxy else one.id, time.monotonic())
        return None, Source("", 0.0)

    def wait_for_confirms(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until `count` more confirms have come."""
        target = self.history.confirms + count
        wait_until(lambda: self.history.confirms >= target, self._group.logs, timeout_s)

    def goes_on_for(self, seconds: float) -> None:
        """Return after some seconds, if confirms come all the time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.wait_for_confirms(20)

    def verify(self) -> None:
        """Stop, take all that is there, and compare it with what was confirmed."""
        self.stopped.set()
        for one in self._publishers:
            one.join()
        channel = self._group.wait_for_leader().connect().channel()
        for queue in QUEUES:
            self._group.wait(lambda: _ready(channel, queue) == 0)  # noqa: B023 (it is called here)
        self._is_drained.set()
        for one in self._consumers:
            one.join()
        channel.connection.close()
        failures = [one.failure for one in self._clients if one.failure]
        assert not failures, failures
        faults = self.history.faults()
        assert not faults, f"{faults}\n{self._group.logs()}"


def _ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)
