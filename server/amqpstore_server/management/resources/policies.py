"""Policies and operator policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from amqpstore_server.administration.definitions import PolicyDefinition
from amqpstore_server.broker.definitions.accepted import policy_notes
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import not_found, validating
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute


class PolicyBody(msgspec.Struct):
    """A policy without its name."""

    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: str = msgspec.field(name="apply-to", default="all")


def _rows(call: Call, *, operator: bool) -> list[dict[str, Any]]:
    administration = call.context.administration
    if "vhost" in call.path:
        rows = administration.policies.all(call.path["vhost"], operator=operator)
    else:
        visible = set(call.identity.visible_vhosts())
        rows = [
            row for row in administration.policies.all(operator=operator) if row["vhost"] in visible
        ]
    for row in rows:
        if noted := policy_notes(row["apply-to"], row["definition"], operator=operator):
            row["notes"] = noted
    return rows


def _handlers(*, operator: bool) -> dict[str, Callable[[Call], Awaitable[Answer]]]:
    """Return the handlers for policies, or for operator policies."""

    async def list_policies(call: Call) -> Answer:
        """Return policies."""
        return await call.listed(_rows(call, operator=operator), MADE)

    async def get_policy(call: Call) -> Answer:
        """Return a policy."""
        for row in _rows(call, operator=operator):
            if row["name"] == call.path["policy"]:
                return await call.row(row, MADE)
        raise not_found(f"no policy '{call.path['policy']}'")

    async def put_policy(call: Call) -> Answer:
        """Set a policy."""
        body = await call.body(PolicyBody)
        vhost, name = call.path["vhost"], call.path["policy"]
        call.context.administration.changes.check_vhost(vhost)
        present = call.vhost.policies.all(operator=operator)
        is_new = all(policy.name != name for policy in present)
        with validating():
            asked = PolicyDefinition(
                vhost=vhost,
                name=name,
                pattern=body.pattern,
                apply_to=body.apply_to,
                priority=body.priority,
                settings=body.definition,
            )
            await call.carry_out(
                call.context.administration.policies.set(call.by, asked, operator=operator)
            )
        call.note(policy_notes(body.apply_to, body.definition, operator=operator))
        return created() if is_new else no_content()

    async def delete_policy(call: Call) -> Answer:
        """Remove a policy."""
        administration = call.context.administration
        vhost, name = call.path["vhost"], call.path["policy"]
        await call.carry_out(administration.policies.clear(call.by, vhost, name, operator=operator))
        return no_content()

    return {
        "LIST": list_policies,
        "GET": get_policy,
        "PUT": put_policy,
        "DELETE": delete_policy,
    }


def _routes(path: str, what: str, changing: Needs, *, operator: bool) -> tuple[ApiRoute, ...]:
    handlers = _handlers(operator=operator)
    item_path = path + "/{vhost}/{policy}"
    looking = Needs.POLICYMAKER
    return (
        ApiRoute("GET", path, handlers["LIST"], f"The {what}", looking, query=LIST_QUERY),
        ApiRoute("GET", path + "/{vhost}", handlers["LIST"], what, looking, query=LIST_QUERY),
        ApiRoute("GET", item_path, handlers["GET"], f"One of the {what}", looking),
        ApiRoute(
            "PUT",
            item_path,
            handlers["PUT"],
            f"Set one of the {what}",
            changing,
            PolicyBody,
            statuses=(201, 204),
        ),
        ApiRoute(
            "DELETE",
            item_path,
            handlers["DELETE"],
            f"Clear one of the {what}",
            changing,
            statuses=(204,),
        ),
    )


ROUTES = (
    *_routes("/api/policies", "policies", Needs.POLICYMAKER, operator=False),
    *_routes("/api/operator-policies", "operator policies", Needs.ADMINISTRATOR, operator=True),
)
