"""Limits on the bytes in long queues: the bytes are counted in steps before a new limit applies.

The bodies of a long queue are on disk, and their sizes in many index files: to count a million of
them takes a fifth of a second, in which nothing else would be done. Until they are counted the
queue has its other settings, and messages arrive and leave as without the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from amqpstore_server.broker.monitoring.faults import Contained
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.broker.work.services import BrokerServices


class ByteLimits:
    """The queues of a virtual host whose bytes are being counted, and the settings that each is to
    have then.

    Args: on_applied, called when a queue has got them: routes depend on the settings of queues.
    """

    def __init__(self, services: BrokerServices, on_applied: Callable[[], None]) -> None:
        self._services = services
        self._on_applied = on_applied
        self._later: dict[Queue, Settings] = {}

    def applicable(self, queue: Queue, settings: Settings) -> Settings:
        """Return the settings that a queue can have now; if others are to follow, they are applied
        in a later round.
        """
        # Settings that still wait for their count are outdated now.
        self._later.pop(queue, None)
        # One that has such a limit counts its bytes already.
        if settings.max_length_bytes is None or queue.settings.max_length_bytes is not None:
            return settings
        stored = self._services.store.stored
        steps = chain.from_iterable(stored.sizes.measuring(one) for one in queue.priorities)
        with Contained(queue):
            for _ in steps:
                self._later[queue] = settings
                self._services.agenda.background.append(self._applying(queue, settings, steps))
                return replace(settings, max_length_bytes=None)
        return settings

    def _applying(self, queue: Queue, settings: Settings, steps: Iterator[None]) -> Iterator[None]:
        """Take the steps, and then apply the settings, unless the queue is to have others."""
        with Contained(queue):
            for _ in steps:
                self._services.work["max-length-bytes"] = None
                yield
                if queue.is_deleted:
                    self._later.pop(queue, None)
                if self._later.get(queue) is not settings:
                    return
            del self._later[queue]
            queue.apply(settings)
            self._on_applied()
            queue.enforce()
