"""The audit log: who logged in, who was refused, and who changed which definitions, by which door.

Its events have a logger of their own, `amqpstore_server.audit`, so that they can be kept apart.
They have no secrets: neither passwords nor their hashes, nor what a message says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from amqpstore_server.broker.monitoring.log_limit import LogLimit

LOGGER = "amqpstore_server.audit"


class By(NamedTuple):
    """The one who does something, and the door through which; of a client also the fields that say
    who it is.
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
        self._limit = LogLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is logged."""
        # What was done is always logged: refusals must not be able to hide it.
        if record.levelno < logging.WARNING:
            return True
        # The port is left out: it is another one for each connection.
        host = str(getattr(record, "peer", "")).rpartition(":")[0]
        if not self._limit.passes(host, record.created):
            return False
        vars(record).update(self._limit.suppressed())
        return True


_log = logging.getLogger(LOGGER)
_log.addFilter(RefusalLimit())


def audit(event: str, **what: Any) -> None:
    """Log that somebody logged in, or changed definitions."""
    _log.info(event, extra=what)


def audit_refusal(event: str, **what: Any) -> None:
    """Log that somebody was refused. Args: what, with the address as `peer`."""
    _log.warning(event, extra=what)
