"""The durability proof: clients at work, `kill -9` at any moment, nothing confirmed is lost.

Two publishers with many confirms outstanding and two consumers that ack some of what they get
work on two durable queues. The broker is killed and restarted several times. At the end the
queues are drained and held against what the clients know:

- a message that was confirmed and never acked is there, exactly once, octet for octet;
- a message that was sent but not confirmed, or acked with the answer still under way, is there
  once or not at all (an ack is no promise until the broker has written it down);
- what a consumer had before something else was published and confirmed comes back only with
  the redelivered flag: that confirm's fdatasync made the delivery durable as well;
- each publisher's messages are in the order it sent them.
"""

import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pika
import pytest
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from tests.broker_process import BrokerProcess
from tests.interop.confirming_publisher import ConfirmingPublisher, Outgoing
from tests.interop.pika_client import Received, connect, drain, parameters

QUEUES = ("left", "right")
FANOUT = "both"
PUBLISHERS = 2
KILLS = 3
LARGEST_BODY = 20 << 10
KEY = struct.Struct(">QII")  # seed, publisher, position
JOIN_TIMEOUT_S = 30.0

Key = tuple[int, int, int]


def body_of(key: Key) -> bytes:
    """A body that tells its key and can be made again from it."""
    generator = random.Random(repr(key))
    return KEY.pack(*key) + generator.randbytes(generator.randint(0, LARGEST_BODY - KEY.size))


def routes_of(key: Key) -> tuple[str, ...]:
    """The queues that the message goes to: one of them, or both by the fanout exchange."""
    return random.Random(f"route {key}").choice([QUEUES[:1], QUEUES[1:], QUEUES])


class NumberedMessages(Iterator[Outgoing]):
    """An endless sequence of one publisher's messages, which goes on after a reconnect."""

    def __init__(self, seed: int, publisher: int) -> None:
        self.taken: list[Key] = []
        self._seed = seed
        self._publisher = publisher

    def __next__(self) -> Outgoing:
        key = (self._seed, self._publisher, len(self.taken))
        self.taken.append(key)
        routes = routes_of(key)
        if routes == QUEUES:
            return Outgoing(FANOUT, "", body_of(key))
        return Outgoing("", routes[0], body_of(key))


class ForgetfulConsumer:
    """Takes messages until the connection is lost; acks some, alone or several at a time."""

    def __init__(
        self,
        url: str,
        queue: str,
        generator: random.Random,
        sequences: Sequence["NumberedMessages"],
    ) -> None:
        self.seen: dict[Key, list[int]] = {}
        """How many messages each publisher had taken when the message was first delivered."""
        self.acked: set[Key] = set()
        self._queue = queue
        self._generator = generator
        self._sequences = sequences
        self._unacked: dict[int, Key] = {}
        self._connection = pika.SelectConnection(
            parameters(url),
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self._on_channel
            ),
            on_open_error_callback=lambda _connection, _error: self._connection.ioloop.stop(),
            on_close_callback=lambda _connection, _reason: self._connection.ioloop.stop(),
        )

    def run(self) -> None:
        self._connection.ioloop.start()
        self._connection.ioloop.close()

    def _on_channel(self, channel: Channel) -> None:
        channel.basic_qos(prefetch_count=64)
        channel.basic_consume(self._queue, self._on_message)

    def _on_message(
        self, channel: Channel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
    ) -> None:
        key: Key = KEY.unpack_from(body)
        tag = method.delivery_tag or 0
        self.seen.setdefault(key, [len(sequence.taken) for sequence in self._sequences])
        self._unacked[tag] = key
        draw = self._generator.random()
        if draw < 0.4:
            self.acked.add(self._unacked.pop(tag))
            channel.basic_ack(tag)
        elif draw < 0.5:
            channel.basic_nack(self._unacked.popitem()[0], requeue=True)
        elif draw < 0.52:
            self.acked.update(self._unacked.values())
            self._unacked.clear()
            channel.basic_ack(tag, multiple=True)


