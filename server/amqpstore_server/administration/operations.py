"""The operations of an operator on users, virtual hosts, permissions and policies.

All of them are durable when they return, and reach open connections at once:

- A user that is deleted, or gets another password, loses its connections (connection.close with
  320), and so does everybody in a virtual host that is deleted.
- A permission that is taken away is missing at the next method; consumers and waiting gets on
  queues that may not be read any more end.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from amqpstore_server.administration.connected import Connected
from amqpstore_server.administration.definitions import (
    Definitions,
    LeftOut,
    Permission,
    PolicyDefinition,
    TopicPermission,
    User,
    VirtualHostDefinition,
)
from amqpstore_server.administration.importing import apply_definitions
from amqpstore_server.administration.telling import (
    definitions_events,
    permission_event,
    policy_cleared_events,
    policy_events,
    topic_permission_event,
    user_events,
    user_limits_event,
    vhost_event,
    vhost_limits_events,
)
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.definitions.accepted import Place, check_policy, refusal
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.monitoring.audit import By, audit
from amqpstore_server.broker.rights.permissions import ALL, grants_any
from amqpstore_server.broker.routing.explaining import Explanation, explain
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.rules.settings import PROTECTED
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.logins.users import Users, unknown_tags
from amqpstore_server.protocol.content import PROPERTY_TYPES, BasicProperties

_log = logging.getLogger(__name__)


class AdministrationError(Exception):
    """The operation is refused, and changed nothing. The message says why."""


class MissingError(AdministrationError):
    """The object of the operation does not exist."""


class ProtectedError(AdministrationError):
    """The object of the operation is protected from it."""


_USERS_AT_ONCE = 64
"""Users of definitions that are looked at before others have their turn."""

STOPPED = "stopped"
"""The door of commands on the store of a broker that does not run."""


class Administration:
    """The operations on one broker.

    Args: connections, all that there are now; now, the time on the connections' clock.
    """

    def __init__(
        self,
        broker: Broker,
        users: Users,
        connections: Callable[[], Iterable[Connected]] = tuple,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.broker = broker
        self.all_users = users
        self.provenance_reads = 0
        """How many requests have the log read now: see `provenance`."""
        self._connections = connections
        self._now = now

    # Users.

    def users(self) -> list[dict[str, Any]]:
        """Return all users: `name`, `tags`, `limits` and how the password is stored."""
        found = []
        for name in sorted(self.all_users.names):
            row = self.all_users.row(name) or {}
            algorithm = row.get("algorithm", "argon2")
            password = algorithm if row.get("hash") else "none"
            limits = dict(self.all_users.limits_of(name))
            tags = list(row.get("tags", []))
            found.append({"name": name, "tags": tags, "password": password, "limits": limits})
        return found

    def tags_of(self, user: str) -> list[str]:
        """Return the tags of a user; none, if there is no such user."""
        return list((self.all_users.row(user) or {}).get("tags", []))

    def set_user(
        self, by: By, user: User, *, must_exist: bool | None = None, keeps: bool = False
    ) -> Work[None]:
        """Add a user, or change it. Raises: AdministrationError.

        Args: must_exist, whether it has to exist already, None for either; keeps, it keeps its
        password, whatever `user` says.
        """
        self._check_exists(user.name, must_exist)
        _check_limits(user.limits or {}, Place.USER_LIMIT)
        _warn_of_tags(user)
        row = (yield from self._row_of(user)) if not keeps else {}
        # Others had their turn while the password was hashed.
        self._check_exists(user.name, must_exist)
        if keeps:
            present = self.all_users.row(user.name) or {}
            row = {**present, "tags": user.tags}
        is_changed = self.all_users.has_other_secret(user.name, row)
        before = self.all_users.row(user.name)
        self._store(Defined(), {user.name: row})
        events = user_events(user.name, before, row)
        self._changed(by, "user set", *events, target=user.name, tags=",".join(user.tags))
        if is_changed:
            yield from self._closing(f"the password of user '{user.name}' was changed", user.name)

    def _check_exists(self, user: str, must_exist: bool | None) -> None:
        exists = self.all_users.row(user) is not None
        if must_exist is True and not exists:
            raise MissingError(f"no user '{user}'")
        if must_exist is False and exists:
            raise AdministrationError(f"user '{user}' exists already")

    def delete_user(self, by: By, user: str) -> Work[None]:
        """Delete a user with its permissions, and close its connections. Raises:
        AdministrationError.
        """
        self._check_exists(user, must_exist=True)
        if len(self.all_users.names) == 1:
            # The next start would create `guest` again, as in a new store.
            raise AdministrationError(f"'{user}' is the last user: add another one first")
        gone = {(user, vhost): None for vhost in self.broker.granted_to(user)}
        self._store(Defined(permissions=gone), {user: None})
        self._changed(by, "user deleted", BrokerEvent("user.deleted", {"name": user}), target=user)
        yield from self._closing(f"user '{user}' was deleted", user)
        yield None  # this may be one of thousands

    def _row_of(self, user: User) -> Work[dict[str, Any]]:
        users = self.all_users
        if user.password is not None:
            secret = yield partial(users.row_for_password, user.name, user.password.encode())
        else:
            secret = users.row_for_hash(
                user.name, user.password_hash or b"", user.hashing_algorithm
            )
        limits = self.all_users.limits_of(user.name) if user.limits is None else user.limits
        return {**secret, "tags": user.tags, **({"limits": dict(limits)} if limits else {})}

    def set_user_limits(self, by: By, user: str, limits: Mapping[str, int]) -> Work[None]:
        """Set the limits of a user, by RabbitMQ's names: see `broker.quotas`. They apply to what is
        opened from now on. Raises: AdministrationError.
        """
        self._check_exists(user, must_exist=True)
        _check_limits(limits, Place.USER_LIMIT)
        self._store(Defined(), {user: {**(self.all_users.row(user) or {}), "limits": dict(limits)}})
        event = user_limits_event(user, limits)
        self._changed(by, "user limits set", event, target=user, limits=str(dict(limits)))
        yield None

    def set_vhost_limits(self, by: By, name: str, limits: Mapping[str, int]) -> Work[None]:
        """Set the limits of a virtual host, as `set_user_limits` does those of a user. Raises:
        AdministrationError.
        """
        self.check_vhost(name)
        _check_limits(limits, Place.VHOST_LIMIT)
        self.broker.define_vhost_limits(name, limits)
        events = vhost_limits_events(name, limits)
        self._changed(by, "vhost limits set", *events, vhost=name, limits=str(dict(limits)))
        yield None

    # Virtual hosts.

    def vhosts(self) -> list[dict[str, Any]]:
        """Return all virtual hosts, with how much is in them; `deleted`, if it is being deleted."""
        broker = self.broker
        found = [(vhost, False) for vhost in broker.vhosts.values()]
        found += [(vhost, True) for vhost in broker.deleted.values()]
        return sorted(
            (
                {
                    "name": vhost.name,
                    "queues": sum(queue.is_listed for queue in vhost.queues.values()),
                    "exchanges": len(vhost.exchanges),
                    "limits": dict(vhost.limits),
                    "tracing": vhost.firehose.is_on,
                    "deleted": is_deleted,
                }
                for vhost, is_deleted in found
            ),
            key=lambda row: str(row["name"]),
        )

    def add_vhost(self, by: By, vhost: VirtualHostDefinition, owner: str = "") -> Work[None]:
        """Create a virtual host, with all permissions for a user if `owner` names one.

        Raises: AdministrationError.
        """
        name = vhost.name
        if name in self.broker.vhosts:
            raise AdministrationError(f"vhost '{name}' exists already")
        if owner:
            self._check_exists(owner, must_exist=True)
        granted = {(owner, name): dict(ALL)} if owner else {}
        self._store(Defined([name], granted))
        if vhost.all_metadata:
            self.broker.define_vhost_metadata(name, vhost.all_metadata)
        self._changed(by, "vhost added", vhost_event(self.broker.vhosts[name]), vhost=name)
        yield None

    def set_tracing(self, by: By, name: str, *, on: bool) -> Work[None]:
        """Turn the firehose of a virtual host on or off. A start turns it off. Raises:
        AdministrationError.
        """
        self.check_vhost(name)
        if by.door == STOPPED:
            raise AdministrationError("the broker does not run, and its start turns tracing off")
        if self.broker.vhosts[name].firehose.is_on is not on:
            self.broker.vhosts[name].firehose.is_on = on
            event = vhost_event(self.broker.vhosts[name], "updated")
            self._changed(by, "tracing on" if on else "tracing off", event, vhost=name)
        yield None

    def describe_vhost(self, by: By, name: str, metadata: Mapping[str, Any]) -> Work[None]:
        """Set `description`, `tags` and `default_queue_type` of a virtual host. Raises:
        MissingError.
        """
        self.check_vhost(name)
        self.broker.define_vhost_metadata(name, metadata)
        event = vhost_event(self.broker.vhosts[name], "updated")
        self._changed(by, "vhost described", event, vhost=name)
        yield None

    def protect_vhost(self, by: By, name: str, *, on: bool) -> Work[None]:
        """Protect a virtual host from deletion, or not any more. Raises: MissingError."""
        self.check_vhost(name)
        metadata = {**self.broker.vhosts[name].metadata, PROTECTED: on}
        kept = {key: value for key, value in metadata.items() if value}
        yield from self.describe_vhost(by, name, kept)

    def delete_vhost(self, by: By, name: str) -> Work[None]:
        """Delete a virtual host with everything in it, and close its connections.

        It cannot be opened from the first step on; a crash leaves the rest to the next start.
        Raises: AdministrationError.
        """
        if name not in self.broker.vhosts:
            raise MissingError(f"no vhost '{name}'")
        if self.broker.vhosts[name].metadata.get(PROTECTED):
            raise ProtectedError(
                f"vhost '{name}' is protected from deletion: remove the protection first"
            )
        if len(self.broker.vhosts) == 1:
            raise AdministrationError(f"'{name}' is the last vhost: add another one first")
        self.broker.begin_deleting(name)
        self._changed(by, "vhost deleted", BrokerEvent("vhost.deleted", {"name": name}), vhost=name)
        yield from self._closing(f"vhost '{name}' was deleted", vhost=name)
        yield from self.broker.deleting_vhost(name)

    def delete_rest(self) -> Work[None]:
        """Go on with the virtual hosts whose deletion the last crash interrupted."""
        for name in list(self.broker.deleted):
            yield from self.broker.deleting_vhost(name)

    # Permissions.

    def permissions(self, user: str = "", vhost: str = "") -> list[dict[str, Any]]:
        """Return the permissions, those of a user or in a virtual host if one is named."""
        return [
            {"user": one, "vhost": where, **{kind: row[kind] for kind in ALL}}
            for one, where, row in self._granted(user, vhost)
            if grants_any(row)
        ]

    def topic_permissions(self, user: str = "", vhost: str = "") -> list[dict[str, Any]]:
        """Return the permissions for routing keys, as `permissions` does."""
        return [
            {"user": one, "vhost": where, "exchange": exchange, **patterns}
            for one, where, row in self._granted(user, vhost)
            for exchange, patterns in sorted(row.get("topic", {}).items())
        ]

    def _granted(self, user: str, vhost: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        for one, where, row in sorted(self.broker.granted(), key=lambda row: row[:2]):
            if user in ("", one) and vhost in ("", where):
                yield one, where, row

    def set_permission(self, by: By, asked: Permission) -> Work[None]:
        """Set the permissions of a user in a virtual host; those for routing keys stay.

        Raises: AdministrationError.
        """
        self._check_exists(asked.user, must_exist=True)
        self.check_vhost(asked.vhost)
        row = {kind: getattr(asked, kind) for kind in ALL}
        row["topic"] = self._topics(asked.user, asked.vhost)
        self._store(Defined(permissions={(asked.user, asked.vhost): row}))
        self._changed(
            by, "permission set", permission_event(asked), vhost=asked.vhost, target=asked.user
        )
        yield None

    def clear_permission(self, by: By, user: str, vhost: str) -> Work[None]:
        """Take all permissions in a virtual host from a user; those for routing keys stay. Raises:
        MissingError.
        """
        if not self.permissions(user, vhost):
            raise MissingError(f"user '{user}' has no permission in vhost '{vhost}'")
        self._store_row(user, vhost, {"topic": self._topics(user, vhost)})
        event = BrokerEvent("permission.deleted", {"user": user, "vhost": vhost})
        self._changed(by, "permission cleared", event, vhost=vhost, target=user)
        yield None

    def set_topic_permission(self, by: By, asked: TopicPermission) -> Work[None]:
        """Restrict the routing keys of a user at an exchange, who need not have any permission yet.

        Raises: AdministrationError.
        """
        self._check_exists(asked.user, must_exist=True)
        self.check_vhost(asked.vhost)
        patterns = {"write": asked.write, "read": asked.read}
        topics = {**self._topics(asked.user, asked.vhost), asked.exchange: patterns}
        self._set_topics(asked.user, asked.vhost, topics)
        self._changed(
            by,
            "topic permission set",
            topic_permission_event(asked),
            vhost=asked.vhost,
            target=asked.user,
            exchange=asked.exchange,
        )
        yield None

    def clear_topic_permission(
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
        self._changed(
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
        self._store(Defined(permissions={(user, vhost): row if has_any else None}))

    def _topics(self, user: str, vhost: str) -> dict[str, Any]:
        return dict(self._row(user, vhost).get("topic", {}))

    def _row(self, user: str, vhost: str) -> Mapping[str, Any]:
        for *_, row in self._granted(user, vhost):
            return row
        return {}

    def check_vhost(self, vhost: str) -> None:
        """Raises: MissingError."""
        if vhost not in self.broker.vhosts:
            raise MissingError(f"no vhost '{vhost}'")

    def check_names(self, user: str = "", vhost: str = "") -> None:
        """Make sure that what a list is asked for is there, where it is named. Raises:
        MissingError.
        """
        if user:
            self._check_exists(user, must_exist=True)
        if vhost:
            self.check_vhost(vhost)

    # Policies.

    def policies(self, vhost: str = "", *, operator: bool = False) -> list[dict[str, Any]]:
        """Return the policies, or the operator policies, as RabbitMQ writes them."""
        return [
            {
                "vhost": where.name,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply-to": policy.apply_to,
                "definition": dict(policy.definition),
                "priority": policy.priority,
            }
            for where in sorted(self.broker.vhosts.values(), key=lambda one: one.name)
            if vhost in ("", where.name)
            for policy in sorted(where.policies.all(operator=operator), key=lambda one: one.name)
        ]

    def set_policy(self, by: By, asked: PolicyDefinition, *, operator: bool = False) -> Work[None]:
        """Add a policy, or change the one of that name. Raises: AdministrationError."""
        self.check_vhost(asked.vhost)
        policy = asked.policy
        if not policy.definition:
            raise AdministrationError("a policy needs a definition with at least one key")
        kind = "operator policy" if operator else "policy"
        if reason := check_policy(policy.apply_to, policy.definition, operator=operator):
            raise AdministrationError(reason)
        others = self._policies_but(asked.name, asked.vhost, operator=operator)
        yield from self._storing(
            Defined(policies={(asked.vhost, operator): [*others, policy]}),
        )
        events = policy_events(asked, operator=operator)
        self._changed(by, f"{kind} set", *events, vhost=asked.vhost, policy=asked.name)

    def clear_policy(self, by: By, vhost: str, name: str, *, operator: bool = False) -> Work[None]:
        """Remove a policy. Raises: MissingError."""
        self.check_vhost(vhost)
        others = self._policies_but(name, vhost, operator=operator)
        if len(others) == len(self.broker.vhosts[vhost].policies.all(operator=operator)):
            kind = "operator policy" if operator else "policy"
            raise MissingError(f"no {kind} '{name}' in vhost '{vhost}'")
        yield from self._storing(Defined(policies={(vhost, operator): others}))
        kind = "operator policy cleared" if operator else "policy cleared"
        events = policy_cleared_events(vhost, name, operator=operator)
        self._changed(by, kind, *events, vhost=vhost, policy=name)

    def _policies_but(self, name: str, vhost: str, *, operator: bool) -> list[Policy]:
        policies = self.broker.vhosts[vhost].policies.all(operator=operator)
        return [policy for policy in policies if policy.name != name]

    # Routing.

    def explain(
        self, vhost: str, exchange: str, routing_key: str, properties: Mapping[str, Any]
    ) -> Explanation:
        """Explain where a message would go, and why: see `explaining`.

        Args: properties, of the message, by their names, `headers` among them.
        Raises: AdministrationError; MissingError, if there is no such exchange.
        """
        self.check_vhost(vhost)
        known = [name for name, _ in PROPERTY_TYPES]
        if unknown := [name for name in properties if name not in known]:
            raise AdministrationError(f"no property '{unknown[0]}': there are {', '.join(known)}")
        if exchange != DEFAULT_EXCHANGE and exchange not in self.broker.vhosts[vhost].exchanges:
            raise MissingError(f"no exchange '{exchange}' in vhost '{vhost}'")
        router = self.broker.vhosts[vhost].router
        try:
            return explain(router, exchange, routing_key, BasicProperties(**properties))
        except PreconditionFailedError as error:
            raise AdministrationError(str(error)) from None
        except (ValueError, TypeError, OverflowError, AttributeError, struct.error) as error:
            raise AdministrationError(f"these properties cannot be sent: {error}") from None

    # Definitions.

    def import_definitions(
        self, by: By, definitions: Definitions, *, replaces_policies: bool = False
    ) -> Work[list[str]]:
        """Add and change what the definitions say. Returns what was refused and left out.

        Args: replaces_policies, those of the definitions are all there are.
        Raises: DefinitionsError (nothing is changed then), DurabilityError.
        """
        rows = {}
        for number, user in enumerate(definitions.users, 1):
            if not number % _USERS_AT_ONCE:
                yield None
            if reason := refusal(Place.USER_LIMIT, user.limits or ()):
                definitions.left_out.append(LeftOut("user limits", "", user.name, reason))
                user.limits = None
            rows[user.name] = yield from self._row_of(user)
            _warn_of_tags(user)
        changed = [name for name, row in rows.items() if self.all_users.has_other_secret(name, row)]
        before = {name: self.all_users.row(name) for name in rows}
        new = [one.name for one in definitions.vhosts if one.name not in self.broker.vhosts]
        left_out = yield from apply_definitions(
            definitions, self.broker, self.all_users, rows, replaces_policies=replaces_policies
        )
        events = self.broker.context.events
        added = [self.broker.vhosts[name] for name in new if name in self.broker.vhosts]
        news = definitions_events(definitions, added, before, rows) if events.is_heard else []
        self._changed(
            by,
            "definitions imported",
            *news,
            users=len(definitions.users),
            vhosts=len(definitions.vhosts),
            permissions=len(definitions.permissions) + len(definitions.topic_permissions),
            policies=len(definitions.policies) + len(definitions.operator_policies),
            exchanges=len(definitions.exchanges),
            queues=len(definitions.queues),
            bindings=len(definitions.bindings),
        )
        for name in changed:
            yield from self._closing(f"the password of user '{name}' was changed", name)
        return left_out

    # Connections.

    def open_connections(self, user: str = "", vhost: str = "", name: str = "") -> list[Connected]:
        """Return the connections that are or were open: all, or those for which all is true that
        is given.
        """
        return [
            one
            for one in self._connections()
            if one.vhost
            and user in ("", one.user)
            and vhost in ("", one.vhost)
            and name in ("", one.name)
        ]

    def close_connection(self, by: By, connection: Connected, reason: str) -> None:
        """Close a connection. Args: reason, told to the client."""
        connection.shut_down(self._now(), reason)
        said = {"target": connection.name, "user": connection.user, "reason": reason}
        audit("connection closed by operator", **by.fields, **said)

    # What they share.

    def _store(self, defined: Defined, users: Mapping[str, dict[str, Any] | None] = {}) -> None:
        """Store definitions and users in one commit. Raises: AdministrationError."""
        for _ in self._storing(defined, users):
            pass

    def _storing(
        self, defined: Defined, users: Mapping[str, dict[str, Any] | None] = {}
    ) -> Iterator[None]:
        applying = self.broker.defining(defined, self.all_users.changes(users))
        try:
            next(applying, None)
        except (ValueError, TypeError, OverflowError) as error:
            raise AdministrationError(f"this cannot be stored: {error}") from error
        self.all_users.have(users)
        yield from applying

    def _closing(self, reason: str, user: str = "", vhost: str = "") -> Iterator[None]:
        """Close the connections of a user, or in a virtual host: one in each step, as what each
        leaves unacked may be much.
        """
        for connection in list(self._connections()):
            if (user and connection.user == user) or (vhost and connection.vhost == vhost):
                connection.shut_down(self._now(), reason)
                yield

    def _changed(self, by: By, line: str, *events: BrokerEvent, **said: Any) -> None:
        self.broker.context.events.happened(line, *events, by=by, **said)


def _warn_of_tags(user: User) -> None:
    """Log tags that mean nothing here. They are kept, as in RabbitMQ: clients compare them."""
    if unknown := unknown_tags(user.tags):
        extra = {"user": user.name, "tags": ",".join(unknown)}
        _log.warning("tags without a meaning", extra=extra)


def _check_limits(limits: Mapping[str, int], place: Place) -> None:
    """Raises: AdministrationError."""
    if reason := refusal(place, limits):
        raise AdministrationError(reason)
    for name, limit in limits.items():
        if abs(limit) >= 1 << 63:
            raise AdministrationError(f"limit '{name}' does not fit in 64 bits")
