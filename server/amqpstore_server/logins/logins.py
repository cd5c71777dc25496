"""Checks of logins: by password, by a certificate that was verified, or with a token."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from amqpstore_server.broker.rights.scopes import TokenError
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.login import EXTERNAL, PASSWORD_MECHANISMS, CheckedLogin, Login
from amqpstore_server.config.config import Config
from amqpstore_server.logins.login_checks import LoginChecks, checks_at_once
from amqpstore_server.logins.peers import peer_of
from amqpstore_server.logins.users import DEFAULT_USER, Users

if TYPE_CHECKING:
    from amqpstore_server.logins.certificates import Certificates
    from amqpstore_server.logins.tokens import Tokens

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
    "oauth_scope_claims",
    "oauth_scope_aliases",
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
        self._checks = LoginChecks(checks_at_once())
        self._warned: dict[str, float] = {}

    def change(self, config: Config, tokens: Tokens | None) -> None:
        """Use these settings for all logins from now on."""
        self._tokens = tokens
        self._mechanisms = config.mechanisms
        self._plain_without_tls = config.plain_without_tls

    def offered(
        self, log: ClientLog, *, has_tls: bool, is_loopback: bool, certificate: bytes | None
    ) -> tuple[tuple[str, ...], str]:
        """Return the mechanisms for a client, and the user of its certificate: with that it may try
        EXTERNAL, offered or not.
        """
        user = ""
        if (
            certificate is not None
            and self._certificates is not None
            and EXTERNAL in self._mechanisms
        ):
            user = self._certificates.user_of(certificate, log)
        # Clients that may choose take EXTERNAL, and the password that they have would be no use.
        refused = set() if self._users.row(user) is not None else {EXTERNAL}
        if not self.accepts_passwords(has_tls=has_tls, is_loopback=is_loopback):
            refused.update(PASSWORD_MECHANISMS)
        offered: tuple[str, ...] = tuple(one for one in self._mechanisms if one not in refused)
        if not offered and user:
            offered = (EXTERNAL,)  # it has to be offered something, to be told that it is wrong
        return offered, user

    @staticmethod
    def may_come_from(user: str, *, is_loopback: bool) -> bool:
        """Tell whether a user may log in from there: everybody knows the password of guest."""
        return is_loopback or user != DEFAULT_USER

    def accepts_passwords(self, *, has_tls: bool, is_loopback: bool) -> bool:
        """Tell whether a client may send a password the way it is connected."""
        return self._plain_without_tls != "refuse" or has_tls or is_loopback

    def warn(self, client: Mapping[str, object], login: Login, now: float) -> None:
        """Log that a password came without TLS, for each peer once an hour.

        Args: client, what the log says about the client, with its `peer`.
        """
        if login.mechanism == EXTERNAL or self._plain_without_tls != "warn":
            return
        peer = peer_of(str(client["peer"]).rpartition(":")[0])
        if now < self._warned.get(peer, 0.0):
            return
        # The oldest peer is forgotten: behind a NAT or with IPv6 there may be any number of them.
        if len(self._warned) >= _MAX_WARNED:
            del self._warned[next(iter(self._warned))]
        self._warned.pop(peer, None)
        self._warned[peer] = now + _WARN_EVERY_S
        _log.warning("password sent without TLS", extra={**client, "user": login.user})

    def known(self, login: Login, *, is_loopback: bool) -> CheckedLogin | None:
        """Return what `check` would if the password is known to be right; None otherwise."""
        # A token ends, and is verified each time; only passwords are remembered.
        if login.mechanism == EXTERNAL or self._token_of(login) is not None:
            return None
        if not self.may_come_from(login.user, is_loopback=is_loopback):
            return None
        return CheckedLogin(True) if self._users.is_known(login.user, login.password) else None

    async def check(self, login: Login, host: str, *, is_loopback: bool) -> CheckedLogin:
        """Tell whether a login is right, and what its token grants, if there is one."""
        if (token := self._token_of(login)) is not None:
            return await self.check_token(token, host)
        # This comes before the check of the password: a wrong one must not cost a check, nor tell
        # that it was wrong.
        if not self.may_come_from(login.user, is_loopback=is_loopback):
            return CheckedLogin(False, reason=f"{DEFAULT_USER} may log in from loopback only")
        if login.mechanism == EXTERNAL:
            return CheckedLogin(self._users.row(login.user) is not None)
        return CheckedLogin(await self._is_right(login, host))

    def _token_of(self, login: Login) -> str | None:
        """Return the token that came as a password, if one did."""
        if login.mechanism == EXTERNAL or self._tokens is None:
            return None
        token = login.password.decode("utf-8", "replace")
        return token if self._tokens.is_token(token) else None

    async def check_token(self, token: str, host: str) -> CheckedLogin:
        """Tell whether a token is valid, and what it grants."""
        if self._tokens is None:
            return CheckedLogin(False, reason="tokens are not accepted")
        try:
            # Before its turn: a slow issuer would hold up the passwords of all others.
            await self._tokens.find_key(token)
            async with self._checks.turn(host, ""):
                return CheckedLogin(True, await self._tokens.rights(token))
        except TokenError as error:
            return CheckedLogin(False, reason=f"token: {error}")

    async def _is_right(self, login: Login, host: str) -> bool:
        if not self._is_decided(login):
            async with self._checks.turn(host, login.user):
                # The same login of another connection may have been checked meanwhile.
                if not self._is_decided(login):
                    await self._checks.run(self._users.check, login.user, login.password)
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
    from amqpstore_server.logins.tokens import Tokens

    return Tokens(config)
