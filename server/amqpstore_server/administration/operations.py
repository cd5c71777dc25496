"""The operations of an operator on a broker: users and virtual hosts here, others beside it.

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

from amqpstore_server.administration.changes import (
    AdministrationError,
    Changes,
    MissingError,
    ProtectedError,
)
from amqpstore_server.administration.connected import Connected
from amqpstore_server.administration.definitions import (
    Definitions,
    LeftOut,
    User,
    VirtualHostDefinition,
)
from amqpstore_server.administration.importing import apply_definitions
from amqpstore_server.administration.permissions import PermissionOperations
from amqpstore_server.administration.policies import PolicyOperations
from amqpstore_server.administration.telling import (
    definitions_events,
    user_events,
    user_limits_event,
    vhost_event,
    vhost_limits_events,
)
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.definitions.accepted import NameScope, refusal
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.monitoring.audit import By, audit
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.broker.routing.explaining import Explanation, explain
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.broker.rules.settings import PROTECTED
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.logins.users import Users, unknown_tags
from amqpstore_server.protocol.content import PROPERTY_TYPES, BasicProperties

_log = logging.getLogger(__name__)


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
        self.changes = Changes(broker, users)
        self.permissions = PermissionOperations(self.changes)
        self.policies = PolicyOperations(self.changes)
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
        self.changes.check_user(user.name, must_exist=must_exist)
        _check_limits(user.limits or {}, NameScope.USER_LIMIT)
        _warn_of_tags(user)
        row = (yield from self._row_of(user)) if not keeps else {}
        # Others had their turn while the password was hashed.
        self.changes.check_user(user.name, must_exist=must_exist)
        if keeps:
            present = self.all_users.row(user.name) or {}
            row = {**present, "tags": user.tags}
        is_changed = self.all_users.has_other_secret(user.name, row)
        before = self.all_users.row(user.name)
        self.changes.store(Defined(), {user.name: row})
        events = user_events(user.name, before, row)
        self.changes.made(by, "user set", *events, target=user.name, tags=",".join(user.tags))
        if is_changed:
            yield from self._closing(f"the password of user '{user.name}' was changed", user.name)

    def delete_user(self, by: By, user: str) -> Work[None]:
        """Delete a user with its permissions, and close its connections. Raises:
        AdministrationError.
        """
        self.changes.check_user(user)
        if len(self.all_users.names) == 1:
            # The next start would create `guest` again, as in a new store.
            raise AdministrationError(f"'{user}' is the last user: add another one first")
        gone = {(user, vhost): None for vhost in self.broker.granted_to(user)}
        self.changes.store(Defined(permissions=gone), {user: None})
        self.changes.made(
            by, "user deleted", BrokerEvent("user.deleted", {"name": user}), target=user
        )
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
        self.changes.check_user(user)
        _check_limits(limits, NameScope.USER_LIMIT)
        self.changes.store(
            Defined(), {user: {**(self.all_users.row(user) or {}), "limits": dict(limits)}}
        )
        event = user_limits_event(user, limits)
        self.changes.made(by, "user limits set", event, target=user, limits=str(dict(limits)))
        yield None

    def set_vhost_limits(self, by: By, name: str, limits: Mapping[str, int]) -> Work[None]:
        """Set the limits of a virtual host, as `set_user_limits` does those of a user. Raises:
        AdministrationError.
        """
        self.changes.check_vhost(name)
        _check_limits(limits, NameScope.VHOST_LIMIT)
        self.broker.define_vhost_limits(name, limits)
        events = vhost_limits_events(name, limits)
        self.changes.made(by, "vhost limits set", *events, vhost=name, limits=str(dict(limits)))
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
            self.changes.check_user(owner)
        granted = {(owner, name): dict(ALL)} if owner else {}
        self.changes.store(Defined([name], granted))
        if vhost.all_metadata:
            self.broker.define_vhost_metadata(name, vhost.all_metadata)
        self.changes.made(by, "vhost added", vhost_event(self.broker.vhosts[name]), vhost=name)
        yield None

    def set_tracing(self, by: By, name: str, *, on: bool) -> Work[None]:
        """Turn the firehose of a virtual host on or off. A start turns it off. Raises:
        AdministrationError.
        """
        self.changes.check_vhost(name)
        if by.door == STOPPED:
            raise AdministrationError("the broker does not run, and its start turns tracing off")
        if self.broker.vhosts[name].firehose.is_on is not on:
            self.broker.vhosts[name].firehose.is_on = on
            event = vhost_event(self.broker.vhosts[name], "updated")
            self.changes.made(by, "tracing on" if on else "tracing off", event, vhost=name)
        yield None

    def describe_vhost(self, by: By, name: str, metadata: Mapping[str, Any]) -> Work[None]:
        """Set `description`, `tags` and `default_queue_type` of a virtual host. Raises:
        MissingError.
        """
        self.changes.check_vhost(name)
        self.broker.define_vhost_metadata(name, metadata)
        event = vhost_event(self.broker.vhosts[name], "updated")
        self.changes.made(by, "vhost described", event, vhost=name)
        yield None

    def protect_vhost(self, by: By, name: str, *, on: bool) -> Work[None]:
        """Protect a virtual host from deletion, or not any more. Raises: MissingError."""
        self.changes.check_vhost(name)
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
        self.changes.made(
            by, "vhost deleted", BrokerEvent("vhost.deleted", {"name": name}), vhost=name
        )
        yield from self._closing(f"vhost '{name}' was deleted", vhost=name)
        yield from self.broker.deleting_vhost(name)

    def delete_rest(self) -> Work[None]:
        """Go on with the virtual hosts whose deletion the last crash interrupted."""
        for name in list(self.broker.deleted):
            yield from self.broker.deleting_vhost(name)

    def check_names(self, user: str = "", vhost: str = "") -> None:
        """Make sure that what a list is asked for is there, where it is named. Raises:
        MissingError.
        """
        if user:
            self.changes.check_user(user)
        if vhost:
            self.changes.check_vhost(vhost)

    # Routing.

    def explain(
        self, vhost: str, exchange: str, routing_key: str, properties: Mapping[str, Any]
    ) -> Explanation:
        """Explain where a message would go, and why: see `explaining`.

        Args: properties, of the message, by their names, `headers` among them.
        Raises: AdministrationError; MissingError, if there is no such exchange.
        """
        self.changes.check_vhost(vhost)
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
            if reason := refusal(NameScope.USER_LIMIT, user.limits or ()):
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
        events = self.broker.services.events
        added = [self.broker.vhosts[name] for name in new if name in self.broker.vhosts]
        news = definitions_events(definitions, added, before, rows) if events.is_heard else []
        self.changes.made(
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

    def _closing(self, reason: str, user: str = "", vhost: str = "") -> Iterator[None]:
        """Close the connections of a user, or in a virtual host: one in each step, as what each
        leaves unacked may be much.
        """
        for connection in list(self._connections()):
            if (user and connection.user == user) or (vhost and connection.vhost == vhost):
                connection.shut_down(self._now(), reason)
                yield


def _warn_of_tags(user: User) -> None:
    """Log tags that mean nothing here. They are kept, as in RabbitMQ: clients compare them."""
    if unknown := unknown_tags(user.tags):
        extra = {"user": user.name, "tags": ",".join(unknown)}
        _log.warning("tags without a meaning", extra=extra)


def _check_limits(limits: Mapping[str, int], scope: NameScope) -> None:
    """Raises: AdministrationError."""
    if reason := refusal(scope, limits):
        raise AdministrationError(reason)
    for name, limit in limits.items():
        if abs(limit) >= 1 << 63:
            raise AdministrationError(f"limit '{name}' does not fit in 64 bits")