class Ledger:
    """The messages that clients know of, over all runs of the broker."""

    def __init__(self) -> None:
        self.confirmed: set[Key] = set()
        self.delivered: dict[str, set[Key]] = {queue: set() for queue in QUEUES}
        """Messages whose delivery the broker has logged."""
        self.acked: dict[str, set[Key]] = {queue: set() for queue in QUEUES}

    def check(self, queue: str, drained: list[Received], sent: set[Key]) -> None:
        keys: list[Key] = [KEY.unpack_from(message.body) for message in drained]
        twice = [key for key, count in Counter(keys).items() if count > 1]
        assert not twice, f"{queue}: {len(twice)} messages came twice: {twice[:5]}"
        promised = {key for key in self.confirmed if queue in routes_of(key)} - self.acked[queue]
        lost = promised - set(keys)
        assert not lost, f"{queue}: {len(lost)} confirmed messages are lost: {sorted(lost)[:5]}"
        foreign = set(keys) - {key for key in sent if queue in routes_of(key)}
        assert not foreign, f"{queue}: never sent here: {sorted(foreign)[:5]}"
        altered = [
            key for key, message in zip(keys, drained, strict=True) if message.body != body_of(key)
        ]
        assert not altered, f"{queue}: altered bodies: {altered[:5]}"
        unflagged = [
            (key, key in self.acked[queue])
            for key, message in zip(keys, drained, strict=True)
            if key in self.delivered[queue] and not message.redelivered
        ]
        assert not unflagged, (
            f"{queue}: {len(unflagged)} delivered before, yet not flagged redelivered"
            f" (key, acked): {unflagged[:5]}"
        )
        for publisher in range(PUBLISHERS):
            positions = [key[2] for key in keys if key[1] == publisher]
            assert positions == sorted(positions), f"{queue}: publisher {publisher} out of order"


def run_and_kill(
    broker: BrokerProcess,
    ledger: Ledger,
    sequences: list[NumberedMessages],
    generator: random.Random,
) -> None:
    """Let the clients work until a random number of confirms came, and kill the broker."""
    confirms = threading.Semaphore(0)
    firsts = [len(sequence.taken) for sequence in sequences]
    window = generator.choice([1, 20, 200])
    publishers = [
        ConfirmingPublisher(broker.url, sequence, window, on_confirmed=confirms)
        for sequence in sequences
    ]
    consumers = [
        (
            queue,
            ForgetfulConsumer(broker.url, queue, random.Random(generator.random()), sequences),
        )
        for queue in QUEUES
    ]
    runs = [publisher.run for publisher in publishers] + [consumer.run for _, consumer in consumers]
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for _ in range(generator.randint(1, 400)):
        assert confirms.acquire(timeout=JOIN_TIMEOUT_S), "no confirm came"
    broker.kill()
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
        assert not thread.is_alive(), "a client did not see that the broker is gone"
    for sequence, first, publisher in zip(sequences, firsts, publishers, strict=True):
        assert not publisher.failure
        ledger.confirmed.update(sequence.taken[first + number] for number in publisher.confirmed)
    newest = [
        max((first + number for number in publisher.confirmed), default=-1)
        for first, publisher in zip(firsts, publishers, strict=True)
    ]
    for queue, consumer in consumers:
        ledger.delivered[queue] |= {
            key
            for key, taken in consumer.seen.items()
            if any(last >= before for last, before in zip(newest, taken, strict=True))
        }
        ledger.acked[queue] |= consumer.acked


def prove(broker: BrokerProcess, seed: int) -> None:
    generator = random.Random(seed)
    connection = connect(broker.url)
    channel = connection.channel()
    channel.exchange_declare(FANOUT, "fanout", durable=True)
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, FANOUT)
    connection.close()
    ledger = Ledger()
    sequences = [NumberedMessages(seed, publisher) for publisher in range(PUBLISHERS)]
    for _ in range(KILLS):
        run_and_kill(broker, ledger, sequences, generator)
        broker.start()
    connection = connect(broker.url)
    drained = {queue: drain(connection.channel(), queue) for queue in QUEUES}
    connection.close()
    sent = {key for sequence in sequences for key in sequence.taken}
    for queue in QUEUES:
        ledger.check(queue, drained[queue], sent)
    assert ledger.confirmed
    assert any(ledger.acked.values())


@pytest.mark.rounds(2)
def test_kill9_loses_nothing_confirmed(broker: BrokerProcess, seed: int) -> None:
    prove(broker, seed)


@pytest.mark.long
@pytest.mark.rounds(20)
def test_kill9_loses_nothing_confirmed_many_times(broker: BrokerProcess, seed: int) -> None:
    prove(broker, seed)
