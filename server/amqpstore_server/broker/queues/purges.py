"""Purges of one queue, which can be undone for a time.

What is purged stays on disk until then (see `amqpstore.purges`). It ends earlier if the disk is
nearly full, and with the queue. Messages that are not in the log, and what is unacked, are no part
of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import amqpstore
from amqpstore import DiskFullError, Purged
from amqpstore.format.departures import Departure
from amqpstore_server.broker.monitoring.faults import Contained
from amqpstore_server.broker.weak_references import weakly

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.work.services import BrokerServices

_log = logging.getLogger(__name__)

_RETRY_MS = 60_000
"""The time after which the end of a purge is tried again, if it was not possible."""

_UNTIL = "until_ms"


class Purges:
    """The purges of one queue that can be undone, the oldest first."""

    def __init__(self, services: BrokerServices, queue: Queue) -> None:
        self._services = services
        self._queue = weakly(queue)
        self._store = services.store
        self._purged: list[Purged] = []
        self._ends = services.dates.timer(self._end_due)

    def __len__(self) -> int:
        """Return how many can be undone."""
        return len(self._purged)

    def purge(self, store_queues: Sequence[amqpstore.Queue]) -> int:
        """Purge the queues of the store that it consists of. Returns how many messages there
        were.
        """
        # The messages are counted before they are gone: purge-ok says how many there were.
        count = sum(one.ready_count for one in store_queues)
        if undo_ms := self._undo_ms():
            until_ms = self._services.clock.wall_ms() + undo_ms
            try:
                purged = self._store.purge_aside(store_queues, {_UNTIL: until_ms})
            except DiskFullError:
                purged = None  # to purge is what helps
            if purged is not None:
                self.restore(purged)
        for one in store_queues:
            self._store.purge(one)  # what the log does not have
        self._queue().departures.note(Departure.PURGED, count)
        return count

    def _undo_ms(self) -> int:
        """Return for how long a purge can be undone; 0 if it cannot."""
        seconds = self._queue().settings.purge_undo_seconds
        if seconds is None:
            seconds = self._services.purge_undo_s
        # What can be undone keeps its bytes. An operator who purges because the disk is full needs
        # them now.
        return 0 if self._store.space.is_low else seconds * 1000

    def restore(self, purged: Purged) -> None:
        """Add a purge of the queue."""
        self._purged.append(purged)
        self._purged.sort(key=_until_ms)
        self._ends.set_sooner(_until_ms(purged))

    @property
    def last(self) -> Purged | None:
        """The purge that would be undone; None if there is none."""
        return self._purged[-1] if self._purged else None

    def rows(self) -> list[dict[str, int]]:
        """Return what can be undone, the last purge first: how many messages each had, and until
        when, in ms since 1970.
        """
        return [
            {"messages": one.message_count, "until": _until_ms(one)}
            for one in reversed(self._purged)
        ]

    def undo(self, purged: Purged) -> int:
        """Undo a purge, durably on return: its messages are ready, in their old places, and the
        limits of the queue apply to them. Returns how many there are.

        Raises: DurabilityError, DiskFullError.
        """
        # The undo is durable first: one that is not on disk would be gone with the next crash.
        count = purged.undo()
        self._purged.remove(purged)
        self._queue().departures.note_back(count)
        with Contained(self._queue()):
            if self._queue().settings.max_length_bytes is not None:
                self._queue().backlog.count_bytes()
        self._queue().enforce()
        return count

    def end_all(self) -> None:
        """End all of them: their messages are gone for good."""
        self._end([*self._purged])

    def forget(self) -> None:
        """Forget them: the queue is deleted, or set aside."""
        self._purged.clear()
        self._ends.end()

    def _end_due(self) -> None:
        now_ms = self._services.clock.wall_ms()
        self._end([one for one in self._purged if _until_ms(one) <= now_ms])
        # Those that could not end are due still.
        next_ms = min((_until_ms(one) for one in self._purged), default=0)
        if next_ms:
            self._ends.set(next_ms if next_ms > now_ms else now_ms + _RETRY_MS)

    def _end(self, ending: Sequence[Purged]) -> None:
        # One that cannot end now (its index cannot be read) stays in the list, and is tried again.
        for purged in ending:
            with Contained(self._queue()):
                if purged.end():
                    self._purged.remove(purged)


def _until_ms(purged: Purged) -> int:
    label: Any = purged.label
    until_ms = label.get(_UNTIL) if isinstance(label, dict) else None
    return until_ms if isinstance(until_ms, int) and until_ms > 0 else 1
