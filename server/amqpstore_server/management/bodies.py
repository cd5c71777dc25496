"""The bodies of requests: JSON of a limited size that arrives in a limited time."""

from __future__ import annotations

import codecs
import contextlib
import email.parser
import email.policy
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request

from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.ticking import in_time

_READ_S = 30.0
_FORM = "multipart/form-data"
_SMALL_BYTES = 256 << 10
_IN_THREAD_BYTES = 64 << 10

BodyT = TypeVar("BodyT")


class NoBody(msgspec.Struct):
    """What a route reads that has no body."""


async def read_body(request: Request, max_bytes: int, large: trio.Semaphore) -> bytes:
    """Return the whole body. Raises: HttpError.

    Args: large, of which a body that is not small takes one: many of them at once would take more
    memory than there is.
    """
    content = await _read(request, max_bytes, large)
    # What it says to be does not matter otherwise: it is JSON. Pages of other sites, which could
    # send it as a form, are refused before (`guard`).
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() == _FORM:
        content = file_in(content, kind)
    return content.removeprefix(codecs.BOM_UTF8)


def file_in(content: bytes, kind: str) -> bytes:
    """Return the file in a form, or its only field. Raises: HttpError."""
    head = b"content-type: " + kind.encode("latin-1", "replace") + b"\r\n\r\n"
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + content)
    parts = [one for one in form.walk() if not one.is_multipart()]
    files = [one for one in parts if one.get_filename() is not None]
    if not form.is_multipart() or len(files or parts) != 1:
        raise bad_request("a form must have one file")
    found = (files or parts)[0].get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


async def read_form(request: Request, max_bytes: int) -> bytes:
    """Return the body of a form of a page. Raises: HttpError."""
    return await _read(request, max_bytes, trio.Semaphore(1))


async def _read(request: Request, max_bytes: int, large: trio.Semaphore) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        return await in_time(_READ_S, partial(_received, request, max_bytes, large))
    except trio.TooSlowError:
        text = f"the body took more than {_READ_S:.0f} s"
        raise HttpError(408, "request_timeout", text) from None


async def _received(request: Request, max_bytes: int, large: trio.Semaphore) -> bytes:
    received = bytearray()
    async with contextlib.AsyncExitStack() as stack:
        try:
            async for chunk in request.stream():
                if len(received) <= _SMALL_BYTES < len(received) + len(chunk):
                    await stack.enter_async_context(large)
                received += chunk
                if len(received) > max_bytes:
                    raise _too_large(max_bytes)
        except ClientDisconnect:
            raise bad_request("the body is incomplete") from None
    return bytes(received)


async def decoded(content: bytes, kind: type[BodyT]) -> tuple[dict[str, Any], BodyT]:
    """Return the content of a body, an object of JSON, as it is, and as a value of a type. An empty
    one, or null, is an empty object, as in RabbitMQ. Raises: HttpError.
    """
    if content.strip() in (b"", b"null", b"undefined"):
        content = b"{}"
    if len(content) <= _IN_THREAD_BYTES:
        return _decoded(content, kind)
    return await trio.to_thread.run_sync(_decoded, content, kind)


def _decoded(content: bytes, kind: type[BodyT]) -> tuple[dict[str, Any], BodyT]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(found, dict):
        raise bad_request("the body must be an object of JSON")
    try:
        return found, msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise bad_request(str(error)) from None


def _too_large(max_bytes: int) -> HttpError:
    return bad_request(f"Exceeded HTTP request body size limit of {max_bytes} bytes")
