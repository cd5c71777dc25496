"""The login of one client: what it is offered, whether it is let in, and for how long."""

from __future__ import annotations

import math
import time

import trio

from amqpstore_server.administration.first_users import is_loopback
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.clients.login import CheckedLogin, Login
from amqpstore_server.listening.doors import Visitor
from amqpstore_server.logins.logins import Logins


class ClientLogin:
    """Has logins checked, and tells the protocol and the doors what came of it.

    Set `visitor` before the client is read, and delete it when it has left.
    """

    visitor: Visitor

    def __init__(self, amqp: AmqpConnection, logins: Logins, host: str, *, has_tls: bool) -> None:
        self._amqp = amqp
        self._logins = logins
        self._host = host
        self._has_tls = has_tls
        self._is_loopback = is_loopback(host)
        self._expires_at = math.inf
        """The time of the wall clock at which the client's token expires."""

    def offer(self, certificate: bytes | None) -> None:
        """Choose the mechanisms for this client."""
        mechanisms, user = self._logins.offered(
            self._amqp.log,
            has_tls=self._has_tls,
            is_loopback=self._is_loopback,
            certificate=certificate,
        )
        self._amqp.offer(mechanisms, user)

    def decide_if_known(self, now: float) -> None:
        """Go on at once with a client whose login was checked before: the task of its connection
        would have its turn after several others.
        """
        login = self._amqp.negotiated.login
        if checked := self._logins.known(login, is_loopback=self._is_loopback):
            self.decide(login, checked, now)

    async def check(self) -> tuple[Login, CheckedLogin]:
        """Have the client's login checked. Returns it with the result, for `decide`."""
        login = self._amqp.negotiated.login
        return login, await self._logins.check(login, self._host, is_loopback=self._is_loopback)

    def decide(self, login: Login, checked: CheckedLogin, now: float) -> None:
        """Go on with a client whose login was checked."""
        if not self._has_tls and not self._is_loopback:
            self._logins.warn(self._amqp.log.fields, login, now)
        if checked.granted:
            self.visitor.logged_in()
        else:
            self.visitor.refused()
        self._limit(checked)
        self._amqp.logged_in(checked, now)

    async def renew(self, token: str) -> None:
        """Check a new token, while the client goes on with the old one."""
        checked = await self._logins.check_token(token, self._host)
        if self._amqp.renewed(checked, trio.current_time()):
            self._limit(checked)

    def _limit(self, checked: CheckedLogin) -> None:
        if checked.rights is not None:
            self._expires_at = checked.rights.expires_at

    def end_if_expired(self, now: float) -> None:
        """Close the connection of a client whose token has expired."""
        if time.time() >= self._expires_at:
            self._expires_at = math.inf
            self._amqp.log.warning("token expired")
            self._amqp.shut_down(now, "the token has expired")
