"""Sessions of users who are logged in to the pages: a cookie names one.

Each request checks the login of its session again. A login by password holds as long as the user
has that password: a user that is deleted, or gets another one, is logged out at the next request,
and changed tags change the rights. The password itself is not kept, so such a session can outlive a
restart of the broker (see `kept_sessions`). A token is checked as if the request had brought it,
and is not written to a file: its session ends with the process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from starlette.responses import Response

from amqpstore.system.durability import reason_of
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages.kept_sessions import (
    KeptSession,
    read_sessions,
    write_sessions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.login import HttpLogins, Identity
    from amqpstore_server.management.public_address import PublicAddress

COOKIE = "amqpstore_session"
_IDLE_MS = 8 * 3600 * 1000
_MAX_SESSIONS = 1000

_log = logging.getLogger(__name__)


@dataclass
class PageNotice:
    """A notice that a page shows above everything else, once. `kind` is "good" or "bad"."""

    kind: str
    text: str


@dataclass
class RefusedForm:
    """A form that was refused: the path that it was sent to, and its fields."""

    action: str
    fields: list[tuple[str, str]]


@dataclass(eq=False)
class WebSession:
    """One login: of `user`, whose password has the digest `password`, or with a `token`.

    `written_ms` is until when the file says that it lasts; `notice` is for the next page, as is
    `refused`: the form that was refused last, with what was typed.
    """

    user: str
    password: bytes
    token: str
    ends_at_ms: int
    written_ms: int = 0
    notice: PageNotice | None = None
    refused: RefusedForm | None = None


class Sessions:
    """All sessions, by the digests of their cookies.

    Args: on_logged_in, called with the state of a connection on which a session was found.
    """

    def __init__(
        self,
        context: ManagementContext,
        logins: HttpLogins,
        on_logged_in: Callable[[Any], None] = lambda _state: None,
    ) -> None:
        self._on_logged_in = on_logged_in
        self._logins = logins
        self._users = context.users
        self._clock = context.broker.services.store.clock
        self._directory = context.broker.services.store.directory
        self._sessions = {
            kept.cookie: WebSession(kept.user, kept.password, "", kept.ends_at_ms, kept.ends_at_ms)
            for kept in read_sessions(self._directory)
        }
        self._writing = trio.Lock()

    async def log_in(
        self, request: Request, public: PublicAddress, user: str, secret: str, now: float
    ) -> Response:
        """Check a login, and return the answer with its cookie. Raises: HttpError.

        Args: secret, a password, or a token (JWT), which says by itself who the user is.
        """
        basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
        peer, has_tls = _way(request)
        identity = await self._logins.identity(f"Basic {basic}", peer, has_tls=has_tls, now=now)
        self._on_logged_in(request.scope.get("state"))
        cookie = secrets.token_urlsafe(32)
        # Nothing waits between the check and this: it is the password that was checked.
        password = self._users.password_digest(identity.user, cookie) or b""
        ends_at_ms = self._clock.wall_ms() + _IDLE_MS
        if identity.is_internal:
            session = WebSession(identity.user, password, "", ends_at_ms)
        else:
            session = WebSession(identity.user, b"", secret, ends_at_ms)
        self._make_room()
        self._sessions[_digest(cookie)] = session
        await self._write()
        answer = Response(status_code=303)
        answer.set_cookie(
            COOKIE,
            cookie,
            path=public.prefix or "/",
            # No script reads it, and a page of another site cannot make a browser send it.
            httponly=True,
            samesite="strict",
            secure=public.is_secure,
        )
        return answer

    async def found(self, request: Request, now: float) -> tuple[WebSession, Identity] | None:
        """Return the session of a request and who it is; None if it has to log in."""
        cookie = request.cookies.get(COOKIE, "")
        # Sessions are found by a digest: neither the file nor this process has what a browser
        # would have to send.
        session = self._sessions.get(_digest(cookie))
        now_ms = self._clock.wall_ms()
        if session is None or session.ends_at_ms <= now_ms:
            return None
        try:
            identity = await self._identity(request, session, cookie, now)
        except HttpError:
            # A password that is set back to the old one does not revive it.
            await self._end(cookie)
            return None
        self._on_logged_in(request.scope.get("state"))
        session.ends_at_ms = now_ms + _IDLE_MS
        if not session.token and session.written_ms < now_ms + _IDLE_MS // 2:
            await self._write()
        return session, identity

    async def log_out(self, request: Request) -> None:
        """End the session of a request."""
        await self._end(request.cookies.get(COOKIE, ""))

    async def _identity(
        self, request: Request, session: WebSession, cookie: str, now: float
    ) -> Identity:
        """Check the login of a session again. Raises: HttpError."""
        peer, has_tls = _way(request)
        if session.token:
            bearer = f"Bearer {session.token}"
            return await self._logins.identity(bearer, peer, has_tls=has_tls, now=now)
        password = self._users.password_digest(session.user, cookie)
        if password is None or not hmac.compare_digest(password, session.password):
            raise HttpError(401, "not_authorized", "the user has another password")
        return self._logins.identity_of(session.user, peer, has_tls=has_tls)

    async def _end(self, cookie: str) -> None:
        if self._sessions.pop(_digest(cookie), None) is not None:
            await self._write()

    def _make_room(self) -> None:
        """End sessions whose time is up, and if there are too many, the oldest of the user that has
        most of them: a user that logs in again and again does not end those of others.
        """
        now_ms = self._clock.wall_ms()
        for cookie, session in list(self._sessions.items()):
            if session.ends_at_ms <= now_ms:
                del self._sessions[cookie]
        while len(self._sessions) >= _MAX_SESSIONS:
            users = Counter(session.user for session in self._sessions.values())
            ((busiest, _),) = users.most_common(1)
            del self._sessions[
                next(cookie for cookie, one in self._sessions.items() if one.user == busiest)
            ]

    async def _write(self) -> None:
        """Write the sessions; without that, they end with the process."""
        # Lists are written one after the other: an older one must not replace a newer one.
        async with self._writing:
            kept = []
            for cookie, session in self._sessions.items():
                # A token would be of use to anybody who reads the file.
                if not session.token:
                    session.written_ms = session.ends_at_ms
                    kept.append(
                        KeptSession(cookie, session.user, session.password, session.ends_at_ms)
                    )
            try:
                await trio.to_thread.run_sync(write_sessions, self._directory, kept)
            except OSError as error:
                _log.warning("web sessions not written", extra={"reason": reason_of(error)})


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()


def _way(request: Request) -> tuple[tuple[str, int], bool]:
    """Return the address that a request came from, and whether it came over TLS."""
    client = request.client
    peer = (client.host, client.port) if client else ("", 0)
    return peer, request.url.scheme == "https"
