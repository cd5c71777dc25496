"""A broker in one thread for unit tests: files in memory, time that is told to pass, and clients
that keep what they are sent."""

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqpstore import DiskFullError, Message, Run, Store
from amqpstore.clock import SimulatedClock
from amqpstore.keeper import DEFAULTS
from amqpstore.worker import InlineWorker
from amqpstore_server.broker.broker import DEFAULT_VHOST, Broker
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.outlet import Returned
from amqpstore_server.broker.channels.publishing import Flags
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles

DIRECTORY = "disk/store"
START_MS = 1_700_000_000_000

_ROUNDS = 100
"""More than any work takes that a test gives; beyond that it would never end."""


class SimulatedBroker:
    """A broker with the virtual host "/".

    Args: types, exchange types beside the broker's own; memory_bytes, see `Options`.
    """

    def __init__(
        self,
        types: Mapping[str, type[Exchange]] | None = None,
        *,
        memory_bytes: int = DEFAULTS.memory_bytes,
    ) -> None:
        self._types = {} if types is None else types
        self._options = DEFAULTS._replace(
            memory_bytes=memory_bytes, reserve_bytes=0, least_free_bytes=0
        )
        self.clock = SimulatedClock(START_MS)
        self._files = MemoryFiles()
        self._files.make_directory(DIRECTORY.rpartition("/")[0])
        self._open()

    def _open(self) -> None:
        self.store = Store.open(
            DIRECTORY,
            files=self._files,
            open_catalog=functools.partial(MemoryCatalog, self._files),
            options=self._options,
            worker=InlineWorker(),
            clock=self.clock,
        )
        names = itertools.count(1)
        self.context = BrokerContext(
            store=self.store,
            clock=self.clock,
            random=random.Random("unit").random,
            make_name=lambda: f"{next(names):022}",
            exchange_types={**EXCHANGE_TYPES, **self._types},
        )
        self.broker = Broker(self.context)

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhost(DEFAULT_VHOST)

    def restart(self) -> None:
        self.store.close()
        self._open()

    def crash(self) -> None:
        """The process dies: what was handed to no file is gone. Start it again."""
        self.store.abandon()
        self._open()

    def begin_sync(self) -> Callable[[], None]:
        """Begin to make durable what was done so far; what is returned says that it is.

        What is done in between belongs to the next batch.
        """
        log = self.store.log
        batch = log.seal(self.now_ms)
        if batch is None:
            return lambda: None
        log.write(batch)
        return functools.partial(log.settle, batch)

    def queue(self, name: str, *, durable: bool = True, **arguments: Any) -> Queue:
        """Declare a queue: keywords are its arguments, `max_length` for x-max-length."""
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.vhost.declare_queue(
            name,
            durable=durable,
            exclusive=False,
            auto_delete=False,
            arguments=given,
            connection=None,
        )

    def exchange(self, name: str, kind: str = "fanout", **arguments: Any) -> None:
        """Declare a durable exchange: each `_` in the names of its arguments is a `-`."""
        self.vhost.declare_exchange(
            name,
            kind,
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        )

    def bind(self, exchange: str, queue: str, key: str = "", **arguments: Any) -> None:
        self.vhost.bind(self.vhost.queue(queue), exchange, key, arguments)

    def settle(self) -> None:
        """Do all that is to be done, the disk's work included."""
        for _ in range(_ROUNDS):
            is_busy = self.context.run_timers() | self.broker.has_work
            self.broker.pump()
            is_busy |= not self.store.log.is_empty
            self.store.sync()
            if not is_busy:
                return
        raise AssertionError("the broker is never done")

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settle()

    def fill_disk(self) -> None:
        """From now on the disk is full for whoever publishes."""

        def refuse(*, publishing: bool, needed_bytes: int = 0) -> None:
            if publishing:
                raise DiskFullError(DIRECTORY, 0, 0)

        self.store.check_writable = refuse  # type: ignore[method-assign]

    def free_disk(self) -> None:
        """There is room again."""
        del self.store.check_writable

    def ready(self, name: str) -> list[str]:
        """The bodies of what is ready in a queue, in order; it stays there."""
        return [message.body.decode() for message in self.messages(name)]

    def messages(self, name: str) -> list[Message]:
        """What is ready in a queue, in order; it stays there."""
        found: list[Message] = []
        for level in self.vhost.queue(name).priorities:
            runs = []
            while (run := self.store.withdraw(level, 1000)) is not None:
                assert isinstance(run, Run)
                runs.append(run)
                found += run.messages or []
            for run in runs:
                self.store.put_back(level, run)
        return found

    def headers(self, name: str) -> list[dict[str, Any]]:
        """The headers of what is ready in a queue."""
        return [
            decode_properties(message.envelope.properties).headers or {}
            for message in self.messages(name)
        ]


