"""The workloads of a comparison, and the figures shown for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A number in the results of a benchmark."""

    path: tuple[str, ...]
    title: str
    unit: str
    digits: int = 0

    def read(self, results: Mapping[str, Any]) -> float | None:
        """Return the number; None if it is missing, such as the CPU time of a broker on another
        machine.
        """
        found: Any = results
        for name in self.path:
            if not isinstance(found, Mapping) or name not in found:
                return None
            found = found[name]
        return None if found is None else float(found)


@dataclass(frozen=True)
class NamedWorkload:
    """One command line of `amqpstore bench`."""

    title: str
    arguments: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The workload of the command line."""
        return self.arguments[0] if self.arguments else ""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures to show: first those that the workload is about, then the costs."""
        # Microseconds for each are as many seconds for a million.
        return (*_ABOUT[self.kind], Figure(("server", "cpu_us"), "CPU", "s/million", 2), _MEMORY)


_MEMORY = Figure(("server", "max_rss_mib"), "memory, at most", "MiB")
_DELIVERED = Figure(("delivered_per_s",), "delivered", "/s")
_CONFIRMED = Figure(("confirmed_per_s",), "confirmed", "/s")
_WAITS = (
    Figure(("confirm_ms", "p50"), "confirm p50", "ms", 2),
    Figure(("confirm_ms", "p99"), "confirm p99", "ms", 2),
    Figure(("confirm_ms", "max"), "confirm worst", "ms", 2),
)
_ABOUT: dict[str, tuple[Figure, ...]] = {
    "through": (_DELIVERED,),
    "fanout": (_DELIVERED,),
    "sync": (_CONFIRMED, *_WAITS[:2]),
    "batches": (_DELIVERED, *_WAITS[:2]),
    "fill": (Figure(("published_per_s",), "published", "/s"),),
    "drain": (_DELIVERED,),
    "backlog": (
        _DELIVERED,
        Figure(("fill", "published_per_s"), "published", "/s"),
        Figure(("fill", "server", "rss_mib"), "memory with the backlog", "MiB"),
    ),
    "connect": (Figure(("connected_per_s",), "connections", "/s"),),
    "latency": _WAITS,
}


def named(title: str, command: str) -> NamedWorkload:
    """Return a workload by its command line."""
    return NamedWorkload(title, tuple(command.split()))


WORKLOADS: dict[str, NamedWorkload] = {
    "one-queue": named("persistent 1 KiB, varied, 1 queue", "through --vary"),
    "ten-queues": named(
        "persistent 1 KiB, varied, 10 queues, 4 producers, 4 consumers",
        "through --vary --queues 10 --producers 4 --consumers 4",
    ),
    "hundred-queues": named(
        "persistent 1 KiB, varied, 100 queues, 4 producers, 4 consumers",
        "through --vary --queues 100 --producers 4 --consumers 4",
    ),
    "transient": named(
        "transient 100 B, varied, auto-ack, without confirms",
        "through --vary --transient --size 100 --auto-ack --confirm 0",
    ),
    "topic": named(
        "topic exchange, 3 of 20 queues for each message, varied",
        "through --vary --topic --queues 20 --matches 3 --producers 2 --consumers 4",
    ),
    "alike": named("persistent 1 KiB, all alike, 1 queue", "through"),
    "large": named("persistent 64 KiB, varied", "through --vary --size 65536"),
    "sync-100": named(
        "100 connections that wait for each confirm", "sync --vary --connections 100"
    ),
    "sync-1": named("1 connection that waits for each confirm", "sync --vary --connections 1"),
    "sparse": named("2,000 messages a second", "latency --vary --rate 2000"),
    "backlog": named("a backlog of 1 KiB messages, filled and drained", "backlog --vary"),
}
