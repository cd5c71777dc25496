"""Forms as requests to the API.

A form posts to `/act/METHOD/api/...`. What begins with a colon in that path, which no encoded name
does, is the value of a field; all other fields are the body, an object of JSON. The name of a field
says what it is: `arguments:json` is written as JSON, `properties:merge` the same, added to what is
there, `durable:flag` is a box that is ticked or not, `priority:number` is a number,
`positions:texts` are several texts, `tags:list` has commas between, and `password:optional` is left
out if it is empty. `properties.headers` is `headers` inside `properties`. `query:x` is a parameter
of the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
import trio
from starlette.requests import Request

from amqpstore_server.management.bodies import read_form
from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.management.pages.api import PageApi
from amqpstore_server.management.path_names import segment

METHODS = frozenset({"PUT", "POST", "DELETE"})
_MAX_FIELDS = 2000
_MAX_LEVELS = 8
"""How deep names may be nested: no field of a form is deeper."""
_IN_THREAD_BYTES = 16 << 10
_PARAMETER = re.compile(r"(?<=/):([a-z_]+)")


def fields_of(content: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form. Raises: HttpError."""
    try:
        return parse_qsl(
            content.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise bad_request("the form cannot be read") from None


async def read_fields(request: Request, max_bytes: int) -> list[tuple[str, str]]:
    """Return the fields of the form that is the body of a request. Raises: HttpError."""
    content = await read_form(request, max_bytes)
    if len(content) <= _IN_THREAD_BYTES:
        return fields_of(content)
    # A megabyte of `%41` takes a tenth of a second.
    return await trio.to_thread.run_sync(fields_of, content)


async def act(api: PageApi, method: str, path: str, fields: Sequence[tuple[str, str]]) -> Any:
    """Ask the API for what a form asks for, and return its answer. Raises: HttpError."""
    if method not in METHODS or not path.startswith("/api/"):
        raise HttpError(404, "not_found", "there is no such action")
    found = dict(fields)
    used = _PARAMETER.findall(path)
    target = _PARAMETER.sub(lambda match: segment(found.get(match[1], "")), path)
    if any(not found.get(name) for name in used):
        raise bad_request(f"{' and '.join(used)}: this cannot be empty")
    rest = [(name, value) for name, value in fields if name not in used]
    query = {name[6:]: value for name, value in rest if name.startswith("query:")}
    body = body_of([one for one in rest if not one[0].startswith("query:")])
    return await api.ask(method, target, urlencode(query), body if rest else None)


def body_of(fields: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
    """Return the body that the fields of a form mean. Raises: HttpError."""
    body: dict[str, Any] = {}
    for field, text in fields:
        name, _, kind = field.partition(":")
        inside = body
        *outer, last = name.split(".", _MAX_LEVELS)
        for part in outer:
            inside = inside.setdefault(part, {})
        if kind == "texts":
            inside.setdefault(last, []).append(text)
        elif kind == "merge":
            inside.setdefault(last, {}).update(_table(name, text or "{}"))
        elif text.strip() or kind not in _LEFT_OUT:
            inside[last] = _VALUES[kind](name, text)
    return body


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"{name} is not valid JSON: {error}") from None


def _table(name: str, text: str) -> dict[str, Any]:
    found = _json(name, text)
    if not isinstance(found, dict):
        raise bad_request(f"{name} is not an object of JSON")
    return found


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"{name} is not a number: '{text}'") from None


def _names(_name: str, text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


_VALUES: Mapping[str, Callable[[str, str], Any]] = {
    "": lambda _name, text: text,
    "optional": lambda _name, text: text,
    "flag": lambda _name, text: text == "true",
    "json": _json,
    "list": _names,
    "number": _number,
}
_LEFT_OUT = ("json", "number", "optional")
"""Arguments that are left out if their field is empty."""