class Client:
    """One channel, and what its client was sent. It is the channel's outlet."""

    def __init__(self, simulated: SimulatedBroker) -> None:
        self.is_writable = True
        self.channel = Channel(simulated.vhost, self, self)
        self.got: list[tuple[str, str]] = []
        """Consumer tag and body of each delivery."""
        self.redelivered: list[bool] = []
        self.told: list[str] = []
        self._tags: dict[str, int] = {}
        self._simulated = simulated

    def publish(self, exchange: str, key: str, *bodies: str, **properties: Any) -> None:
        """Publish messages that are alike, persistent where nothing else is said."""
        properties = {"delivery_mode": 2, **properties}
        self.channel.publish(*labelled(exchange, key, *bodies, **properties), Flags())
        self.channel.settle()

    def consume(self, queue: str, tag: str, **options: Any) -> Consumer:
        """Start a consumer: options are those of ConsumerOptions, and its prefetch."""
        self.channel.consumer_window = options.pop("prefetch", 0), options.pop("prefetch_size", 0)
        found = self._simulated.vhost.queue(queue)
        return self.channel.consume(found, tag, ConsumerOptions(**options))

    def get(self, queue: str) -> str | None:
        """Fetch a message: its body."""
        got = self.channel.get(self._simulated.vhost.queue(queue), no_ack=False)
        if got is None:
            return None
        self._received("", *got)
        return self.got.pop()[1]

    def ack(self, body: str) -> None:
        self.channel.ack(self._tags[body], self._tags[body])

    def reject(self, body: str) -> None:
        self.channel.reject(self._tags[body], requeue=False)

    def requeue(self, body: str) -> None:
        self.channel.reject(self._tags[body], requeue=True)

    def bodies(self, tag: str) -> list[str]:
        """What a consumer was delivered."""
        return [body for its_tag, body in self.got if its_tag == tag]

    def _received(self, consumer_tag: str, first_tag: int, run: Run) -> None:
        for tag, message in enumerate(run.messages or (), first_tag):
            body = message.body.decode()
            self._tags[body] = tag
            self.got.append((consumer_tag, body))
            self.redelivered.append(run.delivery_count > 0)

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        self._received(consumer.tag, first_tag, run)

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        self.told += [f"returned {message.body.decode()} {reason.name}" for message in messages]

    def confirm(self, tag: int, *, multiple: bool) -> None:
        self.told.append(f"confirmed {tag}{' and before' if multiple else ''}")

    def refuse(self, tag: int) -> None:
        self.told.append(f"refused {tag}")

    def failed(self) -> None:
        raise AssertionError("an answer to the client failed")

    def committed(self) -> None:
        self.told.append("committed")

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.told.append(f"cancelled {consumer_tag}")


def labelled(
    exchange: str, key: str, *bodies: str, **properties: Any
) -> tuple[ParsedEnvelope, list[Message]]:
    """Messages with one label."""
    of_all = BasicProperties(**properties)
    parsed = parse_envelope(exchange, key, encode_properties(of_all), of_all)
    return parsed, [Message(parsed, body.encode()) for body in bodies]
