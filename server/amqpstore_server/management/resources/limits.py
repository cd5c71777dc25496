"""The limits of users and virtual hosts: see `broker.quotas`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from amqpstore_server.broker.definitions.accepted import NameScope, refusal
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.management.answers import Answer, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute


class LimitBody(msgspec.Struct):
    """A limit; a negative one is none."""

    value: int


async def list_vhost_limits(call: Call) -> Answer:
    """Return the limits of virtual hosts that have any, and of the default one: RabbitMQ keeps an
    entry for it, which may be empty, once its limits were set and removed, and clients expect it.
    """
    names = [call.path["vhost"]] if "vhost" in call.path else call.identity.visible_vhosts()
    rows = [
        {"vhost": name, "value": dict(limits)}
        for name in names
        if (limits := call.context.broker.vhosts[name].limits) or name == DEFAULT_VHOST
    ]
    return await call.listed(rows, MADE, ("vhost",))


async def put_vhost_limit(call: Call) -> Answer:
    """Set a limit of a virtual host."""
    body = await call.body(LimitBody)
    call.context.administration.changes.check_vhost(call.path["vhost"])
    limits = {**call.vhost.limits, _name(call, NameScope.VHOST_LIMIT): body.value}
    await _set_of_vhost(call, limits)
    return no_content()


async def delete_vhost_limit(call: Call) -> Answer:
    """Remove a limit of a virtual host."""
    call.context.administration.changes.check_vhost(call.path["vhost"])
    name = _name(call, NameScope.VHOST_LIMIT)
    await _set_of_vhost(call, {key: one for key, one in call.vhost.limits.items() if key != name})
    return no_content()


async def _set_of_vhost(call: Call, limits: Mapping[str, int]) -> None:
    administration = call.context.administration
    await call.carry_out(administration.set_vhost_limits(call.by, call.path["vhost"], limits))


def _name(call: Call, scope: NameScope) -> str:
    name = call.path["limit"]
    if reason := refusal(scope, [name]):
        raise bad_request(reason)
    return name


async def list_user_limits(call: Call) -> Answer:
    """Return the limits of users that have any."""
    users = call.context.users
    names = [_user(call)] if "user" in call.path else users.names
    rows: list[dict[str, Any]] = [
        {"user": name, "value": dict(limits)} for name in names if (limits := users.limits_of(name))
    ]
    return await call.listed(rows, MADE, ("user",))


def _user(call: Call) -> str:
    name = call.path["user"]
    if call.context.users.row(name) is None:
        raise not_found(f"no user '{name}'")
    return name


async def put_user_limit(call: Call) -> Answer:
    """Set a limit of a user."""
    body = await call.body(LimitBody)
    limits = call.context.users.limits_of(_user(call))
    await _set_of_user(call, {**limits, _name(call, NameScope.USER_LIMIT): body.value})
    return no_content()


async def delete_user_limit(call: Call) -> Answer:
    """Remove a limit of a user."""
    name = _name(call, NameScope.USER_LIMIT)
    limits = call.context.users.limits_of(_user(call))
    await _set_of_user(call, {key: one for key, one in limits.items() if key != name})
    return no_content()


async def _set_of_user(call: Call, limits: Mapping[str, int]) -> None:
    administration = call.context.administration
    await call.carry_out(administration.set_user_limits(call.by, call.path["user"], limits))


_VHOST = "/api/vhost-limits/{vhost}/{limit}"
_USER = "/api/user-limits/{user}/{limit}"
_ADMINISTRATOR = Needs.ADMINISTRATOR

ROUTES = (
    ApiRoute("GET", "/api/vhost-limits", list_vhost_limits, "Limits", query=LIST_QUERY),
    ApiRoute(
        "GET",
        "/api/vhost-limits/{vhost}",
        list_vhost_limits,
        "The limits of a virtual host",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "PUT", _VHOST, put_vhost_limit, "Set a limit", _ADMINISTRATOR, LimitBody, statuses=(204,)
    ),
    ApiRoute("DELETE", _VHOST, delete_vhost_limit, "Clear it", _ADMINISTRATOR, statuses=(204,)),
    ApiRoute(
        "GET", "/api/user-limits", list_user_limits, "Limits", _ADMINISTRATOR, query=LIST_QUERY
    ),
    ApiRoute(
        "GET",
        "/api/user-limits/{user}",
        list_user_limits,
        "The limits of a user",
        _ADMINISTRATOR,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "PUT", _USER, put_user_limit, "Set a limit", _ADMINISTRATOR, LimitBody, statuses=(204,)
    ),
    ApiRoute("DELETE", _USER, delete_user_limit, "Clear it", _ADMINISTRATOR, statuses=(204,)),
)
