"""Alarms: publishers wait while the broker has too much in memory, or its disk is nearly full.

An alarm is raised at its limit and cleared some way below it, so that it does not come and go with
every message. What it blocks are publishes, from the first one that a connection sends during the
alarm: they wait until it is cleared, and the client is told so (connection.blocked). Consumers,
acks, declares and logins go on, on the same connection too, since they are what clears it.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable
from typing import Protocol

from amqpstore import Store
from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.loop.trimming import trim
from amqpstore_server.terms.serving_term import ServingTerm, SingleNode

_log = logging.getLogger(__name__)

_CLEARED_AT = 0.95
"""The part of the watermark below which memory is no longer short."""

_GIVE_BACK_EVERY_S = 5.0
"""While memory is short, how often what is free is given back to the system."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = "/sys/fs/cgroup"

MEMORY = "low on memory"
DISK = "low on disk"
REPLICAS = "short of replicas"


def used_bytes() -> int:
    """Return the memory that this process has for itself, in RAM.

    Without pages of files, such as those of the catalog: the system takes them back when it needs
    memory.
    """
    with open("/proc/self/statm", encoding="ascii") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def available_bytes() -> int:
    """Return how much memory this process may have: the machine's, or the limit of a container."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        total = int(meminfo.readline().split()[1]) << 10
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Return the limits of this process's control group and those above it."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    limits = []
    for _, controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        # A line of version 1 names its controllers; that of version 2 has none (cgroups(7)).
        root, name = (
            (f"{_CGROUPS}/memory", "memory.limit_in_bytes")
            if controllers
            else (_CGROUPS, "memory.max")
        )
        parts = path.strip("/").split("/") if path != "/" else []
        for count in range(len(parts) + 1):
            try:
                with open("/".join([root, *parts[:count], name]), encoding="ascii") as limit:
                    limits.append(int(limit.read()))
            except (OSError, ValueError):
                continue  # there is none: "max", or not at this level
    return limits


def watermark_bytes(watermark: float, available: int) -> int:
    """Return the bytes that a watermark stands for: up to 1 it is a share of what is available. 0
    if there is none.
    """
    return int(watermark * available) if watermark <= 1 else int(watermark)


class UnfinishedConnection(Protocol):
    """A connection with publishes that are not finished."""

    @property
    def unfinished_bytes(self) -> int:
        """The memory that unfinished publishes take."""

    def exhaust(self, reason: str, now: float) -> None:
        """Close it, as it takes too much."""


class Blocked(Protocol):
    """A connection of which publishes are held."""

    def alarm_is_over(self) -> None:
        """Let them go on."""


class Alarms:
    """The alarms of a broker. Call `look` about twice a second.

    Args: watermark_bytes, of memory, 0 for none; free_caches, called while memory is short; used,
    returns how much is used; tell, called with what is low from now on ("memory" or "disk"), or is
    not any longer; term, tells whether too few replicas have what was published.
    """

    def __init__(
        self,
        store: Store,
        watermark_bytes: int,
        free_caches: Callable[[], None],
        used: Callable[[], int] = used_bytes,
        tell: Callable[[str, bool], None] = lambda _resource, _is_low: None,
        term: ServingTerm | None = None,
    ) -> None:
        self._term = term or SingleNode()
        self._tell = tell
        self.watermark_bytes = watermark_bytes
        self.is_memory_low = False
        self._store = store
        self._used = used
        self._free_caches = free_caches
        self._was_disk_low = False
        self._give_back_at = 0.0
        self.is_blocking = False
        """Whether publishers have to wait: from when anything became low, until a `look` finds that
        nothing is.
        """
        store.space.on_low = self._term.on_blocked = self._decide
        self.blocked: dict[Blocked, None] = {}
        """Clients that are to be told, once, that publishers may go on."""

    @property
    def is_raised(self) -> bool:
        """Whether anything is low now."""
        return self.is_memory_low or self._store.space.is_low or self._term.is_blocked

    @property
    def reasons(self) -> list[str]:
        """The resources that are low, each as clients are told."""
        reasons = [
            (MEMORY, self.is_memory_low),
            (DISK, self._store.space.is_low),
            (REPLICAS, self._term.is_blocked),
        ]
        return [reason for reason, is_low in reasons if is_low]

    @property
    def reason(self) -> str:
        """The resources that are low, as clients are told; empty if none is."""
        return " and ".join(self.reasons)

    def unfinished_bytes(self, configured_bytes: int) -> int:
        """Return what unfinished publishes of all clients may take: their senders may be blocked
        and cannot finish them, so an alarm could stay for ever if they were what it is about.
        """
        if not self.watermark_bytes:
            return configured_bytes
        part = 4 if self.is_memory_low else 2
        return min(configured_bytes, self.watermark_bytes // part)

    def free_unfinished(
        self, connections: Iterable[UnfinishedConnection], configured_bytes: int, now: float
    ) -> int:
        """Close the clients with the most memory until unfinished publishes fit into the limit.

        Returns how much is left.
        """
        held = {one: one.unfinished_bytes for one in connections}
        total = sum(held.values())
        limit = self.unfinished_bytes(configured_bytes)
        while total > limit:
            most = max(held, key=held.__getitem__)
            total -= held.pop(most)
            most.exhaust(f"the limit of all connections is {limit}", now)
        return total

    def look(self, now: float) -> None:
        """Raise or clear the alarms, and let those go on who waited."""
        self._look_at_memory(now)
        self._look_at_disk()
        self._decide()
        if self.blocked and not self.is_blocking:
            _log.info("publishers are no longer blocked")
            blocked, self.blocked = self.blocked, {}
            for one in blocked:
                called(one.alarm_is_over)

    def _decide(self) -> None:
        self.is_blocking = self.is_raised and not self._store.failure

    def _look_at_disk(self) -> None:
        """Log a change; what there is the store finds out."""
        if self._store.space.is_low != self._was_disk_low:
            self._was_disk_low = self._store.space.is_low
            self._tell("disk", self._was_disk_low)
            if problem := self._store.space.problem:
                _log.error(
                    "publishers are blocked: the data directory cannot be reached",
                    extra={"data": self._store.directory, "reason": problem},
                )
            elif self._was_disk_low:
                _log.warning("publishers are blocked: the disk is nearly full")
            else:
                _log.info("the disk has free space again")

    def _look_at_memory(self, now: float) -> None:
        if not self.watermark_bytes and not self.is_memory_low:
            return
        used = self._used()
        extra = {"used_bytes": used, "watermark_bytes": self.watermark_bytes}
        if self.is_memory_low:
            if not self.watermark_bytes or used < self.watermark_bytes * _CLEARED_AT:
                self.is_memory_low = False
                self._tell("memory", False)
                self._store.memory.shrink(is_short=False)
                _log.info("memory is no longer short", extra=extra)
            elif now >= self._give_back_at:
                self._give_back(now)
        elif used >= self.watermark_bytes:
            self.is_memory_low = True
            self._tell("memory", True)
            _log.warning("publishers are blocked: memory is short", extra=extra)
            self._store.memory.shrink(is_short=True)
            self._give_back(now)

    def _give_back(self, now: float) -> None:
        """Free what can be computed or read again, and give free memory back to the system."""
        self._give_back_at = now + _GIVE_BACK_EVERY_S
        self._free_caches()
        gc.collect(1)
        trim()
