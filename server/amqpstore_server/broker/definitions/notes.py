"""Notes in the log on what was declared, and has no effect."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from amqpstore.system.clock import Clock
from amqpstore_server.broker.definitions import accepted
from amqpstore_server.broker.monitoring.log_limit import LogLimit

_log = logging.getLogger(__name__)


class DefinitionNotes:
    """Logs the notes of virtual host `name`, only so often."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._limit = LogLimit()

    def log(self, notes: Sequence[str], **of: str) -> None:
        """Log what has no effect. Args: of, what the notes are on."""
        for note in accepted.shortened(notes):
            if self._limit.passes(self._name, self._clock.wall_ms() / 1000):
                extra = {"vhost": self._name, **of, "note": note, **self._limit.suppressed()}
                _log.info("declared with something that has no effect", extra=extra)
