"""One broker for all tests that need no process: in one thread, on a disk in memory, on a clock
that is told to move.

The tests of a room add what they look at: clients that keep what they are sent (`unit/broker`),
connections without sockets (`fuzz`), a history of promises (`crash`), a model beside it
(`property`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amqpstore import Message, Options, Run
from amqpstore.system.clock import SimulatedClock
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.messages.envelope import visible
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.broker.work.limits import BROKER_LIMITS, BrokerLimits
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.protocol.content import decode_properties
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import CatalogCommit, Operation
from amqpstore_tools.simulation.stores import new_disk, open_store

DIRECTORY = "/disk/store"
START_MS = 1_700_000_000_000
OPTIONS = Options(reserve_bytes=0, least_free_bytes=0)

ROUNDS = 100
"""More than any work takes that a test gives; beyond that it would never end."""


def ack_until(channel: Channel, tag: int) -> None:
    """Ack all tags up to `tag`; 0 means all. Raises: PreconditionFailedError."""
    for _ in channel.settling_until(tag, requeue=None) or ():
        pass


def reject_until(channel: Channel, tag: int, *, requeue: bool) -> None:
    """Requeue or drop all messages up to `tag`. Raises: PreconditionFailedError."""
    for _ in channel.settling_until(tag, requeue=requeue) or ():
        pass


class SimulatedBroker:
    """A broker with the virtual host "/", opened again and again on one disk.

    Args: types, exchange types beside the broker's own; options, of its store; limits, the
    broker's; disk, with a store
    or without; now_ms, what its clock says.
    """

    services_type: type[BrokerServices] = BrokerServices
    broker_type: type[Broker] = Broker

    def __init__(
        self,
        types: Mapping[str, type[Exchange]] | None = None,
        *,
        options: Options = OPTIONS,
        limits: BrokerLimits = BROKER_LIMITS,
        disk: MemoryFiles | None = None,
        now_ms: int = START_MS,
    ) -> None:
        self._types = {} if types is None else types
        self._options = options
        self._limits = limits
        self.clock = SimulatedClock(now_ms)
        self.disk = new_disk(DIRECTORY) if disk is None else disk
        self._names = itertools.count(1)
        self.open()

    def open(self) -> None:
        """Start a broker on what is on the disk."""
        self.store = open_store(DIRECTORY, self.disk, self._options, clock=self.clock)
        try:
            self.store_opened()
            self.services = self.make_services()
            self.broker = self.broker_type(self.services)
        except BaseException:
            self.store.abandon()
            raise

    def store_opened(self) -> None:
        """Called before the broker is made of what the store has."""

    def make_services(self) -> BrokerServices:
        """Make what the parts of the broker share."""
        return self.services_type(
            store=self.store,
            clock=self.clock,
            random=random.Random("simulated").random,
            make_name=lambda: f"{next(self._names):022}",
            exchange_types={**EXCHANGE_TYPES, **self._types},
            limits=self._limits,
        )

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhost(DEFAULT_VHOST)

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
        self.vhost.exchange_definitions.declare(
            name,
            kind,
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        )

    def bind(self, exchange: str, queue: str, key: str = "", **arguments: Any) -> None:
        self.vhost.bindings.bind(self.vhost.queue(queue), exchange, key, arguments)

    # What goes on.

    def work(self) -> None:
        """Do what is due, and hand out what can be handed out; nothing becomes durable."""
        for _ in range(ROUNDS):
            is_busy = self.services.run_timers() | self.broker.pumping.has_work
            self.broker.pumping.pump()
            if not is_busy:
                return
        raise AssertionError("the broker is never done")

    def settle(self) -> None:
        """Do all that is to be done, the disk's work included."""
        for _ in range(ROUNDS):
            self.work()
            is_busy = not self.store.log.is_empty
            if is_busy:
                self.store.sync()
            if not is_busy | self.sent():
                return
        raise AssertionError("the broker is never done")

    def sent(self) -> bool:
        """Take what the broker has for its clients. Returns whether it was anything."""
        return False

    def pass_time(self, ms: int) -> None:
        """Let time pass, in one leap, and have done what is due."""
        self.clock.advance(ms)
        self.settle()

    # The disk.

    def write_batch(self) -> Callable[[], None]:
        """Write what was done so far; call what is returned to say that it is durable.

        What is done in between belongs to the next batch.
        """
        log = self.store.log
        batch = log.seal(self.now_ms)
        if batch is None:
            return lambda: None
        log.write(batch)
        return functools.partial(log.complete, batch)

    @contextlib.contextmanager
    def commits(self) -> Iterator[list[CatalogCommit]]:
        """The commits of the catalog in a block of code."""
        found: list[CatalogCommit] = []

        def note(operation: Operation) -> None:
            if isinstance(operation, CatalogCommit):
                found.append(operation)

        self.disk.record = note
        try:
            yield found
        finally:
            self.disk.record = None

    def fill_disk(self) -> None:
        """Make the disk full for publishers: more free space is required than it has."""
        self.store.space.require(1 << 62)

    def free_disk(self) -> None:
        """Make room on the disk again."""
        self.store.space.require(OPTIONS.least_free_bytes)

    # How it ends.

    def restart(self) -> None:
        """Stop in order, and start again."""
        self.store.close()
        self.open()

    def crash(self) -> None:
        """The process dies: what was handed to no file is gone. Start it again."""
        self.store.abandon()
        self.open()

    def cut_power(self, disk: MemoryFiles) -> None:
        """The power fails; `disk` is what that leaves. Start it again with `open`."""
        self.store.abandon()
        self.disk = disk

    # What is in it.

    def ready(self, name: str) -> list[str]:
        """The bodies of what is ready in a queue, in order; it stays there."""
        return [message.body.decode() for message in self.messages(name)]

    def messages(self, name: str) -> list[Message]:
        """Return what is ready in a queue, in order; it stays there."""
        found: list[Message] = []
        for level in self.vhost.queue(name).priorities:
            runs = []
            while (run := self.store.withdrawals.withdraw(level, 1000)) is not None:
                assert isinstance(run, Run)
                runs.append(run)
                found += run.messages or []
            for run in runs:
                self.store.withdrawals.put_back(level, run)
        return found

    def headers(self, name: str) -> list[dict[str, Any]]:
        """The headers of what is ready in a queue, as consumers get them."""
        return [
            decode_properties(visible(message.envelope.properties)).headers or {}
            for message in self.messages(name)
        ]
