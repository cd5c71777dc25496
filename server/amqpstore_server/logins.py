"""Who may log in: by password, by a certificate that was verified, or with a token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from amqpstore_server.amqp.login import EXTERNAL, PASSWORD_MECHANISMS, Login
from amqpstore_server.broker.scopes import TokenRights
from amqpstore_server.config import Config
from amqpstore_server.login_checks import LoginChecks
from amqpstore_server.users import DEFAULT_USER, Users

if TYPE_CHECKING:
    from amqpstore_server.certificates import Certificates
    from amqpstore_server.tokens import Tokens

_log = logging.getLogger(__name__)

LOGIN_KEYS = (
    "mechanisms",
    "plain_without_tls",
    "oauth_resource_server_id",
    "oauth_scope_prefix",
    "oauth_issuer",
    "oauth_keys",
    "oauth_jwks",
    "oauth_jwks_ca",
    "oauth_algorithms",
    "oauth_leeway_s",
    "oauth_user_claims",
)
"""The keys of the configuration that `Logins.change` takes over."""

_WARN_EVERY_S = 3600.0
_MAX_WARNED = 1000
"""Peers whose last warning is remembered."""


class Logins:
    """Decides about logins. Args: tokens, if those are accepted as passwords; certificates, which
    know the user of a client's certificate.
    """

    def __init__(
        self,
        config: Config,
        users: Users,
        tokens: Tokens | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.may_impersonate = users.may_impersonate
        self._users = users
        self._certificates = certificates
        self.change(config, tokens)
        self._checks = LoginChecks()
        self._warned: dict[str, float] = {}

    def change(self, config: Config, tokens: Tokens | None) -> None:
        """Use these settings for all logins from now on."""
        self._tokens = tokens
        self._mechanisms = config.mechanisms
        self._plain_without_tls = config.plain_without_tls

    def offered(
        self, *, has_tls: bool, is_loopback: bool, certificate: bytes | None
    ) -> tuple[tuple[str, ...], str]:
        """Return the mechanisms for a client, and the user of its certificate."""
        user = ""
        if certificate is not None and self._certificates is not None:
            user = self._certificates.user_of(certificate)
        refused = set() if user else {EXTERNAL}
        if not self.accepts_passwords(has_tls=has_tls, is_loopback=is_loopback):
            refused.update(PASSWORD_MECHANISMS)
        return tuple(one for one in self._mechanisms if one not in refused), user

    def accepts_passwords(self, *, has_tls: bool, is_loopback: bool) -> bool:
        """Tell whether a client may send a password the way it is connected."""
        return self._plain_without_tls != "refuse" or has_tls or is_loopback

    def warn(self, login: Login, host: str, now: float) -> None:
        """Log that a password came without TLS, for each peer once an hour."""
        if login.mechanism == EXTERNAL or self._plain_without_tls != "warn":
            return
        if now < self._warned.get(host, 0.0):
            return
        if len(self._warned) >= _MAX_WARNED:
            del self._warned[next(iter(self._warned))]
        self._warned.pop(host, None)
        self._warned[host] = now + _WARN_EVERY_S
        extra = {"host": host, "user": login.user}
        _log.warning("password sent without TLS", extra=extra)

    async def check(
        self, login: Login, host: str, *, is_loopback: bool
    ) -> tuple[bool, TokenRights | None]:
        """Tell whether a login is right, and what its token grants, if there is one."""
        if login.mechanism != EXTERNAL and self._tokens is not None:
            token = login.password.decode("utf-8", "replace")
            if self._tokens.is_token(token):
                rights = await self.check_token(token, host)
                return rights is not None, rights
        if login.user == DEFAULT_USER and not is_loopback:
            return False, None
        if login.mechanism == EXTERNAL:
            return self._users.row(login.user) is not None, None
        return await self._is_right(login, host), None

    async def check_token(self, token: str, host: str) -> TokenRights | None:
        """Return what a token grants; None, and the log says why, if it is not valid."""
        if self._tokens is None:
            return None
        async with self._checks.turn(host, ""):
            return await self._tokens.rights(token, host)

    async def _is_right(self, login: Login, host: str) -> bool:
        if not self._is_decided(login):
            async with self._checks.turn(host, login.user):
                # The same login of another connection may have been checked meanwhile.
                if not self._is_decided(login):
                    await trio.to_thread.run_sync(self._users.check, login.user, login.password)
                    self._users.upgrade(login.user)
        return self._users.is_known(login.user, login.password)

    def _is_decided(self, login: Login) -> bool:
        """Tell whether a check is not needed."""
        user, password = login.user, login.password
        return self._users.is_known(user, password) or self._users.was_refused(user, password)


def tokens_of(config: Config) -> Tokens | None:
    """Load the keys of tokens, if these are accepted. Raises: ConfigError."""
    if not config.oauth_resource_server_id:
        return None
    # Imported here: a broker without tokens starts sooner, and needs no cryptography.
    from amqpstore_server.tokens import Tokens

    return Tokens(config)
