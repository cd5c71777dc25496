"""The log of one client: each line says whom it is about."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from functools import partial
from itertools import count
from typing import Any

from amqpstore_server.broker.monitoring.log_limit import LogLimit

_log = logging.getLogger(__name__)

_numbers = count(1)


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Adds to each line the number of the connection in this process, the client's address, its
    user once it has logged in, and its virtual host once that is open.

    Of clients that connect in a flood nothing but errors is logged unless they log in.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.fields: dict[str, Any] = {"connection": next(_numbers), "peer": peer}
        self._least = logging.NOTSET
        self._give_back: Callable[[], None] | None = None
        super().__init__(_log)

    def accepted(self, limit: LogLimit, peer: str, now: float) -> None:
        """Log that the client was accepted, if the limit lets this pass."""
        if limit.passes(peer, now):
            self._give_back = partial(limit.give_back, peer)
            self.info("connection accepted", extra=limit.suppressed())
        else:
            self._least = logging.ERROR

    def logged_in(self, user: str) -> None:
        """Name the user in what is logged from now on."""
        self.fields["user"] = user
        self._least = logging.NOTSET
        if self._give_back:
            # A client that has logged in is no part of a flood, and takes no room from others.
            self._give_back()
            self._give_back = None

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        """Tell whether anything of a level is logged."""
        return level >= self._least and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the arguments of the logger."""
        kwargs["extra"] = self.fields | kwargs.get("extra", {})
        return msg, kwargs
