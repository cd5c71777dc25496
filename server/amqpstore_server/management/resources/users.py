"""Users and their permissions."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from amqpstore_server.administration.definitions import Permission, TopicPermission, User
from amqpstore_server.broker.definitions.accepted import field_note
from amqpstore_server.logins.password_hashes import hash_and_algorithm, salted_sha256
from amqpstore_server.logins.users import tag_notes
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute

_SHA256 = "rabbit_password_hashing_sha256"
_BY_USER = ("vhost", "user", "exchange")


class UserBody(msgspec.Struct):
    """The settings of a user: a password, or the hash of one, or neither for a user who cannot log
    in with one. Without `limits` it keeps those that it has.
    """

    tags: str | list[str] | None = None
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str = _SHA256
    limits: dict[str, int] | None = None


class PasswordBody(msgspec.Struct):
    """A password to hash."""

    password: str


class UserNames(msgspec.Struct):
    """Users by their names."""

    users: list[str]


class PermissionBody(msgspec.Struct):
    """The patterns of a permission."""

    configure: str
    write: str
    read: str


class TopicPermissionBody(msgspec.Struct):
    """The patterns of a permission for routing keys."""

    exchange: str
    write: str
    read: str


async def hash_password(call: Call) -> Answer:
    """Return the hash of a password as RabbitMQ's definitions have it."""
    return await _hashed(call, call.path["password"])


async def hash_password_in_body(call: Call) -> Answer:
    """Return the hash of the password in the body."""
    return await _hashed(call, (await call.body(PasswordBody)).password)


async def _hashed(call: Call, password: str) -> Answer:
    try:
        found = salted_sha256(password.encode())
    except UnicodeEncodeError:
        raise bad_request("a password must be text that UTF-8 can encode") from None
    return await call.json({"ok": base64.b64encode(found).decode()})


def user_row(call: Call, name: str) -> dict[str, Any]:
    """Return the row of a user."""
    row = call.context.users.row(name) or {}
    password_hash, algorithm = hash_and_algorithm(row)
    return {
        "name": name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(row.get("tags", [])),
        "limits": dict(call.context.users.limits_of(name)),
    }


def _user_in(call: Call) -> str:
    """Return the user in the path. Raises: HttpError."""
    name = call.path["user"]
    if call.context.users.row(name) is None:
        raise not_found(f"no user '{name}'")
    return name


async def list_users(call: Call) -> Answer:
    """Return all users."""
    rows = [user_row(call, name) for name in call.context.users.names]
    return await call.listed(rows, MADE, ("name",))


async def list_without_permissions(call: Call) -> Answer:
    """Return the users without any permission."""
    granted = {row["user"] for row in call.context.administration.permissions.all()}
    names = [name for name in call.context.users.names if name not in granted]
    return await call.listed([user_row(call, name) for name in names], MADE, ("name",))


async def get_user(call: Call) -> Answer:
    """Return a user."""
    return await call.row(user_row(call, _user_in(call)), MADE)


async def put_user(call: Call) -> Answer:
    """Add a user, or change it."""
    body = await call.body(UserBody)
    name = call.path["user"]
    is_new = call.context.users.row(name) is None
    if body.tags is None:
        raise bad_request("[{key_missing,tags}]")
    user = _user(name, body)
    await call.carry_out(call.context.administration.set_user(call.by, user))
    call.note(tag_notes(user.tags))
    if body.password is not None and body.hashing_algorithm != _SHA256:
        reason = "it is of `password_hash`, and a password is hashed with argon2"
        call.note_fields([field_note("hashing_algorithm", reason)])
    return created() if is_new else no_content()


