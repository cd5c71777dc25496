"""The declarations of a run: queues, an exchange, bindings, and the routes of publishes."""

import random
from dataclasses import dataclass

from amqpstore_tools.bench.messages import Route
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.client.connection import Connection

_MAX_KEYS = 1024


@dataclass(frozen=True)
class Routing:
    """Queues, and how they are reached. Names of one kind are equally long, and so are keys."""

    queues: list[str]
    exchange: str  # empty is the default exchange
    exchange_type: str
    bindings: list[tuple[str, str]]  # queue and key
    routes: list[Route]  # producers take them in turn
    copies: int  # queues that each message goes to

    @classmethod
    def of(cls, settings: BenchSettings) -> "Routing":
        """Return what the workload needs."""
        if settings.workload == "connect":
            return cls([], "", "", [], [], 0)
        queues = settings.queue_names()
        if settings.workload == "fanout":
            exchange = f"{settings.queue}-fanout"
            bindings = [(queue, "") for queue in queues]
            return cls(queues, exchange, "fanout", bindings, [(exchange, "")], len(queues))
        if settings.topic:
            return _overlapping(settings, queues)
        return cls(queues, "", "", [], [("", queue) for queue in queues], 1)

    def declare(self, control: Connection, *, queue_type: str) -> None:
        """Declare and bind everything, and purge the queues."""
        for queue in self.queues:
            control.declare_queue(queue, {"x-queue-type": queue_type} if queue_type else {})
            control.purge_queue(queue)
        if self.exchange:
            control.declare_exchange(self.exchange, self.exchange_type)
            for queue, key in self.bindings:
                control.bind_queue(queue, self.exchange, key)

    def delete(self, control: Connection) -> None:
        """Delete everything, with the messages."""
        for queue in self.queues:
            control.delete_queue(queue)
        if self.exchange:
            control.delete_exchange(self.exchange)


def _overlapping(settings: BenchSettings, queues: list[str]) -> Routing:
    """Return a topic exchange where each message matches `matches` queues, in many combinations.

    The queues are divided into that many groups; a routing key has a word for each group, and the
    word selects one queue of it: with three groups `*.w0004.*` is the binding of the fifth queue of
    the second group, and `w0002.w0004.w0001` a key that matches it and two others.
    """
    exchange = f"{settings.queue}-topic"
    groups = [queues[first :: settings.matches] for first in range(settings.matches)]
    bindings = [
        (queue, ".".join(_word(index) if group == at else "*" for at in range(len(groups))))
        for group, members in enumerate(groups)
        for index, queue in enumerate(members)
    ]
    combinations = 1
    for members in groups:
        combinations *= len(members)
    rng = random.Random(settings.queues)  # noqa: S311 - the same keys in each run
    chosen = list(range(combinations)) if combinations <= _MAX_KEYS else []
    rng.shuffle(chosen)
    routes = []
    for number in chosen or [rng.randrange(combinations) for _ in range(_MAX_KEYS)]:
        words = []
        for members in groups:
            number, index = divmod(number, len(members))
            words.append(_word(index))
        routes.append((exchange, ".".join(words)))
    return Routing(queues, exchange, "topic", bindings, routes, settings.matches)


def _word(index: int) -> str:
    return f"w{index:04d}"
