"""Definitions: exported and imported, whole or those of one virtual host."""

from __future__ import annotations

from typing import Any

import trio

from amqpstore_server.administration.definitions import definitions_of
from amqpstore_server.administration.exporting import export_definitions, of_vhost
from amqpstore_server.administration.importing import notes_of
from amqpstore_server.broker.definitions.accepted import shortened
from amqpstore_server.management.answers import Answer, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute
from amqpstore_server.protocol.bounds import MAX_DEFINITION_ENTRIES

_DISPOSITION = "content-disposition"


async def export(call: Call) -> Answer:
    """Return the definitions."""
    vhost = call.path.get("vhost", "")
    context = call.context
    if vhost:
        context.administration.changes.check_vhost(vhost)
    found = await call.carry_out(
        export_definitions(context.administration, context.broker, context.users, vhost)
    )
    version = context.product.version
    versions = {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": context.product.name,
        "product_version": version,
    }
    headers = {_DISPOSITION: 'attachment; filename="definitions.json"'}
    return await call.json({**versions, **found}, headers=headers if call.query else None)


async def import_(call: Call) -> Answer:
    """Add and change what the definitions say. What is refused is in the log."""
    content = await call.body(dict[str, Any], MAX_DEFINITION_ENTRIES)
    vhost = call.path.get("vhost", "")
    notes: list[str] = []
    if vhost:
        call.context.administration.changes.check_vhost(vhost)
        content, notes = of_vhost(content, vhost)
    # It takes a tenth of a second for some ten thousand of them.
    definitions = await trio.to_thread.run_sync(definitions_of, content, "definitions")
    definitions.notes += notes
    left_out = await call.carry_out(
        call.context.administration.import_definitions(call.by, definitions)
    )
    call.note(notes_of(definitions))
    if left_out:
        return await call.json(
            {"error": "bad_request", "reason": f"left out: {'; '.join(shortened(left_out))}"}, 400
        )
    return no_content()


_ADMINISTRATOR = Needs.ADMINISTRATOR
_QUERY = ("download",)
_PATHS = ("/api/definitions", "/api/all-configuration", "/api/definitions/{vhost}")

ROUTES = tuple(
    route
    for path in _PATHS
    for route in (
        ApiRoute("GET", path, export, "Export definitions", _ADMINISTRATOR, query=_QUERY),
        ApiRoute(
            "POST",
            path,
            import_,
            "Import definitions",
            _ADMINISTRATOR,
            dict[str, Any],
            statuses=(204,),
        ),
    )
)
