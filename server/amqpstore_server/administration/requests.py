"""The requests of operators: what a door may be asked, as JSON, and how it is carried out.

A request is an object; its `do` says which one it is, and comes first. Its other fields are those
of the class. It holds no more than a request by HTTP may: see `protocol.bounds`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, TypeAlias

import msgspec

from amqpstore_server.administration.changes import AdministrationError
from amqpstore_server.administration.connection_requests import CloseConnections, ListConnections
from amqpstore_server.administration.definitions import (
    Permission,
    PolicyDefinition,
    TopicPermission,
    User,
    VirtualHostDefinition,
    definitions_of,
)
from amqpstore_server.administration.exporting import export_definitions, of_vhost
from amqpstore_server.administration.importing import notes_of
from amqpstore_server.administration.large_json import decoding, json_of
from amqpstore_server.administration.message_requests import (
    BrowseMessages,
    CopyMessages,
    DeleteMessages,
    MoveMessages,
    ProvenanceOfId,
    ProvenanceOfMessage,
    ReplayMessages,
    UndoPurge,
)
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.request import OperatorRequest
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.definitions.accepted import policy_notes
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.logins.users import TAGS, unknown_tags
from amqpstore_server.protocol.bounds import MAX_BODY_ENTRIES, MAX_DEFINITION_ENTRIES


class ListUsers(OperatorRequest, tag="users list"):
    """All users."""

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        yield None
        return administration.users()


class SetUser(OperatorRequest, tag="users set"):
    """Add a user, or change the password or the tags of one. None leaves what there is."""

    name: str
    password: str | None = None
    tags: list[str] | None = None
    has_password: bool = True
    is_new: bool = False

    def __repr__(self) -> str:
        """Leave out the password, which must not get into logs and tracebacks."""
        return f"SetUser(name={self.name!r})"

    def done(self, administration: Administration, by: By) -> Work[Any]:
        present = administration.tags_of(self.name)
        tags = self.tags if self.tags is not None else present
        if unknown := unknown_tags(self.tags or ()):
            raise AdministrationError(f"no tag '{unknown[0]}': there are {', '.join(TAGS)}")
        keeps = self.password is None and self.has_password and not self.is_new
        password_hash = b"" if self.password is None else None
        user = User(
            name=self.name, password=self.password, password_hash=password_hash, listed_tags=tags
        )
        yield from administration.set_user(by, user, must_exist=not self.is_new, keeps=keeps)


class DeleteUser(OperatorRequest, tag="users delete"):
    """Delete a user."""

    name: str

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.delete_user(by, self.name)


class SetUserLimits(OperatorRequest, tag="users set-limits"):
    """Set the limits of a user, in place of those it has."""

    name: str
    limits: dict[str, int]

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.set_user_limits(by, self.name, self.limits)


class SetVhostLimits(OperatorRequest, tag="vhosts set-limits"):
    """Set the limits of a virtual host, in place of those it has."""

    name: str
    limits: dict[str, int]

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.set_vhost_limits(by, self.name, self.limits)


class ListVhosts(OperatorRequest, tag="vhosts list"):
    """All virtual hosts."""

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        yield None
        return administration.vhosts()


class AddVhost(OperatorRequest, tag="vhosts add"):
    """Create a virtual host; `owner` gets all permissions in it."""

    name: str
    owner: str = ""

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.add_vhost(by, VirtualHostDefinition(name=self.name), self.owner)


class SetTracing(OperatorRequest, tag="vhosts trace"):
    """Turn the firehose of a virtual host on or off."""

    name: str
    on: bool

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.set_tracing(by, self.name, on=self.on)


class DeleteVhost(OperatorRequest, tag="vhosts delete"):
    """Delete a virtual host with everything in it."""

    name: str

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.delete_vhost(by, self.name)


class ListPermissions(OperatorRequest, tag="permissions list"):
    """The permissions, and those for routing keys."""

    user: str = ""
    vhost: str = ""

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        yield None
        administration.check_names(self.user, self.vhost)
        return {
            "permissions": administration.permissions.all(self.user, self.vhost),
            "topic_permissions": administration.permissions.all_topics(self.user, self.vhost),
        }


class SetPermission(OperatorRequest, tag="permissions set"):
    """Set the permissions of a user."""

    permission: Permission

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.permissions.set(by, self.permission)


class ClearPermission(OperatorRequest, tag="permissions clear"):
    """Take all permissions in a virtual host from a user."""

    user: str
    vhost: str

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.permissions.clear(by, self.user, self.vhost)


class SetTopicPermission(OperatorRequest, tag="permissions set-topic"):
    """Restrict the routing keys of a user at an exchange."""

    permission: TopicPermission

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.permissions.set_topic(by, self.permission)


class ClearTopicPermission(OperatorRequest, tag="permissions clear-topic"):
    """Remove the restriction of routing keys at an exchange, or at all."""

    user: str
    vhost: str
    exchange: str | None = None

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.permissions.clear_topics(by, self.user, self.vhost, self.exchange)


class ListPolicies(OperatorRequest, tag="policies list"):
    """The policies, or the operator policies."""

    vhost: str = ""
    operator: bool = False

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        yield None
        administration.check_names(vhost=self.vhost)
        return administration.policies.all(self.vhost, operator=self.operator)


class SetPolicy(OperatorRequest, tag="policies set"):
    """Add a policy, or change it."""

    policy: PolicyDefinition
    operator: bool = False

    def done(self, administration: Administration, by: By) -> Work[Any]:
        policy = self.policy
        yield from administration.policies.set(by, policy, operator=self.operator)
        noted = policy_notes(policy.apply_to, dict(policy.settings), operator=self.operator)
        return {"notes": noted}


class ClearPolicy(OperatorRequest, tag="policies clear"):
    """Remove a policy."""

    vhost: str
    name: str
    operator: bool = False

    def done(self, administration: Administration, by: By) -> Work[Any]:
        yield from administration.policies.clear(by, self.vhost, self.name, operator=self.operator)


class Explain(OperatorRequest, tag="exchanges explain"):
    """Ask where a message would go, and why."""

    vhost: str
    exchange: str
    routing_key: str
    properties: dict[str, Any] = msgspec.field(default_factory=dict)

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        yield None
        return administration.explain(self.vhost, self.exchange, self.routing_key, self.properties)


class ExportDefinitions(OperatorRequest, tag="definitions export"):
    """The definitions of everything, or of one virtual host."""

    vhost: str = ""

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        if self.vhost:
            administration.changes.check_vhost(self.vhost)
        found = yield from export_definitions(
            administration, administration.broker, administration.all_users, self.vhost
        )
        return found


class ImportDefinitions(OperatorRequest, tag="definitions import"):
    """Add and change what a file says; with `vhost`, a file of one virtual host."""

    content: Any
    vhost: str = ""
    source: str = "definitions"

    def __repr__(self) -> str:
        """Leave out the content, which has passwords."""
        return f"ImportDefinitions(source={self.source!r})"

    def done(self, administration: Administration, by: By) -> Work[Any]:
        if self.vhost:
            administration.changes.check_vhost(self.vhost)
        content, notes = of_vhost(self.content, self.vhost) if self.vhost else (self.content, [])
        definitions = yield partial(definitions_of, content, self.source)
        definitions.notes += notes
        left_out = yield from administration.import_definitions(by, definitions)
        return {"left_out": left_out, "notes": notes_of(definitions)}


_IMPORT = re.compile(rb'\s*\{\s*"do"\s*:\s*"definitions import"')
"""The beginning of the one request that may have as many entries as a file of definitions."""

_Request: TypeAlias = (
    ListUsers
    | SetUser
    | DeleteUser
    | SetUserLimits
    | SetVhostLimits
    | ListVhosts
    | AddVhost
    | SetTracing
    | DeleteVhost
    | ListPermissions
    | SetPermission
    | ClearPermission
    | SetTopicPermission
    | ClearTopicPermission
    | ListPolicies
    | SetPolicy
    | ClearPolicy
    | Explain
    | ExportDefinitions
    | ImportDefinitions
    | ListConnections
    | CloseConnections
    | BrowseMessages
    | MoveMessages
    | CopyMessages
    | DeleteMessages
    | ReplayMessages
    | UndoPurge
    | ProvenanceOfMessage
    | ProvenanceOfId
)


def carried_out(content: bytes, administration: Administration, by: By) -> Work[Any]:
    """Carry out a request in JSON.

    Raises: AdministrationError, DefinitionsError (nothing is changed then), DiskFullError,
    DurabilityError.
    """
    most = MAX_DEFINITION_ENTRIES if _IMPORT.match(content) else MAX_BODY_ENTRIES
    try:
        request = yield from decoding("the request", content, most, _request_in)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # What a struct of the definitions says of its fields says enough.
        reason = error.__cause__ or f"not a request: {error}"
        raise AdministrationError(str(reason)) from None
    except ValueError as error:
        raise AdministrationError(str(error)) from None
    try:
        return (yield from request.done(administration, by))
    except ValueError as error:
        # What the structs of the definitions say of their fields.
        raise AdministrationError(str(error)) from None


def _request_in(content: bytes) -> _Request:
    request: _Request = msgspec.convert(json_of(content), _Request)
    return request
