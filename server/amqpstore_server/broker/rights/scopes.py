"""Permissions that a token brings with it, as scopes, instead of those of a user in the store.

As in RabbitMQ a scope is `PERMISSION:VHOST/NAME` or `PERMISSION:VHOST/NAME/ROUTING_KEY`. In each
part `*` stands for any text, and other characters may be percent-encoded: `%2F` is a slash, `%2A`
an asterisk. Without a routing key a scope grants nothing on topic exchanges beyond the exchange
itself: to publish and to bind there takes a scope with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from amqpstore_server.broker.errors import AccessRefusedError, NotAllowedError
from amqpstore_server.broker.rights.permissions import ALL, Access

_TAG = "tag"
MAX_SCOPES = 1000


class TokenError(Exception):
    """A token is not valid. The message says why, without the token."""


class Wildcard:
    """A pattern in which each `*` stands for any text. A match takes linear time."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self, pattern: str) -> None:
        # The pattern is split before it is decoded: `%2A` is an asterisk of the name.
        first, *rest = (unquote(part) for part in pattern.split("*"))
        self._first = first
        self._middle = rest[:-1]
        self._last = rest[-1] if rest else None

    @property
    def is_any(self) -> bool:
        """Whether everything matches."""
        return not self._first and self._last == "" and not any(self._middle)

    def matches(self, text: str) -> bool:
        """Tell whether a text matches from its beginning to its end."""
        if self._last is None:
            return text == self._first
        end = len(text) - len(self._last)
        at = len(self._first)
        # The beginning and the end must not overlap: `ab*ba` is not found in `aba`.
        if at > end or not (text.startswith(self._first) and text.endswith(self._last)):
            return False
        for part in self._middle:
            # The first place is as good as any: what follows has the most room.
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


@dataclass(frozen=True, slots=True)
class Scope:
    """A permission ("configure", "write" or "read") on names, and for topic exchanges on routing
    keys; None grants none of them.
    """

    permission: str
    vhost: Wildcard
    name: Wildcard
    routing_key: Wildcard | None


@dataclass(frozen=True, slots=True)
class TokenRights:
    """The rights that a token grants. `user` is a name for the log and the user-id of messages;
    `expires_at` is in seconds since 1970.
    """

    user: str
    scopes: tuple[Scope, ...]
    tags: frozenset[str]
    expires_at: float

    def access(self, vhost: str) -> ScopedAccess:
        """Return the permissions in a virtual host. Raises: NotAllowedError, if there are none."""
        access = ScopedAccess(self.user, vhost, {"scopes": self.scopes})
        if not access.is_granted:
            raise NotAllowedError(f"access to vhost '{vhost}' refused for user '{self.user}'")
        return access


def scopes_and_tags(texts: Iterable[str]) -> tuple[tuple[Scope, ...], frozenset[str]]:
    """Parse scopes. Those that are not in the form above grant nothing.

    Raises: TokenError, if there are too many: which of them count could not be told.
    """
    scopes, tags = [], set()
    for text in texts:
        permission, colon, resource = text.partition(":")
        if not colon:
            continue
        if permission == _TAG:
            tags.add(resource)
        elif permission in ALL:
            # The parts are not decoded yet: a slash in a name is `%2F`.
            parts = resource.split("/")
            if len(parts) in (2, 3):
                vhost, name, *key = map(Wildcard, parts)
                scopes.append(Scope(permission, vhost, name, key[0] if key else None))
    if len(scopes) > MAX_SCOPES:
        raise TokenError(f"it has more than {MAX_SCOPES} scopes")
    return tuple(scopes), frozenset(tags)


class ScopedAccess(Access):
    """The permissions of one connection whose client logged in with a token. `change` takes the
    scopes of another one.
    """

    def _have(self, row: Mapping[str, Any]) -> None:
        self._granted.clear()
        here = [one for one in row["scopes"] if one.vhost.matches(self._vhost)]
        self._by_permission = {kind: _Scopes(here, kind) for kind in ALL}
        self._patterns = self._by_permission
        self._has_topics = not all(
            self._by_permission[kind].grants_all_topics for kind in ("write", "read")
        )

    @property
    def is_granted(self) -> bool:
        """Whether there is any permission."""
        return any(one.scopes for one in self._by_permission.values())

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        """Make sure that the token grants a routing key on a topic exchange.

        Raises: AccessRefusedError.
        """
        if not self._by_permission[permission].grants_topic(exchange, routing_key):
            raise AccessRefusedError(
                f"{permission} access to topic '{routing_key}' in exchange '{exchange}' in vhost "
                f"'{self._vhost}' refused for user '{self.user}'"
            )

    @property
    def has_topics(self) -> bool:
        """Whether there are routing keys that no scope grants."""
        return self._has_topics


class _Scopes:
    """The scopes of one permission in one virtual host."""

    __slots__ = ("scopes",)

    def __init__(self, scopes: Iterable[Scope], permission: str) -> None:
        self.scopes = [one for one in scopes if one.permission == permission]

    @property
    def is_empty(self) -> bool:
        return not self.scopes

    def grants(self, name: str) -> bool:
        return any(one.name.matches(name) for one in self.scopes)

    def grants_topic(self, exchange: str, routing_key: str) -> bool:
        return any(
            one.routing_key is not None
            and one.name.matches(exchange)
            and one.routing_key.matches(routing_key)
            for one in self.scopes
        )

    @property
    def grants_all_topics(self) -> bool:
        return any(
            one.routing_key is not None and one.name.is_any and one.routing_key.is_any
            for one in self.scopes
        )
