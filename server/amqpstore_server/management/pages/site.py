"""The pages as an application: finds the page of a request, checks the session, and answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from amqpstore.errors import PicklableError
from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.management.answers import NOTES, compressed, content_of
from amqpstore_server.management.bodies import file_in, read_form
from amqpstore_server.management.errors import HttpError, http_error_of, not_found
from amqpstore_server.management.guard import check_origin
from amqpstore_server.management.pages import charts
from amqpstore_server.management.pages.actions import act, read_fields
from amqpstore_server.management.pages.address import PageAddress, own_path
from amqpstore_server.management.pages.api import InternalApi, PageApi
from amqpstore_server.management.pages.choosing import KEPT_S, ColumnChoice, cookie_of
from amqpstore_server.management.pages.columns import LISTS
from amqpstore_server.management.pages.reading import PAGES, STREAMS, WebPage
from amqpstore_server.management.pages.render import PAGE_HEADERS, page
from amqpstore_server.management.pages.selecting import QueueSelection
from amqpstore_server.management.pages.sessions import (
    COOKIE,
    PageNotice,
    RefusedForm,
    Sessions,
    WebSession,
)
from amqpstore_server.management.path_names import name_of
from amqpstore_server.management.public_address import PublicAddress, without_prefix

if TYPE_CHECKING:
    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.login import HttpLogins, Identity

_log = logging.getLogger(__name__)

_MAX_FORM_BYTES = 1 << 20
_MAX_LOGIN_BYTES = 64 << 10
"""Anybody may send that form."""
_STATIC_AGE_S = 3600
_DEFINITIONS = "/api/definitions"
_AT_ONCE = {"x-accel-buffering": "no"}
"""Tells nginx to pass on each part of an answer as it comes."""
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NAVIGATION = (
    ("/", "Overview", ""),
    ("/queues", "Queues", ""),
    ("/exchanges", "Exchanges", ""),
    ("/connections", "Connections", ""),
    ("/channels", "Channels", ""),
    ("/policies", "Policies", "policymaker"),
    ("/vhosts", "Virtual hosts", ""),
    ("/users", "Users", "administrator"),
    ("/store", "Store", "monitoring"),
)
"""Address and name of each section, and the tag that it needs."""
_ENDED = PageNotice("warn", "Your session has ended, and what you sent since was not done. Log in.")


class PagesApp:
    """All pages. `api` answers what they ask. Args: on_logged_in, as that of `ManagementApp`."""

    def __init__(
        self,
        context: ManagementContext,
        api: InternalApi,
        logins: HttpLogins,
        on_logged_in: Callable[[Any], None],
    ) -> None:
        self._context = context
        self._api = api
        self._sessions = Sessions(context, logins, on_logged_in)
        self._static = _static_files()
        routes = [
            Route("/login", _Handler(self._login), methods=["GET", "POST"]),
            Route("/logout", _Handler(self._log_out), methods=["POST"]),
            Route("/definitions", _Handler(self._export), methods=["GET"]),
            Route("/definitions", _Handler(self._import), methods=["POST"]),
            Route("/static/{name}", _Handler(self._file), methods=["GET"]),
            Route("/favicon.ico", _Handler(self._icon), methods=["GET"]),
            Route("/act/{method}/{target:path}", _Handler(self._act), methods=["POST"]),
            Route("/select/{vhost}/{name}", _Handler(self._select), methods=["POST"]),
            Route("/columns/{name}", _Handler(self._choose), methods=["POST"]),
        ]
        routes += [
            Route(path, _Handler(self._stream_of(path)), methods=["GET"]) for path in STREAMS
        ]
        routes += [Route(one.path, _Handler(self._page_of(one)), methods=["GET"]) for one in PAGES]
        self._router = Router(routes, redirect_slashes=False, default=_Handler(self._unknown))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        await self._router(scope, receive, send)

    # Pages.

    def _page_of(self, found: WebPage) -> Any:
        async def answer(request: Request) -> Response:
            session, identity = await self._logged_in(request)
            asked = PageAddress(_path(request), request.query_params, request.cookies)
            try:
                values = await found.read(PageApi(self._api, identity), asked)
            except HttpError as problem:
                return self._problem(request, identity, session, problem)
            values |= {"section": found.section, "stream": found.stream(asked)}
            return self._shown(request, found.template, values, identity, session)

        return answer

    def _public(self, request: Request) -> PublicAddress:
        return PublicAddress(request.headers, request.scope["scheme"], self._context.config())

    def _shown(
        self,
        request: Request,
        template: str,
        values: dict[str, Any],
        identity: Identity,
        session: WebSession,
        status: int = 200,
    ) -> Response:
        notice, refused = session.notice, session.refused
        # An open page that has a part of itself renewed shows neither: they are for the next page.
        if "hx-request" not in request.headers:
            session.notice = session.refused = None
        frame = {
            "refused": refused,
            "prefix": self._public(request).prefix,
            "node": self._context.node,
            "user": identity.user,
            "navigation": [
                (path, name) for path, name, tag in _NAVIGATION if not tag or tag in identity.tags
            ],
            "administrator": identity.is_administrator,
            "notice": notice,
        }
        return page(template, {**frame, **values}, status)

    def _problem(
        self, request: Request, identity: Identity, session: WebSession, problem: HttpError
    ) -> Response:
        values = {"problem": problem, "section": "", "stream": ""}
        return self._shown(request, "problem.html", values, identity, session, problem.status)

    async def _logged_in(self, request: Request) -> tuple[WebSession, Identity]:
        found = await self._sessions.found(request, trio.current_time())
        if found is None:
            raise _LoginNeededError(self._public(request).prefix, self._own_address(request))
        return found

    def _own_address(self, request: Request) -> str:
        query = request.url.query
        if request.headers.get("hx-request") or request.method != "GET":
            return self._came_from(request)
        path = request.scope["path"]
        return f"{path}?{query}" if query else path

    def _came_from(self, request: Request) -> str:
        """Return the page of this site that a request was made on, below the prefix."""
        # Of which host it is does not matter: it is a path of this site, or there is no such page.
        parts = urlsplit(request.headers.get("referer", ""))
        path = without_prefix(parts.path, self._public(request).prefix)
        return own_path(f"{path}?{parts.query}" if parts.query else path)

    async def _unknown(self, request: Request) -> Response:
        session, identity = await self._logged_in(request)
        return self._problem(request, identity, session, not_found("There is no such page."))

    # Login.

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            following = request.query_params.get("next", "/")
            # Whoever logs out has no cookie any more.
            has_ended = COOKIE in request.cookies
            return self._login_page(request, following, _ENDED if has_ended else None, 200)
        public = self._public(request)
        check_origin(request.headers, public, ())
        fields = dict(await read_fields(request, _MAX_LOGIN_BYTES))
        following = fields.get("next", "/")
        try:
            secret = fields.get("password", "")
            answer = await self._sessions.log_in(
                request, public, fields.get("user", ""), secret, trio.current_time()
            )
        except HttpError as error:
            text = "The user or the password is wrong."
            if error.status != 401 or error.reason not in ("Not_Authorized", "Login required"):
                text = f"{error.reason}."
            return self._login_page(request, following, PageNotice("bad", text), 401)
        answer.headers["location"] = public.prefix + own_path(following)
        return answer

    def _login_page(
        self, request: Request, following: str, notice: PageNotice | None, status: int
    ) -> Response:
        values = {
            "prefix": self._public(request).prefix,
            "node": self._context.node,
            "user": "",
            "navigation": (),
            "section": "",
            "stream": "",
            "notice": notice,
            "next": following,
        }
        return page("login.html", values, status)

    async def _log_out(self, request: Request) -> Response:
        public = self._public(request)
        check_origin(request.headers, public, ())
        await self._sessions.log_out(request)
        answer = Response(status_code=303, headers={"location": f"{public.prefix}/login"})
        answer.delete_cookie(COOKIE, public.prefix or "/")
        return answer

    # Forms, streams and files.

    async def _act(self, request: Request) -> Response:
        public = self._public(request)
        check_origin(request.headers, public, ())
        session, identity = await self._logged_in(request)
        fields = await read_fields(request, _MAX_FORM_BYTES)
        form = dict(fields)
        done, following = form.pop("said", ""), form.pop("then", "")
        rest = [one for one in fields if one[0] not in ("said", "then")]
        # As it came: names in it are encoded.
        path = request.scope["path"].removeprefix(f"/act/{request.path_params['method']}")
        try:
            api = PageApi(self._api, identity)
            result = await act(api, request.path_params["method"], path, rest)
            session.notice = _notice(_outcome(done, result), api.notes)
        except HttpError as problem:
            session.notice = PageNotice("bad", f"Refused: {problem.reason}")
            # A password is typed again.
            typed = [one for one in fields if not one[0].startswith("password")]
            session.refused = RefusedForm(public.prefix + request.scope["path"], typed)
            following = ""
        following = own_path(following) if following else self._came_from(request)
        return Response(status_code=303, headers={"location": public.prefix + following})

    async def _export(self, request: Request) -> Response:
        """Return the definitions as a file."""
        _, identity = await self._logged_in(request)
        query = urlencode({"download": "definitions.json"})
        return await self._api.inside(identity, "GET", _DEFINITIONS, query, b"")

    async def _import(self, request: Request) -> Response:
        """Import the definitions in the file of a form."""
        public = self._public(request)
        check_origin(request.headers, public, ())
        session, identity = await self._logged_in(request)
        form = await read_form(request, self._context.config().management_max_body_bytes)
        try:
            content = file_in(form, request.headers.get("content-type", ""))
            answer = await self._api.inside(identity, "POST", _DEFINITIONS, "", content)
            left_out = content_of(answer)
            said = msgspec.json.decode(left_out)["reason"] if left_out else ""
            text = f"The definitions are imported, but {said}" if said else "Definitions imported."
            session.notice = _notice(text, answer.headers.get(NOTES, ""), is_partial=bool(said))
        except Exception as error:
            known = http_error_of(error)
            if known is None:
                raise
            session.notice = PageNotice("bad", f"Refused: {known.reason}")
        return Response(status_code=303, headers={"location": f"{public.prefix}/"})

    async def _select(self, request: Request) -> Response:
        """Handle all messages that a form means; the answer grows by a line of JSON a piece."""
        check_origin(request.headers, self._public(request), ())
        session, identity = await self._logged_in(request)
        asked = dict(await read_fields(request, _MAX_FORM_BYTES))
        path = _path(request)
        api = PageApi(self._api, identity)
        selection = QueueSelection(api, path["vhost"], path["name"], asked)

        async def lines() -> AsyncIterator[bytes]:
            kind, text = "bad", ""
            try:
                async for _ in selection.handle():
                    now = {"seen": selection.seen_count, "of": selection.all_count}
                    yield msgspec.json.encode(now) + b"\n"
                kind = "good" if selection.is_finished else "bad"
            except HttpError as error:
                text = f"Refused: {error.reason}"
            finally:
                # Whoever has closed the page finds it on the next one.
                session.notice = PageNotice(kind, text or selection.outcome)

        headers = PAGE_HEADERS | _AT_ONCE
        return StreamingResponse(lines(), headers=headers, media_type="application/jsonl")

    async def _choose(self, request: Request) -> Response:
        """Have the browser keep which columns of a list it shows."""
        public = self._public(request)
        check_origin(request.headers, public, ())
        await self._logged_in(request)
        name = request.path_params["name"]
        if name not in LISTS:
            raise not_found("There is no such list.")
        fields = await read_fields(request, _MAX_FORM_BYTES)
        is_usual = ("usual", "") in fields
        chosen = None if is_usual else {value for field, value in fields if field == "column"}
        location = public.prefix + self._came_from(request)
        answer = Response(status_code=303, headers={"location": location})
        answer.set_cookie(
            cookie_of(name),
            ColumnChoice(name, chosen).cookie,
            # What is usual is no choice: it is forgotten.
            max_age=0 if is_usual else KEPT_S,
            path=public.prefix or "/",
            httponly=True,
            samesite="strict",
            secure=public.is_secure,
        )
        return answer

    def _stream_of(self, path: str) -> Any:
        async def answer(request: Request) -> Response:
            read = STREAMS[path](_path(request))

            # Without a session, too: a stream cannot lead to a login, but it can say so.
            async def current() -> PageApi | None:
                found = await self._sessions.found(request, trio.current_time())
                return PageApi(self._api, found[1]) if found else None

            content: AsyncIterator[bytes] = charts.events(read, current, self._context.stopping)
            return StreamingResponse(content, headers=_AT_ONCE, media_type="text/event-stream")

        return answer

    async def _icon(self, request: Request) -> Response:
        return await self._content("icon.svg", request)

    async def _file(self, request: Request) -> Response:
        return await self._content(request.path_params["name"], request)

    async def _content(self, name: str, request: Request) -> Response:
        content = self._static.get(name)
        if content is None:
            raise not_found("There is no such file.")
        headers = {"cache-control": f"private, max-age={_STATIC_AGE_S}"}
        answer = Response(content, headers=headers, media_type=_KINDS[name.rpartition(".")[2]])
        return await compressed(answer, request.headers)


class _LoginNeededError(PicklableError):
    """The request has no session. `location` is the login, which knows where to go after it."""

    def __init__(self, prefix: str, following: str) -> None:
        super().__init__(following)
        self.location = f"{prefix}/login?{urlencode({'next': following})}"


class _Handler:
    """A function of this site as an ASGI application."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        try:
            answer = await self._answer(request)
        except _LoginNeededError as needed:
            answer = Response(status_code=303, headers={"location": needed.location})
            if request.headers.get("hx-request"):
                # A part of a page: the whole page has to go to the login.
                answer = Response(status_code=204, headers={"hx-redirect": needed.location})
        except HttpError as error:
            answer = Response(error.reason, error.status, PAGE_HEADERS, "text/plain")
        except FATAL:
            raise
        except Exception:  # noqa: BLE001 - a request must not end the broker
            _log.exception("page failed", extra={"path": request.url.path})
            text = "This page failed: see the log of the broker."
            answer = Response(text, 500, PAGE_HEADERS, "text/plain")
        await answer(scope, receive, send)


def _outcome(said: str, result: Any) -> str:
    """Write what an action came to."""
    text = said or "Done."
    if isinstance(result, Mapping):
        counts = [f"{key}: {value:,}" for key, value in result.items() if isinstance(value, int)]
        if counts:
            text = f"{text} ({', '.join(counts)})"
    return text


def _notice(text: str, notes: str, *, is_partial: bool = False) -> PageNotice:
    """Return what a page says of an action. Args: notes, what of it has no effect; is_partial,
    whether only a part was done.
    """
    if notes:
        text = f"{text} Note: {notes}."
    return PageNotice("warn" if notes or is_partial else "good", text)


def _path(request: Request) -> Mapping[str, str]:
    return {name: _name_of(part) for name, part in request.path_params.items()}


def _name_of(part: str) -> str:
    try:
        return name_of(part)
    except UnicodeDecodeError:
        return unquote(part)  # Nothing has that name.


def _static_files() -> Mapping[str, bytes]:
    folder = files("amqpstore_server.management.pages").joinpath("static")
    return {one.name: one.read_bytes() for one in folder.iterdir()}
