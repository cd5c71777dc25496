"""The operations on permissions: of users in virtual hosts, and for routing keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore_server.administration.changes import Changes, MissingError
from amqpstore_server.administration.definitions import Permission, TopicPermission
from amqpstore_server.administration.telling import permission_event, topic_permission_event
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rights.permissions import ALL, grants_any
from amqpstore_server.broker.work.events import BrokerEvent


class PermissionOperations:
    """Lists, sets and clears permissions."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    # Permissions.

    def all(self, user: str = "", vhost: str = "") -> list[dict[str, Any]]:
        """Return the permissions, those of a user or in a virtual host if one is named."""
        return [
            {"user": one, "vhost": where, **{kind: row[kind] for kind in ALL}}
            for one, where, row in self._granted(user, vhost)
            if grants_any(row)
        ]

    def all_topics(self, user: str = "", vhost: str = "") -> list[dict[str, Any]]:
        """Return the permissions for routing keys, as `all` does."""
        return [
            {"user": one, "vhost": where, "exchange": exchange, **patterns}
            for one, where, row in self._granted(user, vhost)
            for exchange, patterns in sorted(row.get("topic", {}).items())
        ]

    def _granted(self, user: str, vhost: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        for one, where, row in sorted(self._changes.broker.granted(), key=lambda row: row[:2]):
            if user in ("", one) and vhost in ("", where):
                yield one, where, row

    def set(self, by: By, asked: Permission) -> Work[None]:
        """Set the permissions of a user in a virtual host; those for routing keys stay.

        Raises: AdministrationError.
        """
        self._changes.check_user(asked.user)
        self._changes.check_vhost(asked.vhost)
        row = {kind: getattr(asked, kind) for kind in ALL}
        row["topic"] = self._topics(asked.user, asked.vhost)
        self._changes.store(Defined(permissions={(asked.user, asked.vhost): row}))
        self._changes.made(
            by, "permission set", permission_event(asked), vhost=asked.vhost, target=asked.user
        )
        yield None

    def clear(self, by: By, user: str, vhost: str) -> Work[None]:
        """Take all permissions in a virtual host from a user; those for routing keys stay. Raises:
        MissingError.
        """
        if not self.all(user, vhost):
            raise MissingError(f"user '{user}' has no permission in vhost '{vhost}'")
        self._store_row(user, vhost, {"topic": self._topics(user, vhost)})
        event = BrokerEvent("permission.deleted", {"user": user, "vhost": vhost})
        self._changes.made(by, "permission cleared", event, vhost=vhost, target=user)
        yield None

    def set_topic(self, by: By, asked: TopicPermission) -> Work[None]:
        """Restrict the routing keys of a user at an exchange, who need not have any permission yet.

        Raises: AdministrationError.
        """
        self._changes.check_user(asked.user)
        self._changes.check_vhost(asked.vhost)
        patterns = {"write": asked.write, "read": asked.read}
        topics = {**self._topics(asked.user, asked.vhost), asked.exchange: patterns}
        self._set_topics(asked.user, asked.vhost, topics)
        self._changes.made(
            by,
            "topic permission set",
            topic_permission_event(asked),
            vhost=asked.vhost,
            target=asked.user,
            exchange=asked.exchange,
        )
        yield None

    def clear_topics(
        self, by: By, user: str, vhost: str, exchange: str | None = None
    ) -> Work[None]:
        """Remove the restriction of routing keys at an exchange, or at all of them. Raises:
        MissingError.
        """
        topics = self._topics(user, vhost)
        gone = list(topics) if exchange is None else [exchange]
        if not gone:
            raise MissingError(f"no topic permission of '{user}' in vhost '{vhost}'")
        for name in gone:
            if topics.pop(name, None) is None:
                raise MissingError(f"no topic permission of '{user}' for exchange '{name}'")
        self._set_topics(user, vhost, topics)
        events = [
            BrokerEvent(
                "topic.permission.deleted", {"user": user, "vhost": vhost, "exchange": name}
            )
            for name in gone
        ]
        self._changes.made(
            by,
            "topic permission cleared",
            *events,
            vhost=vhost,
            target=user,
            exchange=",".join(gone),
        )
        yield None

    def _set_topics(self, user: str, vhost: str, topics: dict[str, Any]) -> None:
        self._store_row(user, vhost, {**self._row(user, vhost), "topic": topics})

    def _store_row(self, user: str, vhost: str, row: dict[str, Any]) -> None:
        """Store permissions, or that there are none."""
        has_any = grants_any(row) or bool(row["topic"])
        self._changes.store(Defined(permissions={(user, vhost): row if has_any else None}))

    def _topics(self, user: str, vhost: str) -> dict[str, Any]:
        return dict(self._row(user, vhost).get("topic", {}))

    def _row(self, user: str, vhost: str) -> Mapping[str, Any]:
        for *_, row in self._granted(user, vhost):
            return row
        return {}
