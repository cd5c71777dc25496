"""The description of the API for OpenAPI 3.1, from the same routes as the application."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from amqpstore_server.management.answers import JSON
from amqpstore_server.management.routes import QUERY_TYPES, ApiRoute, Needs, in_order

_ERROR = {
    "type": "object",
    "required": ["error", "reason"],
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
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
            "schemas": {"Error": _ERROR, **components},
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
            **{str(status): _response(status, route.media_type) for status in route.statuses},
            "default": {
                "description": "Refused",
                "content": {JSON: {"schema": {"$ref": f"{_SCHEMAS}Error"}}},
            },
        },
    }
    if route.needs is Needs.NOTHING:
        operation["security"] = []
    if schema is not None:
        operation["requestBody"] = {"content": {JSON: {"schema": schema}}}
    return operation


def _response(status: int, media_type: str) -> dict[str, Any]:
    if status in (201, 204):
        return {"description": "Created" if status == 201 else "Changed"}
    return {"description": "OK", "content": {media_type: {}}}
