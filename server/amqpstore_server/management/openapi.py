"""The description of the API for OpenAPI 3.1, from the same routes as the application."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from amqpstore_server.management.answers import JSON
from amqpstore_server.management.guard import SAFE_METHODS
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import QUERY_TYPES, ApiRoute, in_order

_ROWS = {"type": "array", "items": {"type": "object"}}
_COUNTS = ("total_count", "item_count", "filtered_count", "page", "page_size", "page_count")


def _of_texts(*names: str) -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in names}
    return {"type": "object", "required": [*names], "properties": texts}


_COMPONENTS: dict[str, Any] = {
    "Error": _of_texts("error", "reason"),
    "FailedCheck": _of_texts("status", "reason"),
    "Page": {
        "type": "object",
        "required": [*_COUNTS, "items"],
        "properties": {
            **{name: {"type": "integer", "minimum": 0} for name in _COUNTS},
            "items": _ROWS,
        },
    },
}
_REFUSALS = {
    400: "The request is not valid",
    401: "Without a login, or the user may not do this",
    403: "Sent by a page of another site",
    404: "Something that it names does not exist",
    408: "The body takes too long",
    409: "Another request is doing this",
    413: "The body is too large",
    415: "The body has a content coding",
    503: "Not now: publishers are blocked, the disk is full, or a check failed",
}
_NO_WORD = re.compile(r"[^a-zA-Z0-9]+")
_SCHEMAS = "#/components/schemas/"


def description(routes: Iterable[ApiRoute], version: str) -> dict[str, Any]:
    """Return the description of these routes."""
    routes = in_order(routes)
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_SCHEMAS + "{name}")
    schema_of = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        schema = None if route.body is None else schema_of[route.body]
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "amqpstore",
            "version": version,
            "description": "The HTTP API of the broker, compatible with RabbitMQ's.",
        },
        "paths": paths,
        "components": {
            "schemas": {**_COMPONENTS, **components},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"basic": []}, {"bearer": []}],
    }


def _operation(route: ApiRoute, schema: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _NO_WORD.sub("_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "description": f"Needs {route.needs.value}.",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.parameters
        ]
        + [
            {"name": name, "in": "query", "schema": QUERY_TYPES.get(name, {"type": "string"})}
            for name in route.query
        ],
        "responses": {
            **{str(status): _response(status, route) for status in route.statuses},
            **{str(status): _refusal(status, route) for status in _refusals(route)},
        },
    }
    if route.needs is Needs.NOTHING:
        operation["security"] = []
    if schema is not None:
        operation["requestBody"] = {"content": {JSON: {"schema": schema}}}
    return operation


def _response(status: int, route: ApiRoute) -> dict[str, Any]:
    if status in (201, 204):
        return {"description": "Created" if status == 201 else "Changed"}
    schema: dict[str, Any] = {"type": "string"}
    if "page" in route.query:
        schema = {"anyOf": [_ROWS, {"$ref": f"{_SCHEMAS}Page"}]}
    elif route.media_type == JSON:
        schema = _ROWS if route.is_list else {"type": "object"}
    return {"description": "OK", "content": {route.media_type: {"schema": schema}}}


def _refusals(route: ApiRoute) -> list[int]:
    """Return the statuses of the errors that a route may answer with."""
    statuses = {400, *route.refusals}
    if route.needs is not Needs.NOTHING:
        statuses.add(401)
    if route.parameters or route.body is not None:
        statuses.add(404)
    if route.body is not None:
        statuses |= {408, 413, 415}
    if route.method not in SAFE_METHODS:
        statuses |= {403, 503}
    return sorted(statuses)


def _refusal(status: int, route: ApiRoute) -> dict[str, Any]:
    name = "FailedCheck" if status == 503 and route.method == "GET" else "Error"
    content = {JSON: {"schema": {"$ref": f"{_SCHEMAS}{name}"}}}
    return {"description": _REFUSALS[status], "content": content}
