"""The login of a request, and what it may see and do.

Logins are checked by the same functions as those of AMQP clients, in the same queue, so that wrong
ones cost the broker no more here than there; a login that was right is remembered. Tags mean what
they mean in RabbitMQ: `management` may ask at all, `policymaker` sets policies and parameters where
it may open the virtual host, `monitoring` sees everything, `administrator` may do everything.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from amqpstore_server.administration.first_users import is_loopback
from amqpstore_server.broker.errors import NotAllowedError
from amqpstore_server.broker.monitoring.audit import audit_refusal
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.clients.login import Login
from amqpstore_server.logins.users import implied_tags
from amqpstore_server.management.errors import HttpError, not_authorised

if TYPE_CHECKING:
    from amqpstore_server.broker.broker import Broker
    from amqpstore_server.broker.rights.scopes import TokenRights
    from amqpstore_server.management.context import ManagementContext

MECHANISM = "HTTP"
_REALM = 'Basic realm="RabbitMQ Management"'
"""RabbitMQ's: programs look up the password for it, such as Nagios' checks."""
_MAX_LOGGED = 1000
_LOG_EVERY_S = 3600.0


class Identity:
    """A user who is logged in. `own_tags` are what it was given, `tags` also has what those imply.

    Args: rights, of a token, if the user logged in with one.
    """

    def __init__(
        self, broker: Broker, user: str, tags: Iterable[str], rights: TokenRights | None = None
    ) -> None:
        self.user = user
        self.own_tags = frozenset(tags)
        self.tags = implied_tags(self.own_tags)
        self._broker = broker
        self._rights = rights

    @property
    def is_internal(self) -> bool:
        """Whether the user is one of the broker's, and none that a token names."""
        return self._rights is None

    @property
    def is_administrator(self) -> bool:
        """Whether the user may do everything."""
        return "administrator" in self.tags

    @property
    def is_monitor(self) -> bool:
        """Whether the user may see everything."""
        return "monitoring" in self.tags

    @property
    def is_policymaker(self) -> bool:
        """Whether the user may set policies and parameters."""
        return "policymaker" in self.tags

    def access(self, vhost: str) -> Access:
        """Return the permissions in a virtual host. Raises: NotFoundError, NotAllowedError."""
        if self._rights is not None:
            return self._rights.access(vhost)
        return self._broker.access(self.user, vhost)

    def may_open(self, vhost: str) -> bool:
        """Tell whether the user has any permission in a virtual host that exists."""
        try:
            self.access(vhost)
        except NotAllowedError:
            return False
        return True

    def may_see(self, vhost: str) -> bool:
        """Tell whether the user may see what is in a virtual host that exists."""
        return self.is_monitor or self.may_open(vhost)

    def visible_vhosts(self) -> list[str]:
        """Return the names of the virtual hosts that the user may see."""
        return [name for name in self._broker.vhosts if self.may_see(name)]

    def may_see_user(self, user: str) -> bool:
        """Tell whether the user may see connections of a user."""
        return self.is_monitor or self.user == user