def _user(name: str, body: UserBody) -> User:
    """Raises: HttpError."""
    assert body.tags is not None
    password_hash: bytes | None = None
    if body.password is None:
        try:
            password_hash = base64.b64decode(body.password_hash or "", validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("password_hash is not base64") from None
    elif body.password_hash is not None:
        raise bad_request("either password or password_hash")
    try:
        return User(
            name=name,
            password=body.password,
            password_hash=password_hash,
            hashing_algorithm=body.hashing_algorithm,
            listed_tags=body.tags,
            limits=body.limits,
        )
    except ValueError as error:
        raise bad_request(str(error)) from None


async def delete_user(call: Call) -> Answer:
    """Delete a user."""
    await call.carry_out(call.context.administration.delete_user(call.by, call.path["user"]))
    return no_content()


async def delete_users(call: Call) -> Answer:
    """Delete several users, if all of them exist."""
    names = (await call.body(UserNames)).users
    for name in names:
        if call.context.users.row(name) is None:
            raise bad_request(f"no_such_user: '{name}'")
    for name in dict.fromkeys(names):
        await call.carry_out(call.context.administration.delete_user(call.by, name))
    return no_content()


# Permissions.


async def list_permissions(call: Call) -> Answer:
    """Return the permissions: all of them, those of a user, or those in a virtual host."""
    rows = call.context.administration.permissions.all(*_asked(call))
    return await call.listed(rows, MADE, _BY_USER)


async def get_permission(call: Call) -> Answer:
    """Return the permissions of a user in a virtual host."""
    _vhost_and_user(call)
    rows = call.context.administration.permissions.all(call.path["user"], call.path["vhost"])
    if not rows:
        raise not_found("the user has no permissions in this virtual host")
    return await call.row(rows[0], MADE)


def _asked(call: Call) -> tuple[str, str]:
    """Return the user and the virtual host in the path, which exist; empty if it has none. Raises:
    HttpError, MissingError.
    """
    if vhost := call.path.get("vhost", ""):
        call.context.administration.changes.check_vhost(vhost)
    return _user_in(call) if "user" in call.path else "", vhost


def _vhost_and_user(call: Call) -> tuple[str, str]:
    """Return both, which exist. Raises: HttpError, MissingError."""
    call.context.administration.changes.check_vhost(call.path["vhost"])
    return call.path["vhost"], _user_in(call)


async def put_permission(call: Call) -> Answer:
    """Set the permissions of a user in a virtual host."""
    body = await call.body(PermissionBody)
    vhost, user = call.path["vhost"], call.path["user"]
    administration = call.context.administration
    is_known = vhost in call.context.broker.vhosts and call.context.users.row(user) is not None
    if not is_known:
        raise bad_request("vhost_or_user_not_found")
    is_new = not administration.permissions.all(user, vhost)
    try:
        asked = Permission(
            user=user, vhost=vhost, configure=body.configure, write=body.write, read=body.read
        )
    except ValueError as error:
        raise bad_request(str(error)) from None
    await call.carry_out(administration.permissions.set(call.by, asked))
    return created() if is_new else no_content()


async def delete_permission(call: Call) -> Answer:
    """Take all permissions in a virtual host from a user."""
    vhost, user = _vhost_and_user(call)
    await call.carry_out(call.context.administration.permissions.clear(call.by, user, vhost))
    return no_content()


async def list_topic_permissions(call: Call) -> Answer:
    """Return the permissions for routing keys, as `list_permissions`."""
    rows = call.context.administration.permissions.all_topics(*_asked(call))
    return await call.listed(rows, MADE, _BY_USER)


async def get_topic_permissions(call: Call) -> Answer:
    """Return the permissions for routing keys of a user in a virtual host."""
    vhost, user = _vhost_and_user(call)
    rows = call.context.administration.permissions.all_topics(user, vhost)
    if "exchange" in call.path:
        rows = [row for row in rows if row["exchange"] == call.path["exchange"]]
    if not rows:
        raise not_found("the user has no topic permissions in this virtual host")
    return await call.json(rows)


async def put_topic_permission(call: Call) -> Answer:
    """Restrict the routing keys of a user at an exchange."""
    body = await call.body(TopicPermissionBody)
    vhost, user = call.path["vhost"], call.path["user"]
    if vhost not in call.context.broker.vhosts or call.context.users.row(user) is None:
        raise bad_request("vhost_or_user_not_found")
    rows = call.context.administration.permissions.all_topics(user, vhost)
    is_new = all(row["exchange"] != body.exchange for row in rows)
    try:
        asked = TopicPermission(
            user=user, vhost=vhost, exchange=body.exchange, write=body.write, read=body.read
        )
    except ValueError as error:
        raise bad_request(str(error)) from None
    await call.carry_out(call.context.administration.permissions.set_topic(call.by, asked))
    return created() if is_new else no_content()


async def delete_topic_permissions(call: Call) -> Answer:
    """Remove the restrictions of routing keys at an exchange, or at all of them."""
    vhost, user = _vhost_and_user(call)
    exchange = call.path.get("exchange")
    administration = call.context.administration
    await call.carry_out(administration.permissions.clear_topics(call.by, user, vhost, exchange))
    return no_content()


_ADMINISTRATOR = Needs.ADMINISTRATOR
_USER = "/api/users/{user}"
_PERMISSION = "/api/permissions/{vhost}/{user}"
_TOPIC = "/api/topic-permissions/{vhost}/{user}"

ROUTES = (
    ApiRoute("GET", "/api/users", list_users, "The users", _ADMINISTRATOR, query=LIST_QUERY),
    ApiRoute(
        "GET",
        "/api/users/without-permissions",
        list_without_permissions,
        "The users without permissions",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "POST",
        "/api/users/bulk-delete",
        delete_users,
        "Delete users",
        _ADMINISTRATOR,
        UserNames,
        statuses=(204,),
    ),
    ApiRoute("GET", _USER, get_user, "A user", _ADMINISTRATOR),
    ApiRoute(
        "GET",
        "/api/auth/hash_password/{password}",
        hash_password,
        "The hash of a password for definitions; POST keeps it out of the logs of proxies",
        _ADMINISTRATOR,
    ),
    ApiRoute(
        "POST",
        "/api/auth/hash_password",
        hash_password_in_body,
        "The hash of a password for definitions",
        _ADMINISTRATOR,
        PasswordBody,
    ),
    ApiRoute("PUT", _USER, put_user, "Set a user", _ADMINISTRATOR, UserBody, statuses=(201, 204)),
    ApiRoute("DELETE", _USER, delete_user, "Delete a user", _ADMINISTRATOR, statuses=(204,)),
    ApiRoute(
        "GET",
        f"{_USER}/permissions",
        list_permissions,
        "The permissions of a user",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        f"{_USER}/topic-permissions",
        list_topic_permissions,
        "The topic permissions of a user",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        "/api/permissions",
        list_permissions,
        "The permissions",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        "/api/vhosts/{vhost}/permissions",
        list_permissions,
        "The permissions in a virtual host",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute("GET", _PERMISSION, get_permission, "The permissions of a user", _ADMINISTRATOR),
    ApiRoute(
        "PUT",
        _PERMISSION,
        put_permission,
        "Set permissions",
        _ADMINISTRATOR,
        PermissionBody,
        statuses=(201, 204),
    ),
    ApiRoute(
        "DELETE",
        _PERMISSION,
        delete_permission,
        "Clear permissions",
        _ADMINISTRATOR,
        statuses=(204,),
    ),
    ApiRoute(
        "GET",
        "/api/topic-permissions",
        list_topic_permissions,
        "The topic permissions",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        "/api/vhosts/{vhost}/topic-permissions",
        list_topic_permissions,
        "The topic permissions in a virtual host",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET", _TOPIC, get_topic_permissions, "Topic permissions", _ADMINISTRATOR, is_list=True
    ),
    ApiRoute(
        "PUT",
        _TOPIC,
        put_topic_permission,
        "Set a topic permission",
        _ADMINISTRATOR,
        TopicPermissionBody,
        statuses=(201, 204),
    ),
    ApiRoute(
        "DELETE",
        _TOPIC,
        delete_topic_permissions,
        "Clear topic permissions",
        _ADMINISTRATOR,
        statuses=(204,),
    ),
    ApiRoute(
        "GET",
        _TOPIC + "/{exchange}",
        get_topic_permissions,
        "A topic permission",
        _ADMINISTRATOR,
        is_list=True,
    ),
    ApiRoute(
        "DELETE",
        _TOPIC + "/{exchange}",
        delete_topic_permissions,
        "Clear a topic permission",
        _ADMINISTRATOR,
        statuses=(204,),
    ),
)
