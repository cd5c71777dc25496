"""Tokens of OAuth 2 (JWT), which clients send as their password: verified, and read as rights.

A token is accepted if one of the known keys has signed it with an algorithm of the configuration,
if it is for this server (`aud`), and valid now (`exp`, which it must have, and `nbf`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jwt
import trio

from amqpstore_server.broker.rights.scopes import TokenError, TokenRights, scopes_and_tags
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.logins.token_keys import Keys, KeysError, KeySource

_log = logging.getLogger(__name__)

_FETCH_S = 10.0
_FETCH_EVERY_S = 10.0
"""Tokens with an unknown key id have the keys fetched again, but no more often than this."""

_FETCH_AGAIN_S = 3600.0
"""Keys are fetched again after this time anyway: the issuer may have withdrawn one."""

_MAX_USER_BYTES = 255


class Tokens:
    """Verifies tokens.

    Keys that cannot be fetched are an event in the log, and fetched again when a token needs them.
    Raises: ConfigError, if the keys are in files that cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._audience = config.oauth_resource_server_id
        self._prefix = config.oauth_scope_prefix or f"{self._audience}."
        self._issuer = config.oauth_issuer or None
        self._algorithms = config.oauth_algorithms
        self._leeway_s = config.oauth_leeway_s
        self._user_claims = config.oauth_user_claims
        self._scope_claims = config.oauth_scope_claims
        self._scope_aliases = config.oauth_scope_aliases
        self._source = KeySource(config)
        self._keys: Keys = {}
        self._fetched_at = self._fetch_again_at = float("-inf")
        self._fetching = trio.Lock()
        if not self._source.is_remote:
            try:
                self._keys = self._source.read()
            except KeysError as error:
                raise ConfigError(str(error)) from None

    @staticmethod
    def is_token(password: str) -> bool:
        """Tell whether a password looks like a token: three parts, the first a JSON object."""
        return password.startswith("eyJ") and password.count(".") == 2

    async def find_key(self, token: str) -> None:
        """Fetch the keys, if the one that a token needs is not known, or the keys are old. That may
        take as long as the issuer likes, up to `_FETCH_S`. Raises: TokenError, for no token at all.
        """
        header = await trio.to_thread.run_sync(_header, token)
        if self._source.is_remote:
            await self._fetch_for(header)

    async def rights(self, token: str) -> TokenRights:
        """Return what a token grants, by the keys that are known. Raises: TokenError."""
        return await trio.to_thread.run_sync(self.verified, token)

    def verified(self, token: str) -> TokenRights:
        """Return what a token grants. Raises: TokenError."""
        try:
            key = self._key_of(_header(token))
            claims = jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={
                    "require": ["exp", "aud"],
                    "verify_signature": True,
                    "verify_sub": False,
                    "verify_aud": False,
                },
            )
            self._check_audience(claims["aud"])
            return self._rights(claims)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise TokenError(str(error)) from None

    def _check_audience(self, audience: object) -> None:
        """Raises: TokenError."""
        if self._audience not in _texts("aud", audience):
            raise TokenError(f"it is not for {self._audience} (aud)")

    def _key_of(self, header: Mapping[str, Any]) -> Any:
        key_id = header.get("kid")
        # With several keys and no id every one would have to be tried, for tokens of strangers.
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if not isinstance(key_id, str) or key_id not in self._keys:
            raise TokenError(f"no key with the id {str(key_id)[:100]!r}")
        return self._keys[key_id]

    async def _fetch_for(self, header: Mapping[str, Any]) -> None:
        # One fetch at a time: a thousand clients that reconnect with a new key cause one, and the
        # others find it done.
        async with self._fetching:
            now = trio.current_time()
            is_known = header.get("kid") in self._keys or ("kid" not in header and self._keys)
            if is_known and now < self._fetched_at + _FETCH_AGAIN_S:
                return
            # Any client chooses the key id: without this, each wrong token would be a request to
            # the issuer.
            if now < self._fetch_again_at:
                return
            self._fetch_again_at = now + _FETCH_EVERY_S
            try:
                self._keys = await self._fetched()
            except KeysError as error:
                # The keys that are known stay in use: the issuer may be away for a while.
                _log.error("keys for tokens not fetched", extra={"reason": str(error)})
            else:
                self._fetched_at = now
                _log.info("keys for tokens fetched", extra={"keys": len(self._keys)})

    async def _fetched(self) -> Keys:
        """Fetch the keys. Raises: KeysError, also when that takes too long."""
        with trio.move_on_after(_FETCH_S):
            # Abandoned, the thread ends by itself: an issuer that sends a byte now and then must
            # not hold up logins meanwhile.
            return await trio.to_thread.run_sync(self._source.read, abandon_on_cancel=True)
        raise KeysError(f"{self._source.address}: took more than {_FETCH_S:.0f} s")

    def _rights(self, claims: Mapping[str, Any]) -> TokenRights:
        user = next((claims[one] for one in self._user_claims if one in claims), None)
        if not isinstance(user, str) or not user or len(user.encode()) > _MAX_USER_BYTES:
            raise TokenError(f"it has no user in {' or '.join(self._user_claims)}")
        named = [
            one
            for claim in self._scope_claims
            for value in _values(claims, claim)
            for one in self._scopes(claim, value)
        ]
        named += [scope for one in named for scope in self._scope_aliases.get(one, ())]
        own = [one.removeprefix(self._prefix) for one in named if one.startswith(self._prefix)]
        scopes, tags = scopes_and_tags(own)
        return TokenRights(user, scopes, tags, float(claims["exp"]) + self._leeway_s)

    def _scopes(self, claim: str, value: object) -> list[str]:
        """Return the scopes in a claim. Those of an object that has them by server, as UAA issues
        it, are without a prefix. Raises: TokenError.
        """
        if isinstance(value, dict):
            return [self._prefix + one for one in _texts(claim, value.get(self._audience, []))]
        return _texts(claim, value)


def _values(claims: Mapping[str, Any], claim: str) -> list[object]:
    """Return the values of a claim: of that name, or else at that path of names, which goes through
    all items of a list.
    """
    if claim in claims:
        return [claims[claim]]
    found: list[object] = [claims]
    for name in claim.split("."):
        inside = (one for value in found for one in (value if isinstance(value, list) else [value]))
        found = [one[name] for one in inside if isinstance(one, dict) and name in one]
    return found


def _texts(claim: str, value: object) -> list[str]:
    """Return the texts of a claim: a list, or one text with spaces. Raises: TokenError."""
    if isinstance(value, str):
        return value.split(" ")
    if not isinstance(value, list):
        raise TokenError(f"its {claim} is neither a text nor a list")
    return [one for one in value if isinstance(one, str)]


def _header(token: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise TokenError(str(error)) from None
    return header
