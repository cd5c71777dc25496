"""Answers: JSON, encoded in steps, and the headers that every answer has."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import trio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amqpstore_server.broker.definitions.accepted import shortened
from amqpstore_server.management.errors import OBJECT_NOT_FOUND, HttpError
from amqpstore_server.management.steps import InSteps

JSON = "application/json"

_WEIGHT = re.compile(r"0(\.[0-9]{0,9})?|1(\.0{0,9})?")

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers that every answer has, unless it sets another value: nothing is kept, guessed, framed or
run.
"""

_ROWS_AT_ONCE = 50
_SENT_AT_ONCE = 64 << 10
_WORTH_BYTES = 1 << 10
_IN_THREAD_BYTES = 64 << 10
_LEVEL = 1
"""Lists become a twentieth or less by any level, and the others take several times as long."""

Answer = Response
"""The result of a handler."""


class Pieces(Response):
    """An answer whose content was made in pieces, and is sent so: the event loop is not held up
    while it is put together.
    """

    def __init__(
        self, pieces: Sequence[bytes], status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(None, status, dict(headers), media_type)
        self._pieces = pieces
        self.headers["content-length"] = str(sum(map(len, pieces)))

    @property
    def content(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer, as an ASGI application."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        parts = _sent_together(self._pieces)
        part = next(parts, b"")
        for following in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = following
        await send({"type": "http.response.body", "body": part, "more_body": False})


def _sent_together(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts of a good size: under load each of them waits for a turn of the
    event loop, or for several.
    """
    part = b""
    for piece in pieces:
        for first in range(0, len(piece), _SENT_AT_ONCE):
            if len(part) >= _SENT_AT_ONCE:
                yield part
                part = b""
            part += piece[first : first + _SENT_AT_ONCE]
    yield part


async def json_answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return an answer with a value as JSON. A long list, or one in an object, is encoded in
    steps.
    """
    return Pieces(await encoded(value), status, headers or {}, JSON)


async def encoded(value: Any) -> list[bytes]:
    """Return a value as JSON, in pieces."""
    steps = InSteps()
    if isinstance(value, list):
        return await _encoded_list(value, steps)
    if not isinstance(value, dict) or not any(map(_is_long, value.values())):
        return [encode(value)]
    pieces = []
    opening = b"{"
    for name, item in value.items():
        pieces.append(opening + encode(name) + b":")
        opening = b","
        pieces += await _encoded_list(item, steps) if _is_long(item) else [encode(item)]
    pieces.append(b"}")
    return pieces


async def _encoded_list(rows: list[Any], steps: InSteps) -> list[bytes]:
    if len(rows) <= _ROWS_AT_ONCE:
        return [encode(rows)]
    pieces = []
    opening = b"["
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = encode(rows[first : first + _ROWS_AT_ONCE])
        pieces.append(opening + part[1:-1])
        opening = b","
        await steps.pause()
    pieces.append(b"]")
    return pieces


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > _ROWS_AT_ONCE


def encode(value: Any) -> bytes:
    """Return a value as JSON: in one go, so it has to be a small one."""
    return msgspec.json.encode(value, enc_hook=_other)


def _other(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


async def compressed(answer: Answer, headers: Headers) -> Answer:
    """Return an answer as gzip, if a client accepts that, as the `headers` of its request say, and
    the content is worth it.
    """
    size = int(answer.headers.get("content-length", 0))
    if size < _WORTH_BYTES or "content-encoding" in answer.headers:
        return answer
    answer.headers["vary"] = "accept-encoding"
    # A proxy may have made a header of each coding.
    if not _accepts_gzip(",".join(headers.getlist("accept-encoding"))):
        return answer
    content = content_of(answer)
    if len(content) > _IN_THREAD_BYTES:
        packed = await trio.to_thread.run_sync(_gzip, content)
    else:
        packed = _gzip(content)
    fields = {**answer.headers, "content-encoding": "gzip"}
    kind = fields.pop("content-type", "")
    return Pieces([packed], answer.status_code, fields, kind)


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, _LEVEL, mtime=0)


def _accepts_gzip(accepted: str) -> bool:
    """Tell whether a client accepts gzip, and does not prefer to get the content as it is."""
    weights = {}
    for part in accepted.lower().split(","):
        name, *parameters = (one.strip() for one in part.split(";"))
        # An old name for the same: RFC 9110, 8.4.1.3.
        weights["gzip" if name == "x-gzip" else name] = _weight(parameters)
    weight = weights.get("gzip", weights.get("*", 0.0))
    return weight > 0 and weight >= weights.get("identity", 0.0)


def _weight(parameters: Iterable[str]) -> float:
    """Return the weight of a coding (RFC 9110, 12.4.2). With one that is not a weight it counts as
    not accepted: every client can read the content as it is.
    """
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip() == "q":
            return float(value) if _WEIGHT.fullmatch(value.strip()) else 0.0
    return 1.0


def content_of(answer: Answer) -> bytes:
    """Return what an answer would send."""
    return answer.content if isinstance(answer, Pieces) else bytes(answer.body)


def error_answer(error: HttpError) -> Answer:
    """Return the answer for a refusal."""
    shown = {"error": error.error, "reason": error.reason}
    if error.error == OBJECT_NOT_FOUND:
        shown |= {"reason": "Not Found", "detail": error.reason}
    return Response(encode(shown), error.status, error.headers, JSON)


NOTES = "x-amqpstore-notes"
"""The header of an answer that says what was taken and has no effect."""


def no_content() -> Answer:
    """Return the answer for a change of something that there was."""
    return Response(status_code=204)


def created(location: str = "") -> Answer:
    """Return the answer for something new."""
    headers = {"location": location} if location else {}
    return Response(status_code=201, headers={**headers, "content-length": "0"})


def noted(answer: Answer, notes: Sequence[str]) -> Answer:
    """Return an answer that says what of the request has no effect."""
    if notes:
        text = "; ".join(shortened(notes))
        # Names may be anything that a header may not have.
        plain = text.encode("ascii", "backslashreplace").decode()
        answer.headers[NOTES] = plain.translate(_NO_CONTROLS)
    return answer


_NO_CONTROLS = dict.fromkeys((*range(32), 127), "?")
