"""RabbitMQ's definitions file: users, virtual hosts, permissions, policies and topology, as JSON.

`rabbitmqctl export_definitions` and the management page write such files. This module reads and
checks one entry at a time; it does not check whether the things that an entry names exist, as an
export leaves out internal exchanges but not their bindings. Fields that nothing reads are noted,
except those that only say where a file comes from, such as `rabbit_version`.
"""

from __future__ import annotations

import codecs
import logging
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from amqpstore_server.administration.unread_fields import UnreadFields
from amqpstore_server.broker.definitions.accepted import STREAMS
from amqpstore_server.broker.rules.patterns import Pattern, PatternError
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.rules.settings import CLASSIC, DEFAULT_QUEUE_TYPE, PROTECTED, QUORUM
from amqpstore_server.logins.password_hashes import ARGON2, is_argon2
from amqpstore_server.protocol.bounds import (
    MAX_DEFINITION_ENTRIES,
    TooLargeError,
    check_fields,
    check_numbers,
    counting_json,
)

_log = logging.getLogger(__name__)

_SALT_BYTES = 4
_DIGEST_BYTES = {"rabbit_password_hashing_sha256": 32, "rabbit_password_hashing_sha512": 64}
_ALGORITHMS = (*_DIGEST_BYTES, ARGON2)
_APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", STREAMS, "exchanges")
_DESTINATION_TYPES = ("queue", "exchange")
_SHORTSTR_BYTES = 255
_UNDEFINED = "undefined"
"""The value that RabbitMQ writes for a default queue type that is not set."""

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"
"""The components that have parameters: see `administration.parameters`."""

MAX_VALUE_BYTES = 64 << 10
"""The most JSON of a parameter, a policy, the metadata of a virtual host or the tags of a user: all
of them are kept in memory, and listed together.
"""

_MAX_FILE_BYTES = 64 << 20
"""Enough for more than 100,000 queues with their bindings."""


class DefinitionsError(Exception):
    """The file cannot be used. The message names it, the place in it and what is expected there."""


# msgspec turns what `__post_init__` raises into an error that names the entry's place in the file.


class User(msgspec.Struct, kw_only=True):
    """A user with a `password` or its hash. Without both, `password_hash` is empty, and the user
    cannot log in with a password.

    `password_hash` is a salt of 4 bytes, followed by the result of `hashing_algorithm` on the salt
    and the password in UTF-8; or with `argon2`, which RabbitMQ does not have, its encoded form.
    """

    name: str
    password: str | None = None
    password_hash: bytes | None = None
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    listed_tags: list[str] | str = msgspec.field(name="tags", default_factory=list)
    limits: dict[str, int] | None = None

    def __post_init__(self) -> None:
        _check_named(self.name)
        _check_key_component("name", self.name)
        _check_one_of("hashing_algorithm", self.hashing_algorithm, _ALGORITHMS)
        check_numbers("limits", self.limits)
        _check_size("tags", self.listed_tags)
        if (self.password is None) == (self.password_hash is None):
            raise ValueError(f"user '{self.name}': expected either `password` or `password_hash`")
        if self.password == "":
            raise ValueError(f"user '{self.name}': expected a `password` that is not empty")
        if self.hashing_algorithm == ARGON2:
            if self.password_hash and not is_argon2(self.password_hash):
                raise ValueError(f"`password_hash` of user '{self.name}' is not one of argon2")
            return
        expected = _SALT_BYTES + _DIGEST_BYTES[self.hashing_algorithm]
        if self.password_hash and len(self.password_hash) != expected:
            raise ValueError(
                f"`password_hash` of user '{self.name}' has {len(self.password_hash)} bytes; "
                f"expected {expected} for {self.hashing_algorithm}, or none"
            )

    def __repr__(self) -> str:
        """Leave out the password and its hash, which must not get into logs and tracebacks."""
        return f"User(name={self.name!r}, tags={self.tags!r})"

    @property
    def tags(self) -> list[str]:
        """The tags; old versions write them as one text with commas."""
        if isinstance(self.listed_tags, str):
            return [tag for part in self.listed_tags.split(",") if (tag := part.strip())]
        return self.listed_tags


