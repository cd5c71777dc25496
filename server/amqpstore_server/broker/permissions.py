"""Permissions: what a user may do in a virtual host, by the names of its queues and exchanges.

As in RabbitMQ there are three patterns, for configure, write and read, and for topic exchanges
two more, for the routing keys that may be written and read. A pattern matches anywhere in a name;
the empty one matches the empty name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.patterns import literal, pattern_of

DEFAULT_EXCHANGE_RESOURCE = "amq.default"
"""What the default exchange is called in patterns."""

ALL = {"configure": ".*", "write": ".*", "read": ".*"}

_REMEMBERED = 4096


class Access:
    """What `user` may do in `vhost`: `row` has the patterns, and `topic` those of routing keys by
    exchange.

    All connections of the user to the virtual host share one, so that a change reaches them at
    their next method. Who let something begin that goes on by itself adds to `on_change` what
    looks whether it still may.
    """

    def __init__(self, user: str, vhost: str, row: Mapping[str, Any]) -> None:
        self.user = user
        self.on_change: set[Callable[[], None]] = set()
        self._vhost = vhost
        self._granted: set[tuple[str, str]] = set()
        self._have(row)

    def change(self, row: Mapping[str, Any]) -> None:
        """Have the patterns of another row from now on."""
        self._have(row)
        for look in list(self.on_change):
            look()

    def _have(self, row: Mapping[str, Any]) -> None:
        self._granted.clear()
        owner = f"user '{self.user}' in vhost '{self._vhost}'"
        self._patterns = {kind: _Granting(row[kind], owner) for kind in ALL}
        self._topics: dict[tuple[str, str], _Granting] = {
            (exchange, kind): _Granting(self._expanded(pattern), owner)
            for exchange, patterns in row.get("topic", {}).items()
            for kind, pattern in patterns.items()
        }

    def check(self, permission: str, kind: str, name: str) -> None:
        """Args: permission, "configure", "write" or "read"; kind, "queue" or "exchange".

        Raises: AccessRefusedError.
        """
        resource = _resource(kind, name)
        if (permission, resource) in self._granted:
            return
        if not self._patterns[permission].grants(resource):
            raise AccessRefusedError(
                f"{permission} access to {kind} '{name}' in vhost '{self._vhost}' refused for "
                f"user '{self.user}'"
            )
        if len(self._granted) >= _REMEMBERED:
            self._granted.clear()
        self._granted.add((permission, resource))

    def may(self, permission: str, name: str) -> bool:
        """As `check` of a queue, but for the error."""
        return self._patterns[permission].grants(name)

    def check_any(self, kind: str, name: str) -> None:
        """Make sure that some permission is there: to know that something exists takes one.

        Raises: AccessRefusedError.
        """
        resource = _resource(kind, name)
        if not any(pattern.grants(resource) for pattern in self._patterns.values()):
            raise AccessRefusedError(
                f"access to {kind} '{name}' in vhost '{self._vhost}' refused for user '{self.user}'"
            )

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        """Args: permission, "write" or "read". Raises: AccessRefusedError."""
        pattern = self._topics.get((exchange, permission))
        if pattern is not None and not pattern.grants(routing_key):
            raise AccessRefusedError(
                f"{permission} access to topic '{routing_key}' in exchange '{exchange}' in vhost "
                f"'{self._vhost}' refused for user '{self.user}'"
            )

    def _expanded(self, pattern: str) -> str:
        """A pattern of routing keys, with what stands for the user and the virtual host."""
        names = {"{username}": self.user, "{vhost}": self._vhost}
        for variable, name in names.items():
            pattern = pattern.replace(variable, literal(name))
        return pattern

    @property
    def has_topics(self) -> bool:
        """Whether any exchange limits routing keys."""
        return bool(self._topics)


def _resource(kind: str, name: str) -> str:
    return DEFAULT_EXCHANGE_RESOURCE if kind == "exchange" and not name else name


class _Granting:
    """A pattern of somebody's. One that cannot be read grants nothing."""

    __slots__ = ("_pattern",)

    def __init__(self, expression: str, owner: str) -> None:
        self._pattern = pattern_of(expression or "^$", owner)

    def grants(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.matches(name)
