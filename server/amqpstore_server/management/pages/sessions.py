"""Who is logged in to the pages: a cookie that names a session of this process.

The session keeps the login itself, and each request checks it again, as one to the API with Basic
authentication would be (`HttpLogins` remembers right ones): so a user that is deleted, or gets
another password or other tags, is out, or has other rights, at the next request.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from amqpstore_server.management.errors import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

    from amqpstore_server.management.login import HttpLogins, Identity

COOKIE = "amqpstore_session"
_IDLE_S = 8 * 3600.0
_MAX_SESSIONS = 1000


@dataclass
class PageNotice:
    """What a page says above everything else, once. `kind` is "good" or "bad"."""

    kind: str
    text: str


@dataclass(eq=False)
class WebSession:
    """One login. `notice` is for the next page."""

    authorization: str
    ends_at: float
    notice: PageNotice | None = None


class Sessions:
    """All sessions of one process; a start of the broker ends them."""

    def __init__(self, logins: HttpLogins) -> None:
        self._logins = logins
        self._sessions: dict[str, WebSession] = {}

    async def log_in(self, request: Request, user: str, secret: str, now: float) -> Response:
        """Check a login, and return the answer with its cookie. Raises: HttpError.

        Args: secret, a password, or a token (JWT), which says by itself who the user is.
        """
        # A token contains two dots and no user has to be named; it is accepted as a password, too.
        basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
        authorization = f"Basic {basic}" if user else f"Bearer {secret}"
        await self._identity(request, authorization, now)
        for token, session in list(self._sessions.items()):
            if session.ends_at <= now:
                del self._sessions[token]
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = WebSession(authorization, now + _IDLE_S)
        answer = Response(status_code=303)
        answer.set_cookie(
            COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    async def found(self, request: Request, now: float) -> tuple[WebSession, Identity] | None:
        """Return the session of a request and who it is; None if it has to log in."""
        token = request.cookies.get(COOKIE, "")
        session = self._sessions.get(token)
        if session is None or session.ends_at <= now:
            return None
        session.ends_at = now + _IDLE_S
        try:
            return session, await self._identity(request, session.authorization, now)
        except HttpError:
            self._sessions.pop(token, None)
            return None

    def log_out(self, request: Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    async def _identity(self, request: Request, authorization: str, now: float) -> Identity:
        client = request.client
        return await self._logins.identity(
            authorization,
            (client.host, client.port) if client else ("", 0),
            has_tls=request.url.scheme == "https",
            now=now,
        )