class VirtualHostDefinition(msgspec.Struct, kw_only=True):
    """A virtual host. Its description, tags and default type of queues may be in `metadata`, as new
    versions of RabbitMQ write them, or beside the name.
    """

    name: str
    description: str = ""
    listed_tags: list[str] | str = msgspec.field(name="tags", default_factory=list)
    metadata: dict[str, Any] = {}
    default_queue_type: str | None = None
    protected_from_deletion: bool = False

    def __post_init__(self) -> None:
        _check_named(self.name)
        _check_key_component("name", self.name)
        if self.metadata.get(PROTECTED) not in (None, True, False):
            raise ValueError(f"`{PROTECTED}` is {self.metadata[PROTECTED]!r}; expected a boolean")
        kind = self.all_metadata.get(DEFAULT_QUEUE_TYPE, CLASSIC)
        _check_one_of(DEFAULT_QUEUE_TYPE, kind, (CLASSIC, QUORUM))

    @property
    def all_metadata(self) -> dict[str, Any]:
        """The virtual host's `description`, `tags`, `default_queue_type` and
        `protected_from_deletion`, if it has them.
        """
        found: dict[str, Any] = {
            "description": self.description,
            "tags": self.listed_tags,
            DEFAULT_QUEUE_TYPE: self.default_queue_type,
            PROTECTED: self.protected_from_deletion,
        }
        for key in found:
            found[key] = self.metadata.get(key) or found[key]
        if isinstance(found["tags"], str):
            found["tags"] = [tag for part in found["tags"].split(",") if (tag := part.strip())]
        if found[DEFAULT_QUEUE_TYPE] == _UNDEFINED:
            del found[DEFAULT_QUEUE_TYPE]
        check_numbers("metadata", found)
        _check_size("metadata", found)
        return {key: value for key, value in found.items() if value}


class VirtualHostMetadata(msgspec.Struct, kw_only=True):
    """The metadata of a virtual host that is read."""

    description: str
    tags: list[str] | str
    default_queue_type: str
    protected_from_deletion: bool


class Permission(msgspec.Struct, kw_only=True):
    """The names that a user may configure, write to and read from in a virtual host, as
    expressions.

    They are searched for anywhere in the name. An empty one matches only the empty name.
    """

    user: str
    vhost: str
    configure: str
    write: str
    read: str

    def __post_init__(self) -> None:
        _check_key_component("user", self.user)
        _check_key_component("vhost", self.vhost)
        for name in ("configure", "write", "read"):
            owner = f"user '{self.user}' in vhost '{self.vhost}'"
            _check_expression(name, getattr(self, name), owner)


class TopicPermission(msgspec.Struct, kw_only=True):
    """The routing keys of a topic exchange that a user may publish and bind with.

    In the expressions, `{username}` and `{vhost}` stand for those of the connection.
    """

    user: str
    vhost: str
    exchange: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for name in ("write", "read"):
            owner = f"user '{self.user}' in vhost '{self.vhost}'"
            _check_expression(name, getattr(self, name), owner)


class PolicyDefinition(msgspec.Struct, kw_only=True):
    """A policy, or an operator policy, of a virtual host."""

    vhost: str
    name: str
    pattern: str
    apply_to: str = msgspec.field(name="apply-to", default="all")
    priority: int = 0
    settings: dict[str, Any] | list[tuple[str, Any]] = msgspec.field(name="definition")
    """By name. RabbitMQ 3.10 writes those of an operator policy as pairs."""

    def __post_init__(self) -> None:
        _check_named(self.name)
        _check_key_component("name", self.name)
        _check_expression("pattern", self.pattern, f"policy '{self.name}'")
        _check_one_of("apply-to", self.apply_to, _APPLY_TO)
        check_numbers("priority", self.priority)
        check_fields("definition", dict(self.settings))
        _check_size("definition", self.settings)

    @property
    def policy(self) -> Policy:
        """The policy as the broker keeps it."""
        return Policy(self.name, self.pattern, self.apply_to, self.priority, dict(self.settings))


class QueueDefinition(msgspec.Struct, kw_only=True):
    """A queue."""

    vhost: str
    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_named(self.name)
        check_shortstr("name", self.name)
        check_fields("arguments", self.arguments)


class ExchangeDefinition(msgspec.Struct, kw_only=True):
    """An exchange."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_named(self.name)
        check_shortstr("name", self.name)
        check_fields("arguments", self.arguments)


class BindingDefinition(msgspec.Struct, kw_only=True):
    """A binding from exchange `source` to a `destination` of type queue or exchange."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_one_of("destination_type", self.destination_type, _DESTINATION_TYPES)
        for name in ("source", "destination", "routing_key"):
            check_shortstr(name, getattr(self, name))
        check_fields("arguments", self.arguments)


