"""The API, asked by a page for the user who is logged in."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from amqpstore_server.management.answers import NOTES, Answer, content_of
from amqpstore_server.management.errors import HttpError, http_error_of
from amqpstore_server.management.login import Identity
from amqpstore_server.management.path_names import segment


class InternalApi(Protocol):
    """The API, as the pages ask it from inside the broker's process: the application."""

    async def inside(
        self, identity: Identity, method: str, path: str, query: str, content: bytes
    ) -> Answer:
        """Answer a request of a user who is logged in, to an encoded `path`, with a `content` of
        JSON or without one. Raises: HttpError, and what else the handler of the route raises.
        """


class PageApi:
    """The API as one user may use it. `identity` says who that is; `notes`, what of the last
    request has no effect.
    """

    def __init__(self, app: InternalApi, identity: Identity) -> None:
        self.identity = identity
        self.notes = ""
        self._app = app

    async def get(self, *parts: str, **query: object) -> Any:
        """Return what the API answers to GET, as values of JSON. Raises: HttpError.

        Args: parts, of the path behind `/api`, not encoded.
        """
        return await self.ask("GET", path_of(*parts), urlencode(query))

    async def find(self, *parts: str, default: Any, **query: object) -> Any:
        """Return the same; `default` if there is no such thing or the user may not see it."""
        try:
            return await self.get(*parts, **query)
        except HttpError as error:
            if error.status in (401, 403, 404):
                return default
            raise

    async def ask(self, method: str, path: str, query: str = "", body: object = None) -> Any:
        """Return what the API answers to any request; None without a body. Raises: HttpError."""
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self._app.inside(self.identity, method, path, query, content)
        except Exception as error:
            # The API's own door does the same: an error of the broker is an answer.
            known = http_error_of(error)
            if known is None or known is error:
                raise
            raise known from error
        self.notes = answer.headers.get(NOTES, "")
        found = content_of(answer)
        return msgspec.json.decode(found) if found else None


def path_of(*parts: str) -> str:
    """Return a path of the API."""
    return "/".join(["/api", *map(segment, parts)])
