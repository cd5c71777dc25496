"""Requests that another site's page has sent.

A browser that knows the password of this door sends it with every request to it, also with those
that a foreign page makes. The page cannot read the answers, but it could change things. Browsers
say where a request comes from (`Sec-Fetch-Site`, `Origin`); clients that are not browsers do not,
and have no password that a page could use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from amqpstore_server.management.errors import HttpError

if TYPE_CHECKING:
    from amqpstore_server.management.public_address import PublicAddress

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_CORS_METHODS = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
_CORS_HEADERS = "accept, authorization, content-type, if-none-match, x-reason"
_CORS_AGE_S = "600"
_FOREIGN = "this request was sent by a page of another site"
_SET_KEY = "name that in management_public_origins, or let the proxy pass Host on"


def check_origin(headers: Headers, public: PublicAddress, allowed: Collection[str]) -> None:
    """Refuse a request that the page of another site has sent. Raises: HttpError.

    Args: allowed, the origins whose pages may send any.
    """
    origin = headers.get("origin")
    if origin is not None and origin in allowed:
        return
    # No script can set it, and a proxy changes nothing about it: a browser knows where it is.
    # Missing in clients that are not browsers, and in old browsers: then the origin decides.
    site = headers.get("sec-fetch-site", "none")
    if site == "same-origin":
        return
    if site != "none" or (origin is not None and not public.is_own(origin)):
        raise HttpError(403, "forbidden", f"{_FOREIGN}{_hint(site, origin)}")


def _hint(site: str, origin: str | None) -> str:
    """Return what to do about a refusal that a proxy may have caused."""
    if site != "none" or origin in (None, "null"):
        return ""
    return f"; if a proxy shows the pages of the broker as {origin}: {_SET_KEY}"


def cors_headers(
    headers: Headers, allowed: Collection[str], *, preflight: bool
) -> Mapping[str, str]:
    """Return the headers that let a page of an allowed origin read the answer; none by default.

    Never with credentials: the page has to know the password itself.
    """
    if not allowed:
        return {}
    origin = headers.get("origin", "")
    answer = {"vary": "origin"}
    if origin in allowed:
        answer["access-control-allow-origin"] = origin
    elif "*" in allowed:
        answer["access-control-allow-origin"] = "*"
    else:
        return answer
    if preflight:
        answer["access-control-allow-methods"] = _CORS_METHODS
        answer["access-control-allow-headers"] = _CORS_HEADERS
        answer["access-control-max-age"] = _CORS_AGE_S
    return answer
