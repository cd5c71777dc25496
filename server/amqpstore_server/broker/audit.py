"""The audit log: who logged in, who was refused, and who changed which definitions, by which door.

Its events have a logger of their own, `amqpstore_server.audit`, so that they can be kept apart.
They have no secrets: neither passwords nor their hashes, nor what a message says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

LOGGER = "amqpstore_server.audit"

_WINDOW_S = 10.0
_MAX_OF_HOST = 20
_MAX_OF_ALL = 200
"""Refusals in a window that are logged, of one host and of all hosts. More are only counted: nobody
may fill the disk, or hide among lines, with wrong passwords.
"""


class By(NamedTuple):
    """Who does something, and the door through which; of a client also the fields that say who it
    is.
    """

    who: str
    door: str
    client: Mapping[str, Any] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a line in the log."""
        return {"by": self.who, "door": self.door, **self.client}


class RefusalLimit(logging.Filter):
    """Lets a limited number of refusals pass, which are warnings; the next one that passes says in
    `suppressed` how many did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._window_ends = 0.0
        self._by_host: dict[str, int] = {}
        self._passed = 0
        self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is logged."""
        if record.levelno < logging.WARNING:
            return True
        if not 0 <= self._window_ends - record.created <= _WINDOW_S:
            self._window_ends = record.created + _WINDOW_S
            self._by_host.clear()
            self._passed = 0
        host = str(getattr(record, "peer", "")).rpartition(":")[0]
        of_host = self._by_host.get(host, 0)
        if of_host >= _MAX_OF_HOST or self._passed >= _MAX_OF_ALL:
            self._suppressed += 1
            return False
        self._by_host[host] = of_host + 1
        self._passed += 1
        if self._suppressed:
            record.suppressed = self._suppressed
            self._suppressed = 0
        return True


_log = logging.getLogger(LOGGER)
_log.addFilter(RefusalLimit())


def audit(event: str, **what: Any) -> None:
    """Log that somebody logged in, or changed definitions."""
    _log.info(event, extra=what)


def audit_refusal(event: str, **what: Any) -> None:
    """Log that somebody was refused. Args: what, with the address as `peer`."""
    _log.warning(event, extra=what)