class HttpLogins:
    """Checks the logins of requests."""

    def __init__(self, context: ManagementContext) -> None:
        self._context = context
        self._logged: dict[tuple[str, str], float] = {}
        """By user and host, until when no further login is logged: each request has one."""

    async def identity(
        self, authorization: str | None, peer: tuple[str, int], *, has_tls: bool, now: float
    ) -> Identity:
        """Return who asks. Raises: HttpError.

        Args: authorization, the header; peer, the address of the client.
        """
        scheme, _, credentials = (authorization or "").partition(" ")
        host = peer[0]
        match scheme.lower():
            case "basic":
                login = _basic(credentials)
                if not self._takes_password(login, peer, has_tls=has_tls, now=now):
                    raise _unauthenticated("Passwords are accepted over TLS only")
                checked = await self._context.logins.check(
                    login, host, is_loopback=is_loopback(host)
                )
                user = login.user
            case "bearer":
                checked = await self._context.logins.check_token(credentials.strip(), host)
                user = ""
            case _:
                raise _unauthenticated("Login required")
        self._context.broker.services.statistics.logins["http", checked.granted] += 1
        rights = checked.rights
        if rights is not None:
            user = rights.user
        if not checked.granted:
            why = {"reason": checked.reason} if checked.reason else {}
            self._context.broker.services.events.refused(
                "login refused",
                partial(_event, "failure", user, peer),
                peer=_shown(peer),
                user=user,
                mechanism=MECHANISM,
                **why,
            )
            raise _unauthenticated("Not_Authorized")
        identity = self._admitted(user, rights, peer)
        self._log(user, peer, now)
        return identity

    def identity_of(self, user: str, peer: tuple[str, int], *, has_tls: bool) -> Identity:
        """Return a user whose password was right before, and who has it still. Raises: HttpError.

        It may be asked from elsewhere than then, and the configuration may be another one.
        """
        loopback, logins = is_loopback(peer[0]), self._context.logins
        if not (
            # A session outlives a reload that refuses passwords without TLS, and may be used from
            # another machine.
            logins.accepts_passwords(has_tls=has_tls, is_loopback=loopback)
            and logins.may_come_from(user, is_loopback=loopback)
        ):
            raise _unauthenticated("Not_Authorized")
        return self._admitted(user, None, peer)

    def _admitted(self, user: str, rights: TokenRights | None, peer: tuple[str, int]) -> Identity:
        """Return a user who is who it says, and may use this door. Raises: HttpError."""
        tags = rights.tags if rights else self._context.administration.tags_of(user)
        identity = Identity(self._context.broker, user, tags, rights)
        # The tag is looked at after the login: a stranger does not learn which users have it.
        if "management" not in identity.tags:
            audit_refusal(
                "access refused", peer=_shown(peer), user=user, reason="no tag for management"
            )
            raise not_authorised("Not management user")
        return identity

    def _takes_password(
        self, login: Login, peer: tuple[str, int], *, has_tls: bool, now: float
    ) -> bool:
        if has_tls or is_loopback(peer[0]):
            return True
        self._context.logins.warn({"peer": _shown(peer)}, login, now)
        return self._context.logins.accepts_passwords(has_tls=False, is_loopback=False)

    def _log(self, user: str, peer: tuple[str, int], now: float) -> None:
        """Log a login of a user, from each host once an hour."""
        key = user, peer[0]
        # A script that logs in with each request would otherwise fill the log.
        if now < self._logged.get(key, 0.0):
            return
        if len(self._logged) >= _MAX_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._logged.pop(key, None)
        self._logged[key] = now + _LOG_EVERY_S
        self._context.broker.services.events.noted(
            "login",
            partial(_event, "success", user, peer),
            peer=_shown(peer),
            user=user,
            mechanism=MECHANISM,
        )


def _event(outcome: str, user: str, peer: tuple[str, int]) -> BrokerEvent:
    headers = {
        "name": user,
        "connection_type": "http",
        "auth_mechanism": MECHANISM,
        "peer_host": peer[0],
        "peer_port": peer[1],
    }
    return BrokerEvent(f"user.authentication.{outcome}", headers)


def _basic(credentials: str) -> Login:
    """Return the login of Basic authentication. Raises: HttpError."""
    try:
        decoded = base64.b64decode(credentials.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise HttpError(400, "bad_request", "the Authorization header is not valid") from None
    user, colon, password = decoded.partition(b":")
    if not colon:
        raise HttpError(400, "bad_request", "the Authorization header is not valid")
    return Login(user.decode("utf-8", "replace"), password, MECHANISM)


def _unauthenticated(reason: str) -> HttpError:
    return HttpError(401, "not_authorized", reason, {"www-authenticate": _REALM})


def _shown(peer: Iterable[object]) -> str:
    return ":".join(map(str, peer))
