"""Quotas: how many connections and channels users may have, and virtual hosts connections, queues,
exchanges and bindings.

An operator sets them, in RabbitMQ's words: `max-connections` and `max-channels` of a user,
`max-connections` and `max-queues` of a virtual host; `max-exchanges` and `max-bindings`, which
RabbitMQ does not have. A negative number, or none, is no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from amqpstore_server.broker.errors import NotAllowedError, PreconditionFailedError

MAX_CONNECTIONS = "max-connections"
MAX_CHANNELS = "max-channels"
MAX_QUEUES = "max-queues"
MAX_EXCHANGES = "max-exchanges"
MAX_BINDINGS = "max-bindings"

USER_LIMITS = (MAX_CONNECTIONS, MAX_CHANNELS)
VHOST_LIMITS = (MAX_CONNECTIONS, MAX_QUEUES, MAX_EXCHANGES, MAX_BINDINGS)

Limits = Mapping[str, Any]


def is_reached(limits: Limits, name: str, count: int) -> bool:
    """Tell whether nothing may be added to `count`. What is not an integer is no limit."""
    limit = limits.get(name, -1)
    return isinstance(limit, int) and 0 <= limit <= count


def check_may_declare(limits: Limits, limit: str, count: int, name: str, vhost: str) -> None:
    """Make sure that there may be one more queue or exchange in a virtual host.

    Args: limit, MAX_QUEUES or MAX_EXCHANGES; count, of those that are there; name, of the new one.
    Raises: PreconditionFailedError.
    """
    if is_reached(limits, limit, count):
        kind = "queue" if limit == MAX_QUEUES else "exchange"
        raise PreconditionFailedError(
            f"cannot declare {kind} '{name}': {kind} limit in vhost '{vhost}' ({limits[limit]}) "
            "is reached"
        )


class Quotas:
    """The connections and channels that are open, by user and virtual host. `of_user` and
    `of_vhost` return the limits that apply now: they may change at any time.
    """

    def __init__(self, of_vhost: Callable[[str], Limits]) -> None:
        self.of_user: Callable[[str], Limits] = lambda _user: {}
        self.of_vhost = of_vhost
        self.user_connections: Counter[str] = Counter()
        self.vhost_connections: Counter[str] = Counter()
        self.user_channels: Counter[str] = Counter()

    def connect(self, user: str, vhost: str) -> Usage:
        """Count a connection. Raises: NotAllowedError."""
        of_vhost = self.of_vhost(vhost)
        if is_reached(of_vhost, MAX_CONNECTIONS, self.vhost_connections[vhost]):
            raise NotAllowedError(
                f"access to vhost '{vhost}' refused for user '{user}': connection limit "
                f"({of_vhost[MAX_CONNECTIONS]}) is reached"
            )
        of_user = self.of_user(user)
        if is_reached(of_user, MAX_CONNECTIONS, self.user_connections[user]):
            raise NotAllowedError(
                f"connection refused for user '{user}': user connection limit "
                f"({of_user[MAX_CONNECTIONS]}) is reached"
            )
        self.vhost_connections[vhost] += 1
        self.user_connections[user] += 1
        return Usage(self, user, vhost)


class Usage:
    """The share of the quotas that one connection has, until `close`."""

    __slots__ = ("_channels", "_quotas", "_user", "_vhost")

    def __init__(self, quotas: Quotas, user: str, vhost: str) -> None:
        self._quotas = quotas
        self._user = user
        self._vhost = vhost
        self._channels = 0

    def open_channel(self) -> None:
        """Count a channel. Raises: NotAllowedError."""
        quotas, user = self._quotas, self._user
        limits = quotas.of_user(user)
        if is_reached(limits, MAX_CHANNELS, quotas.user_channels[user]):
            raise NotAllowedError(
                f"number of channels opened for user '{user}' has reached the maximum allowed "
                f"user limit of ({limits[MAX_CHANNELS]})"
            )
        quotas.user_channels[user] += 1
        self._channels += 1

    def close_channel(self) -> None:
        """Stop counting a channel."""
        self._give_back(self._quotas.user_channels, self._user, 1)
        self._channels -= 1

    def close(self) -> None:
        """Stop counting the connection with its channels."""
        quotas = self._quotas
        self._give_back(quotas.user_channels, self._user, self._channels)
        self._give_back(quotas.user_connections, self._user, 1)
        self._give_back(quotas.vhost_connections, self._vhost, 1)
        self._channels = 0

    @staticmethod
    def _give_back(counter: Counter[str], name: str, count: int) -> None:
        """Subtract a count; a name that has none left takes no memory."""
        counter[name] -= count
        if counter[name] <= 0:
            del counter[name]
