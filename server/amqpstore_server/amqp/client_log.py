"""The log of one client: each line says whom it is about."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from itertools import count
from typing import Any

_log = logging.getLogger(__name__)

_numbers = count(1)


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Adds to each line the number of the connection in this process, the client's address, its
    user once it has logged in, and its virtual host once that is open.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.fields: dict[str, Any] = {"connection": next(_numbers), "peer": peer}
        super().__init__(_log)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the arguments of the logger."""
        kwargs["extra"] = self.fields | kwargs.get("extra", {})
        return msg, kwargs
