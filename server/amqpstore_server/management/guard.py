"""Requests that another site's page has sent.

A browser that knows the password of this door sends it with every request to it, also with those
that a foreign page makes. The page cannot read the answers, but it could change things. Browsers
say where a request comes from (`Sec-Fetch-Site`, `Origin`); clients that are not browsers do not,
and have no password that a page could use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.datastructures import Headers

from amqpstore_server.management.errors import HttpError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_CORS_METHODS = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
_CORS_HEADERS = "accept, authorization, content-type, if-none-match, x-reason"
_CORS_AGE_S = "600"


def check_origin(headers: Headers, scheme: str, allowed: Collection[str]) -> None:
    """Refuse a request that the page of another site has sent. Raises: HttpError.

    Args: scheme, by which it came; allowed, the origins whose pages may send any.
    """
    origin = headers.get("origin")
    if origin is not None and origin in allowed:
        return
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if origin is not None and origin != f"{scheme}://{headers.get('host', '')}":
        is_foreign = True
    if is_foreign:
        raise HttpError(403, "forbidden", "this request was sent by a page of another site")


def cors_headers(
    headers: Headers, allowed: Collection[str], *, preflight: bool
) -> Mapping[str, str]:
    """Return the headers that let a page of an allowed origin read the answer; none by default.

    Never with credentials: the page has to know the password itself.
    """
    if not allowed:
        return {}
    origin = headers.get("origin", "")
    found = {"vary": "origin"}
    if origin in allowed:
        found["access-control-allow-origin"] = origin
    elif "*" in allowed:
        found["access-control-allow-origin"] = "*"
    else:
        return found
    if preflight:
        found["access-control-allow-methods"] = _CORS_METHODS
        found["access-control-allow-headers"] = _CORS_HEADERS
        found["access-control-max-age"] = _CORS_AGE_S
    return found
