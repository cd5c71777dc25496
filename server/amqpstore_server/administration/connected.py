"""A client's connection as operators see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class HasClientProperties(Protocol):
    """A connection whose client has described itself."""

    client_properties: dict[str, Any]


class Connected(Protocol):
    """A client's connection, whatever its protocol; `user` and `vhost` are empty until they are
    known.
    """

    name: str
    vhost: str

    @property
    def user(self) -> str: ...

    @property
    def is_served(self) -> bool: ...

    @property
    def is_blocked(self) -> bool: ...

    @property
    def channels(self) -> Sequence[object]: ...

    @property
    def negotiated(self) -> HasClientProperties: ...

    def shut_down(self, now: float, reason: str) -> None:
        """Close the connection, and tell the client why."""
