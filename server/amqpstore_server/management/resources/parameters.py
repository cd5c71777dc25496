"""Parameters of components, and those of no virtual host."""

from __future__ import annotations

from typing import Any

import msgspec

from amqpstore_server.administration import parameters as kept
from amqpstore_server.administration.definitions import (
    OPERATOR_POLICY,
    GlobalParameter,
    ParameterDefinition,
    PolicyDefinition,
)
from amqpstore_server.administration.unread_fields import unread_of_body
from amqpstore_server.broker.definitions.accepted import global_parameter_notes, policy_notes
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request, not_found, validating
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute


class ParameterBody(msgspec.Struct):
    """A parameter without its name."""

    value: Any


def _rows(call: Call) -> list[dict[str, Any]]:
    visible = set(call.identity.visible_vhosts())
    found = kept.parameters(
        call.context.administration, call.path.get("vhost", ""), call.path.get("component", "")
    )
    return [row for row in found if row["vhost"] in visible]


async def list_parameters(call: Call) -> Answer:
    """Return parameters."""
    return await call.listed(_rows(call), MADE, ("component", "vhost", "name"))


def _found(call: Call) -> dict[str, Any] | None:
    name = call.path["parameter"]
    return next((row for row in _rows(call) if row["name"] == name), None)


async def get_parameter(call: Call) -> Answer:
    """Return a parameter."""
    row = _found(call)
    if row is None:
        raise not_found(f"no parameter '{call.path['parameter']}'")
    return await call.row(row, MADE)


async def put_parameter(call: Call) -> Answer:
    """Set a parameter."""
    body = await call.body(ParameterBody)
    is_new = _found(call) is None
    with validating():
        asked = ParameterDefinition(
            component=call.path["component"],
            vhost=call.path["vhost"],
            name=call.path["parameter"],
            value=body.value,
        )
        await call.carry_out(kept.set_parameter(call.context.administration, call.by, asked))
        if asked.component == OPERATOR_POLICY and isinstance(body.value, dict):
            call.note_fields(unread_of_body(body.value, PolicyDefinition, call.path))
            settings = asked.operator_policy
            call.note(policy_notes(settings.apply_to, dict(settings.settings), operator=True))
    return created() if is_new else no_content()


async def delete_parameter(call: Call) -> Answer:
    """Remove a parameter."""
    vhost, component, name = (call.path[one] for one in ("vhost", "component", "parameter"))
    administration = call.context.administration
    await call.carry_out(kept.clear_parameter(administration, call.by, vhost, component, name))
    return no_content()


async def list_global(call: Call) -> Answer:
    """Return the parameters of no virtual host."""
    rows = [{"name": name, "value": value} for name, value in _global(call).items()]
    return await call.listed(rows, MADE, ("name",))


def _global(call: Call) -> dict[str, Any]:
    """Return all parameters of no virtual host: one that RabbitMQ's clients expect is made up."""
    broker = call.context.broker
    return {
        "internal_cluster_id": broker.global_parameters.cluster_id,
        **broker.global_parameters.values,
    }


async def get_global(call: Call) -> Answer:
    """Return a parameter of no virtual host."""
    name = call.path["parameter"]
    found = _global(call)
    if name not in found:
        raise not_found(f"no global parameter '{name}'")
    return await call.row({"name": name, "value": found[name]}, MADE)


async def put_global(call: Call) -> Answer:
    """Set a parameter of no virtual host."""
    body = await call.body(ParameterBody)
    name = call.path["parameter"]
    is_new = name not in call.context.broker.global_parameters.values
    try:
        asked = GlobalParameter(name=name, value=body.value)
    except ValueError as error:
        raise bad_request(str(error)) from None
    await call.carry_out(kept.set_global_parameter(call.context.administration, call.by, asked))
    call.note(global_parameter_notes(name))
    return created() if is_new else no_content()


async def delete_global(call: Call) -> Answer:
    """Remove a parameter of no virtual host."""
    administration, name = call.context.administration, call.path["parameter"]
    await call.carry_out(kept.clear_global_parameter(administration, call.by, name))
    return no_content()


_POLICYMAKER = Needs.POLICYMAKER
_LIST = "/api/parameters"
_ONE = "/api/parameters/{component}/{vhost}/{parameter}"
_GLOBAL = "/api/global-parameters/{parameter}"

ROUTES = (
    ApiRoute("GET", _LIST, list_parameters, "The parameters", _POLICYMAKER, query=LIST_QUERY),
    ApiRoute(
        "GET",
        _LIST + "/{component}",
        list_parameters,
        "The parameters of a component",
        _POLICYMAKER,
        query=LIST_QUERY,
    ),
    ApiRoute(
        "GET",
        _LIST + "/{component}/{vhost}",
        list_parameters,
        "The parameters of a component in a virtual host",
        _POLICYMAKER,
        query=LIST_QUERY,
    ),
    ApiRoute("GET", _ONE, get_parameter, "A parameter", _POLICYMAKER),
    ApiRoute(
        "PUT",
        _ONE,
        put_parameter,
        "Set a parameter",
        Needs.ADMINISTRATOR,
        ParameterBody,
        statuses=(201, 204),
    ),
    ApiRoute(
        "DELETE", _ONE, delete_parameter, "Clear a parameter", Needs.ADMINISTRATOR, statuses=(204,)
    ),
    ApiRoute(
        "GET",
        "/api/global-parameters",
        list_global,
        "The global parameters",
        _POLICYMAKER,
        query=LIST_QUERY,
    ),
    ApiRoute("GET", _GLOBAL, get_global, "A global parameter", _POLICYMAKER),
    ApiRoute(
        "PUT",
        _GLOBAL,
        put_global,
        "Set a global parameter",
        _POLICYMAKER,
        ParameterBody,
        statuses=(201, 204),
    ),
    ApiRoute(
        "DELETE", _GLOBAL, delete_global, "Clear a global parameter", _POLICYMAKER, statuses=(204,)
    ),
)
