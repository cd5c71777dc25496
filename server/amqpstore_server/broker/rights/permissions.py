"""Permissions: what a user may do in a virtual host, by the names of its queues and exchanges.

As in RabbitMQ there are three patterns, for configure, write and read, and two more for topic
exchanges, for the routing keys that may be written and read. A pattern matches anywhere in a name;
the empty one matches only the empty name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.rules.patterns import literal, pattern_of

DEFAULT_EXCHANGE_RESOURCE = "amq.default"
"""The name of the default exchange in permission patterns."""

ALL = {"configure": ".*", "write": ".*", "read": ".*"}

_NO_NAME = "^$"
"""The pattern that RabbitMQ's documentation gives for no permission."""

_REMEMBERED = 4096


def grants_any(row: Mapping[str, Any]) -> bool:
    """Tell whether a row has permissions, and not just restrictions of routing keys, which may be
    set before them.
    """
    return "configure" in row


class Granting(Protocol):
    """One permission on names."""

    @property
    def is_empty(self) -> bool:
        """Whether it covers no name at all."""

    def grants(self, name: str) -> bool:
        """Tell whether it covers a name."""


class Rights(Protocol):
    """The rights of a user in a virtual host."""

    def check(self, permission: str, kind: str, name: str) -> None:
        """Raises: AccessRefusedError."""

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        """Raises: AccessRefusedError."""


class Access:
    """The permissions of `user` in `vhost`: `row` has the patterns, and `topic` those for routing
    keys by exchange.

    All connections of the user to the virtual host share one object, so that a change applies to
    their next method. Long-running activities, such as consumers, register a callback in
    `on_change` that checks whether they are still allowed.
    """

    def __init__(self, user: str, vhost: str, row: Mapping[str, Any]) -> None:
        self.user = user
        self.on_change: set[Callable[[], None]] = set()
        self._vhost = vhost
        self._granted: set[tuple[str, str]] = set()
        self._have(row)

    def change(self, row: Mapping[str, Any]) -> None:
        """Use the patterns of another row from now on."""
        self._have(row)
        # A copy: a channel that is closed takes itself out of the set.
        for look in list(self.on_change):
            look()

    def _have(self, row: Mapping[str, Any]) -> None:
        self._granted.clear()
        owner = f"user '{self.user}' in vhost '{self._vhost}'"
        self._patterns: Mapping[str, Granting] = {kind: _Granting(row[kind], owner) for kind in ALL}
        self._topics: dict[tuple[str, str], _Granting] = {
            (exchange, kind): _Granting(self._expanded(pattern), owner)
            for exchange, patterns in row.get("topic", {}).items()
            for kind, pattern in patterns.items()
        }

    def check(self, permission: str, kind: str, name: str) -> None:
        """Make sure that the user has a permission.

        Args: permission, "configure", "write" or "read"; kind, "queue" or "exchange".
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
        # Clients may use any number of names.
        if len(self._granted) >= _REMEMBERED:
            self._granted.clear()
        self._granted.add((permission, resource))

    def has_granted(self, permission: str, kind: str, name: str) -> bool:
        """Tell whether `check` is known to pass, without looking at the patterns."""
        return (permission, _resource(kind, name)) in self._granted

    def may(self, permission: str, name: str) -> bool:
        """Tell whether `check` would succeed for a queue."""
        return self._patterns[permission].grants(name)

    def may_any(self, permission: str) -> bool:
        """Tell whether `check` may succeed for any name."""
        return not self._patterns[permission].is_empty

    def check_any(self, kind: str, name: str) -> None:
        """Make sure that the user has any permission on a name: without one, a user may not learn
        whether it exists.

        Raises: AccessRefusedError.
        """
        resource = _resource(kind, name)
        if not any(pattern.grants(resource) for pattern in self._patterns.values()):
            raise AccessRefusedError(
                f"access to {kind} '{name}' in vhost '{self._vhost}' refused for user '{self.user}'"
            )

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        """Make sure that a user may use a routing key with a topic exchange.

        Args: permission, "write" or "read".
        Raises: AccessRefusedError.
        """
        pattern = self._topics.get((exchange, permission))
        if pattern is not None and not pattern.grants(routing_key):
            raise AccessRefusedError(
                f"{permission} access to topic '{routing_key}' in exchange '{exchange}' in vhost "
                f"'{self._vhost}' refused for user '{self.user}'"
            )

    def _expanded(self, pattern: str) -> str:
        """Expand `{username}` and `{vhost}` in a pattern for routing keys."""
        names = {"{username}": self.user, "{vhost}": self._vhost}
        for variable, name in names.items():
            # Names are matched literally: a user called `.*` must not get the topics of all
            # others.
            pattern = pattern.replace(variable, literal(name))
        return pattern

    @property
    def has_topics(self) -> bool:
        """Whether any exchange restricts routing keys."""
        return bool(self._topics)


def _resource(kind: str, name: str) -> str:
    return DEFAULT_EXCHANGE_RESOURCE if kind == "exchange" and not name else name


class _Granting:
    """A user's permission pattern. An invalid one grants nothing."""

    __slots__ = ("_pattern", "is_empty")

    def __init__(self, expression: str, owner: str) -> None:
        self._pattern = pattern_of(expression or _NO_NAME, owner)
        self.is_empty = self._pattern is None or expression in ("", _NO_NAME)

    def grants(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.matches(name)
