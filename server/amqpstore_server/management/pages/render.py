"""Templates: everything that is put into one is escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from starlette.responses import HTMLResponse

from amqpstore_server.management.pages import formats
from amqpstore_server.management.pages.visible import marked_name, sentence, with_marks
from amqpstore_server.management.path_names import segment

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # What a page posts says where it comes from, to this door alone.
    "referrer-policy": "same-origin",
}

_TEMPLATES = Environment(
    loader=PackageLoader("amqpstore_server.management.pages"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a row of the API does not have is empty on the page.
    undefined=ChainableUndefined,
)
_TEMPLATES.filters |= {
    "bytes": formats.size,
    "duration": formats.duration,
    "flags": formats.flags,
    "json": formats.json,
    "marked": marked_name,
    "moment": formats.moment,
    "moment_of_seconds": formats.moment_of_seconds,
    "number": formats.number,
    "rate": formats.rate,
    "segment": segment,
    "sentence": sentence,
    "state": formats.state,
}


def page(template: str, values: dict[str, Any], status: int = 200) -> HTMLResponse:
    """Return a page, written from a template."""
    content = _TEMPLATES.get_template(template).render(values)
    return HTMLResponse(with_marks(content), status, PAGE_HEADERS)


def compile_templates() -> None:
    """Compile all templates: the first page would wait for its own."""
    for name in _TEMPLATES.list_templates():
        _TEMPLATES.get_template(name)