class VirtualHostLimits(NamedTuple):
    """The limits of a virtual host, by RabbitMQ's names."""

    vhost: str
    limits: dict[str, int]


class ParameterDefinition(msgspec.Struct, kw_only=True):
    """A parameter of a component; the form of the value depends on which."""

    component: str
    vhost: str
    name: str
    value: Any

    def __post_init__(self) -> None:
        _check_named(self.name)
        for field in ("component", "name"):
            _check_key_component(field, getattr(self, field))
        check_numbers("value", self.value)

    @property
    def operator_policy(self) -> PolicyDefinition:
        """The operator policy that it is. Raises: msgspec.ValidationError."""
        value = self.value
        if isinstance(value, dict):
            value = {**value, "vhost": self.vhost, "name": self.name}
        return msgspec.convert(value, PolicyDefinition)

    @property
    def vhost_limits(self) -> VirtualHostLimits:
        """The limits that it is. Raises: msgspec.ValidationError, ValueError."""
        limits = msgspec.convert(self.value, dict[str, int])
        check_numbers("value", limits)
        return VirtualHostLimits(self.vhost, limits)


class GlobalParameter(msgspec.Struct, kw_only=True):
    """A parameter of no virtual host."""

    name: str
    value: Any

    def __post_init__(self) -> None:
        _check_named(self.name)
        _check_key_component("name", self.name)
        check_numbers("value", self.value)
        _check_size("value", self.value)


class LeftOut(NamedTuple):
    """An entry that is left out, and why; `vhost` and `name` are empty where it has none."""

    kind: str
    vhost: str
    name: str
    reason: str


class Definitions(msgspec.Struct, kw_only=True):
    """The parts of a file that are used, each list in the file's order. What cannot be used is
    `left_out`: one wrong entry does not keep the others out. `notes` say which fields nothing
    reads.
    """

    users: list[User] = []
    vhosts: list[VirtualHostDefinition] = []
    permissions: list[Permission] = []
    topic_permissions: list[TopicPermission] = []
    policies: list[PolicyDefinition] = []
    operator_policies: list[PolicyDefinition] = []
    vhost_limits: list[VirtualHostLimits] = []
    unknown_parameters: list[ParameterDefinition] = []
    global_parameters: list[GlobalParameter] = []
    queues: list[QueueDefinition] = []
    exchanges: list[ExchangeDefinition] = []
    bindings: list[BindingDefinition] = []
    left_out: list[LeftOut] = []
    notes: list[str] = []


class _Lists(msgspec.Struct, kw_only=True):
    """The lists of a file, whatever is in them."""

    users: list[Any] = []
    vhosts: list[Any] = []
    permissions: list[Any] = []
    topic_permissions: list[Any] = []
    policies: list[Any] = []
    parameters: list[Any] = []
    global_parameters: list[Any] = []
    queues: list[Any] = []
    exchanges: list[Any] = []
    bindings: list[Any] = []


_ENTRIES: dict[str, tuple[str, Any]] = {
    "users": ("user", User),
    "vhosts": ("vhost", VirtualHostDefinition),
    "permissions": ("permission", Permission),
    "topic_permissions": ("topic permission", TopicPermission),
    "policies": ("policy", PolicyDefinition),
    "global_parameters": ("global parameter", GlobalParameter),
    "queues": ("queue", QueueDefinition),
    "exchanges": ("exchange", ExchangeDefinition),
    "bindings": ("binding", BindingDefinition),
}
"""The lists of a file: what an entry is called, and its type."""


