"""The application: finds the route of a request, checks who asks, and turns errors into answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import trio
from starlette import routing
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.management.answers import (
    SECURITY_HEADERS,
    Answer,
    compressed,
    error_answer,
    noted,
)
from amqpstore_server.management.call import Call, LargeAnswer
from amqpstore_server.management.errors import HttpError, http_error_of, not_found
from amqpstore_server.management.guard import SAFE_METHODS, check_origin, cors_headers
from amqpstore_server.management.login import HttpLogins, Identity
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.pages.site import PagesApp
from amqpstore_server.management.path_names import name_of
from amqpstore_server.management.public_address import PublicAddress, without_prefix
from amqpstore_server.management.routes import ApiRoute, in_order
from amqpstore_server.management.topology import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from amqpstore_server.management.context import ManagementContext

_log = logging.getLogger(__name__)

_REST_S = 5.0
"""How long the rest of a body is still read after its request was answered: who sends it reads the
answer afterwards."""
_OF_EXCHANGES = ("/api/exchanges/", "/api/bindings/")
_LARGE_BODIES = 4
"""Bodies that are not small and are read at the same time."""
_LARGE_ANSWERS = 2
"""Answers of much content that are made and sent at the same time."""


class ManagementApp:
    """The ASGI application of the door.

    Args: on_logged_in, abort, called with the state of a connection, after each right login on it,
    or request of a session, and when it has to be closed at once; fail, called with an error that
    has to end the broker; has_pages, whether it has the web pages, too.
    """

    def __init__(
        self,
        context: ManagementContext,
        routes: Iterable[ApiRoute],
        on_logged_in: Callable[[Any], None] = lambda _state: None,
        abort: Callable[[Any], None] = lambda _state: None,
        fail: Callable[[BaseException], None] = lambda _error: None,
        *,
        has_pages: bool = True,
    ) -> None:
        self._context = context
        self._logins = HttpLogins(context)
        self._on_logged_in = on_logged_in
        self._abort = abort
        self._fail = fail
        self._large_bodies = trio.Semaphore(_LARGE_BODIES)
        self._large_answers = trio.Semaphore(_LARGE_ANSWERS)
        by_path: dict[str, dict[str, ApiRoute]] = {}
        for route in in_order(routes):
            by_path.setdefault(route.path, {})[route.method] = route
        self._pages = PagesApp(context, self, self._logins, on_logged_in) if has_pages else None
        self._router = routing.Router(
            [routing.Route(path, _Endpoint(self, of_path)) for path, of_path in by_path.items()],
            redirect_slashes=False,
            default=self._unknown,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        # As it came: a name may contain a slash, which is %2F here, and no border of the path.
        path = scope["raw_path"].decode("ascii", "replace")
        path = without_prefix(path, self._public(Request(scope)).prefix)
        if path.startswith(_OF_EXCHANGES):
            # The name of the default exchange is empty, and some clients send it as it is.
            path = path.replace("//", f"/{DEFAULT_EXCHANGE}/")
        scope = {**scope, "path": path.rstrip("/") or "/"}
        body = _Body(receive)
        await self._router(scope, body.receive, self._completed(scope, send, body))
        if not body.is_whole:
            self._abort(scope.get("state"))

    def _completed(self, scope: Scope, send: Send, body: _Body) -> Send:
        """Return the function that sends messages with the headers that every answer has, and
        without the body if it was not asked for.

        Before the first, the body of the request is read: after the last the server would close the
        connection, and a client that still sends would not see the answer.
        """
        request = Request(scope)
        is_head = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await body.read_rest(2 * self._context.config().management_max_body_bytes)
                headers = MutableHeaders(scope=message)
                if not body.is_whole and scope.get("http_version", "").startswith("1"):
                    # What follows on this connection is not the next request.
                    headers["connection"] = "close"
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                for name, value in cors_headers(
                    request.headers,
                    self._context.config().management_cors_origins,
                    preflight=scope["method"] == "OPTIONS",
                ).items():
                    if name == "vary":
                        headers.add_vary_header(value)
                    else:
                        headers[name] = value
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if body.is_whole:
                await send(message)
            else:
                await body.dropped_during(send, message)

        return sending

    async def _unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = self._pages
        if pages is None or scope["path"] == "/api" or scope["path"].startswith("/api/"):
            await error_answer(not_found("there is nothing at this path"))(scope, receive, send)
            return
        try:
            await pages(scope, receive, send)
        except FATAL as error:
            self._fail(error)
            raise

    async def inside(
        self, identity: Identity, method: str, path: str, query: str, content: bytes
    ) -> Answer:
        """Answer what a page asks, for the user who is logged in. Raises: HttpError, and what else
        the handler raises.
        """
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json")],
            "path_params": {},
        }
        for known_route in self._router.routes:
            match, child = known_route.matches(scope)
            if match is not routing.Match.NONE and isinstance(known_route, routing.Route):
                endpoint = known_route.endpoint
                route = endpoint.routes.get(method) if isinstance(endpoint, _Endpoint) else None
                if route is None:
                    break
                request = Request({**scope, **child}, receive)
                async with AsyncExitStack() as held:
                    return await self._call(request, route, identity, held)
        raise not_found(f"there is nothing at {method} {path}")

    async def answer(
        self, request: Request, routes: dict[str, ApiRoute], held: AsyncExitStack
    ) -> Answer:
        """Answer a request to a path by one of its routes. Args: held, what the answer holds until
        it is sent.
        """
        try:
            return await self._answer(request, routes, held)
        except FATAL as error:
            # The server logs what an application raises and goes on.
            self._fail(error)
            raise
        except Exception as error:  # noqa: BLE001 - a request must not end the broker
            known = http_error_of(error)
            if known is None:
                _log.exception("management request failed", extra={"path": request.url.path})
                known = HttpError(500, "internal_server_error", "see the log of the broker")
            return error_answer(known)

    async def _answer(
        self, request: Request, routes: dict[str, ApiRoute], held: AsyncExitStack
    ) -> Answer:
        method = "GET" if request.method == "HEAD" else request.method
        allowed = ", ".join(sorted({"OPTIONS", *routes, *(["HEAD"] if "GET" in routes else [])}))
        # The preflight of a browser comes without a login.
        if method == "OPTIONS":
            return Answer(headers={"allow": allowed})
        route = routes.get(method)
        if route is None:
            reason = f"{request.method} is not allowed here: there is {allowed}"
            raise HttpError(405, "method_not_allowed", reason, {"allow": allowed})
        if method not in SAFE_METHODS:
            origins = self._context.config().management_cors_origins
            check_origin(request.headers, self._public(request), origins)
        return await self._call(request, route, await self._identity(request, route), held)

    def _public(self, request: Request) -> PublicAddress:
        return PublicAddress(request.headers, request.scope["scheme"], self._context.config())

    async def _call(
        self, request: Request, route: ApiRoute, identity: Identity, held: AsyncExitStack
    ) -> Answer:
        call = Call(
            self._context,
            request,
            identity,
            {name: _decoded(part) for name, part in request.path_params.items()},
            self._large_bodies,
            LargeAnswer(self._large_answers, held),
        )
        call.check(route.needs, route.method)
        if route.method not in SAFE_METHODS:
            await call.note_unread(route.query, has_body=route.body is not None)
        return noted(await route.handler(call), call.notes)

    async def _identity(self, request: Request, route: ApiRoute) -> Identity:
        if route.needs is Needs.NOTHING:
            return Identity(self._context.broker, "", ())
        client = request.client
        identity = await self._logins.identity(
            request.headers.get("authorization"),
            (client.host, client.port) if client else ("", 0),
            has_tls=request.url.scheme == "https",
            now=trio.current_time(),
        )
        self._on_logged_in(request.scope.get("state"))
        return identity


class _Body:
    """The body of a request; `is_whole` once all of it was read. Whoever answers without reading it
    leaves the rest, and the server waits for ever until somebody takes it.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def receive(self) -> Message:
        """Return the next part, as an ASGI application gets it."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.is_whole = True
        return message

    async def read_rest(self, max_bytes: int) -> None:
        """Read what is left, if it comes soon."""
        byte_count = 0
        with trio.move_on_after(_REST_S):
            while not self.is_whole and byte_count <= max_bytes:
                byte_count += len((await self.receive()).get("body", b""))

    async def dropped_during(self, send: Send, message: Message) -> None:
        """Send a message of an answer, while what still comes of the body is dropped.

        At the end of the answer, or of the connection, the server tells this application that the
        request has ended, in the queue of the pieces of the body. If these were not taken out, a
        full queue would keep both waiting for ever.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drop)
            await send(message)
            nursery.cancel_scope.cancel()

    async def _drop(self) -> None:
        while not self.is_whole:
            await self.receive()


class _Endpoint:
    """The routes of one path, as an ASGI application."""

    def __init__(self, app: ManagementApp, routes: dict[str, ApiRoute]) -> None:
        self._app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        async with AsyncExitStack() as held:
            answer = await self._app.answer(request, self.routes, held)
            answer = await compressed(answer, request.headers)
            await answer(scope, receive, send)


def _decoded(part: str) -> str:
    """Raises: HttpError."""
    try:
        return name_of(part)
    except UnicodeDecodeError:
        raise not_found("the path is not UTF-8") from None
