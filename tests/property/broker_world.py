"""The broker core for the state machine: on a simulated disk, with what it does written down."""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from amqpstore import Message, Options, Run, Store
from amqpstore.worker import InlineWorker
from server.broker.broker import DEFAULT_VHOST, Broker
from server.broker.channel import Channel
from server.broker.consumer import Consumer
from server.broker.core import Core
from server.broker.exchanges import EXCHANGE_TYPES
from server.broker.outlet import Returned
from server.broker.queue import Queue, Taken
from tests.property.broker_letters import Letter, label_of, letter_of
from tests.property.broker_model import Delivered, Left
from tools.drill.crash_images import crash_images
from tools.drill.memory_catalog import MemoryCatalog
from tools.drill.memory_files import MemoryFiles
from tools.drill.operations import Operation

DIRECTORY = "disk/store"
START_MS = 1_700_000_000_000

OPTIONS = Options(
    segment_bytes=2_000,
    memory_bytes=300,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
    least_free_bytes=0,
)
"""Checkpoints come by their rule alone; few bodies stay in memory."""

_TURNS = 100
"""More rounds than any work takes that a rule gives."""


class InOrder(set[Queue]):
    """The queues that have something to do, in the order in which they said so.

    Any order is right; this one is the same in each run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[Queue, None] = {}

    def add(self, queue: Queue) -> None:
        self._order[queue] = None

    def update(self, *queues: Iterable[Queue]) -> None:
        self._order.update(dict.fromkeys(itertools.chain(*queues)))

    def clear(self) -> None:
        self._order.clear()

    def __iter__(self) -> Iterator[Queue]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._order)

    def __bool__(self) -> bool:
        return bool(self._order)


class Outlet:
    """The way out of one channel. `answers` is what its client was told since somebody looked."""

    is_writable = True

    def __init__(self, world: World, number: int) -> None:
        self.answers: list[tuple[Any, ...]] = []
        self._world = world
        self._number = number
        self._unconfirmed = 1
        self._answered: set[int] = set()

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        letters = [letter_of(message) for message in run.messages or ()]
        assert len(letters) == run.count
        redelivered = bool(run.delivery_count)
        self._world.happened.append(
            Delivered(self._number, consumer.tag, first_tag, letters, redelivered)
        )

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        self.answers += [("returned", reason.name, letter_of(message)) for message in messages]

    def confirm(self, tag: int, *, multiple: bool) -> None:
        tags = range(self._unconfirmed if multiple else tag, tag + 1)
        for each in tags:
            if each in self._answered:
                assert multiple, f"{each} was answered twice"
                continue
            self._answer("confirmed", each)

    def refuse(self, tag: int) -> None:
        assert tag not in self._answered, f"{tag} was answered twice"
        self._answer("refused", tag)

    def committed(self) -> None:
        self.answers.append(("committed",))

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.answers.append(("cancelled", consumer_tag))

    def _answer(self, how: str, tag: int) -> None:
        self._answered.add(tag)
        self.answers.append((how, tag))
        while self._unconfirmed in self._answered:
            self._unconfirmed += 1


class World:
    """A broker, its channels, its disk and its clock. The `Choices` of the model."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.happened: deque[Delivered | Left] = deque()
        self.channels: dict[int, Channel] = {}
        self.outlets: dict[int, Outlet] = {}
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY.rpartition("/")[0])
        self._names = itertools.count()
        self._images: list[MemoryFiles] = []
        self.open()

    def open(self) -> None:
        """Start a broker on what is on the disk."""
        self.channels.clear()
        self.outlets.clear()
        self.store = Store.open(
            DIRECTORY,
            files=self.files,
            open_catalog=functools.partial(MemoryCatalog, self.files),
            options=OPTIONS,
            worker=InlineWorker(),
        )
        self.core = Core(
            store=self.store,
            clock=lambda: self.now_ms,
            random=random.Random("simulated").random,
            make_name=lambda: f"{next(self._names):022}",
            exchange_types=EXCHANGE_TYPES,
            touched=InOrder(),
        )
        with self._watched():
            self.broker = Broker(self.core)
        self.vhost = self.broker.vhost(DEFAULT_VHOST)

    @functools.cached_property
    def _bury(self) -> Any:
        from server.broker.vhost import VirtualHost

        return VirtualHost._bury

    def _watched(self) -> Any:
        raise NotImplementedError