def load(path: str, max_bytes: int = _MAX_FILE_BYTES) -> Definitions:
    """Read the definitions in a file. Unsupported settings are logged as warnings.

    Raises: DefinitionsError.
    """
    try:
        read = _read(path, max_bytes)
        # Entries are counted before anything is built of them.
        for _ in counting_json("it", read, MAX_DEFINITION_ENTRIES):
            pass
        content = msgspec.json.decode(read)
    except OSError as error:
        raise DefinitionsError(f"cannot read the definitions {path}: {error.strerror}") from None
    except TooLargeError as error:
        raise DefinitionsError(f"cannot read the definitions {path}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DefinitionsError(f"{path} is not JSON: {error}") from None
    return definitions_of(content, path)


def definitions_of(content: Any, source: str) -> Definitions:
    """Return the definitions in the content of a file, which `source` names. Entries that cannot be
    used are left out, each with the reason.

    Raises: DefinitionsError, if it does not have the form of definitions at all.
    """
    try:
        lists = msgspec.convert(content, _Lists)
        definitions = Definitions()
        left_out = definitions.left_out = []
        unread = UnreadFields()
        unread.look("", _Lists, content)
        for name, (kind, entry_type) in _ENTRIES.items():
            entries = getattr(lists, name)
            setattr(definitions, name, list(_converted(name, kind, entry_type, entries, left_out)))
            for entry in entries:
                unread.look(kind, entry_type, entry)
        for vhost in definitions.vhosts:
            unread.look("metadata of vhost", VirtualHostMetadata, vhost.metadata, vhost.name)
        parameters = lists.parameters
        for number, entry in enumerate(parameters):
            _add_parameter(definitions, entry, f"$.parameters[{number}]")
            unread.look("parameter", ParameterDefinition, entry)
            if isinstance(entry, dict) and entry.get("component") == OPERATOR_POLICY:
                value, name = entry.get("value"), str(entry.get("name"))
                unread.look("operator policy", PolicyDefinition, value, name)
        definitions.notes = unread.notes()
    except msgspec.ValidationError as error:
        raise DefinitionsError(f"{source}: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise DefinitionsError(f"{source} is not JSON: {error}") from None
    return definitions


def _converted(
    list_name: str, kind: str, its_type: Any, entries: list[Any], left_out: list[LeftOut]
) -> Iterator[Any]:
    """Yield the entries of a list that have the right form."""
    for number, one in enumerate(entries):
        if isinstance(one, dict) and one.get("arguments") == []:
            one = {**one, "arguments": {}}  # as RabbitMQ writes an empty table in some versions
        try:
            yield msgspec.convert(one, its_type)
        except msgspec.ValidationError as error:
            left_out.append(_left_out(kind, one, f"$.{list_name}[{number}]", error))


def _add_parameter(definitions: Definitions, one: Any, path: str) -> None:
    """Add a parameter as what its component says that it is."""
    try:
        parameter = msgspec.convert(one, ParameterDefinition)
        path = f"{path}.value"
        if parameter.component == OPERATOR_POLICY:
            definitions.operator_policies.append(parameter.operator_policy)
        elif parameter.component == VHOST_LIMITS:
            definitions.vhost_limits.append(parameter.vhost_limits)
        else:
            definitions.unknown_parameters.append(parameter)
    except (msgspec.ValidationError, ValueError) as error:
        definitions.left_out.append(_left_out("parameter", one, path, error))


def _left_out(kind: str, one: Any, path: str, error: Exception) -> LeftOut:
    """Return an entry that is left out. Args: path, of the entry in the file."""
    message, found, inner = str(error).rpartition(" - at `$")
    reason = f"{message} - at `{path}{inner}" if found else f"{error} - at `{path}`"
    entry = one if isinstance(one, dict) else {}
    vhost, name = (
        value if isinstance(value := entry.get(key), str) else "" for key in ("vhost", "name")
    )
    return LeftOut(kind, vhost, name, reason)


def _read(path: str, max_bytes: int) -> bytes:
    """Raises: DefinitionsError, OSError."""
    # Neither a pipe, which may never end, nor a file that would not fit in memory.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DefinitionsError(f"cannot read the definitions {path}: it is not a regular file")
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DefinitionsError(
            f"cannot read the definitions {path}: it has more than {max_bytes >> 20} MiB"
        )
    return content.removeprefix(codecs.BOM_UTF8)


def _check_key_component(field: str, value: str) -> None:
    """Check a text that becomes part of a catalog key, where parts are separated by NUL."""
    check_shortstr(field, value)
    if "\0" in value:
        raise ValueError(f"`{field}` has a NUL; expected a name without")


def _check_named(name: str) -> None:
    if not name:
        raise ValueError("expected a `name` that is not empty")


def _check_one_of(field: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise ValueError(f"invalid `{field}` '{value}'; expected one of {', '.join(expected)}")


def check_shortstr(field: str, value: str) -> None:
    if len(value.encode(errors="replace")) > _SHORTSTR_BYTES:
        raise ValueError(f"`{field}` is too long; expected at most {_SHORTSTR_BYTES} bytes")


def _check_expression(field: str, expression: str, owner: str) -> None:
    try:
        Pattern(expression)
    except PatternError as error:
        raise ValueError(f"`{field}` of {owner}: {error}") from None


def _check_size(name: str, value: Any) -> None:
    """Raises: ValueError."""
    size = len(msgspec.json.encode(value))
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"`{name}` has {size} bytes as JSON; at most {MAX_VALUE_BYTES} are kept")
