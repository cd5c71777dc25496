"""The bodies of requests: JSON of a limited size that arrives in a limited time."""

from __future__ import annotations

import codecs
import contextlib
import email
import email.message
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request

from amqpstore_server.administration.large_json import decoding, json_of
from amqpstore_server.administration.work import Slow, carry_out
from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.process.ticking import in_time
from amqpstore_server.protocol.bounds import MAX_BODY_ENTRIES, TooLargeError

_READ_S = 30.0
_FORM = "multipart/form-data"
_SMALL_BYTES = 256 << 10
_MAX_PARTS = 8
_SHOWN_CODING = 40
"""The most characters of a content coding that an error repeats."""
_MAX_HEAD_BYTES = 1 << 10
"""The longest head of a part of a form."""

BodyT = TypeVar("BodyT")


class NoBody(msgspec.Struct):
    """The body of a route that reads none."""


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
    head = email.message.Message()
    head["content-type"] = kind
    boundary = head.get_boundary() or ""
    # Never one by one: what a form of some megabytes has of lines and parts may be millions.
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    parts = (b"\r\n" + content).split(delimiter, _MAX_PARTS + 2)
    fields = [(head, body) for head, gap, body in map(_divided, parts[1:]) if gap]
    files = [one for one in fields if one[0].get_filename() is not None]
    is_whole = boundary and parts[-1].startswith(b"--")
    if not is_whole or len(files or fields) != 1:
        raise bad_request("a form must have one file")
    return (files or fields)[0][1]


def _divided(part: bytes) -> tuple[email.message.Message, bytes, bytes]:
    """Return the head of a part of a form, the gap, empty if it has none, and the body."""
    head, gap, body = part.partition(b"\r\n\r\n")
    if len(head) > _MAX_HEAD_BYTES:
        raise bad_request("a part of the form has a head that is too long")
    return email.message_from_bytes(head.removeprefix(b"\r\n") + b"\r\n\r\n"), gap, body


async def read_form(request: Request, max_bytes: int) -> bytes:
    """Return the body of a form of a page. Raises: HttpError."""
    return await _read(request, max_bytes, trio.Semaphore(1))


async def _read(request: Request, max_bytes: int, large: trio.Semaphore) -> bytes:
    coding = request.headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        # RFC 9110, 12.5.3: the answer says what is accepted instead. A few bytes can become more
        # than there is memory for, so nothing is decompressed.
        raise HttpError(
            415,
            "unsupported_media_type",
            f"the body has the content coding {coding[:_SHOWN_CODING]!r}: send it without one",
            {"Accept-Encoding": "identity"},
        )
    # A large body is refused before a byte of it is read. One without a length is counted as it
    # comes.
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
                # Small ones do not wait behind large ones.
                if len(received) <= _SMALL_BYTES < len(received) + len(chunk):
                    await stack.enter_async_context(large)
                received += chunk
                if len(received) > max_bytes:
                    raise _too_large(max_bytes)
        except ClientDisconnect:
            raise bad_request("the body is incomplete") from None
    return bytes(received)


async def decoded(
    content: bytes, kind: type[BodyT], most_entries: int = MAX_BODY_ENTRIES
) -> tuple[dict[str, Any], BodyT]:
    """Return the content of a body, an object of JSON, as it is, and as a value of a type. An empty
    one, or null, is an empty object, as in RabbitMQ. Raises: HttpError.

    Args: most_entries, of all objects and arrays in it: see `bounds`.
    """
    if content.strip() in (b"", b"null", b"undefined"):
        content = b"{}"
    work = decoding("the body", content, most_entries, partial(_decoded, kind=kind))
    # The body's entries are counted before it is decoded: millions of small objects in a few
    # megabytes would hold the loop for seconds.
    try:
        return await carry_out(work, _after_step)
    except TooLargeError as error:
        raise bad_request(str(error)) from None


async def _after_step(slow: Slow | None) -> Any:
    if slow is None:
        return await trio.lowlevel.checkpoint()
    return await trio.to_thread.run_sync(slow)


def _decoded(content: bytes, kind: type[BodyT]) -> tuple[dict[str, Any], BodyT]:
    try:
        found = json_of(content)
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
