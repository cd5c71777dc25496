"""The keys that tokens are signed with: public keys only, from files or from the issuer.

What the issuer serves (JWKS) is fetched over HTTPS, its certificate verified always, without
following redirects, in bounded time and size. There is no way to turn that off: whoever can answer
in the issuer's place could make tokens for anybody (CVE-2026-67404).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
from typing import Any
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from amqpstore_server.config.config import Config
from amqpstore_server.config.small_files import MAX_BYTES, read_small

_MAX_KEYS = 1000
_STEP_S = 5.0
"""The longest that one step of a fetch may take; `tokens` limits all of it."""
_CHUNK_BYTES = 1 << 16

_PUBLIC_TYPES = ("RSA", "EC", "OKP")
"""The types of keys (`kty`) that are used. "oct" is a secret that both sides know."""

Keys = dict[str, Any]
"""Public keys by their ids."""


class KeysError(Exception):
    """The keys cannot be read. The message names the file or the address."""


class KeySource:
    """The source of the configured keys. `is_remote` if they are fetched, from `address`."""

    def __init__(self, config: Config) -> None:
        self._directory = config.oauth_keys
        self.address = config.oauth_jwks.removeprefix("file://")
        self._ca = config.oauth_jwks_ca
        self.is_remote = config.oauth_jwks.startswith("https:")

    def read(self) -> Keys:
        """Return all keys. Raises: KeysError."""
        keys = _pem_keys(self._directory) if self._directory else {}
        if self.address:
            content = self._fetched() if self.is_remote else _file(self.address)
            keys |= _jwks_keys(content, self.address)
        if len(keys) > _MAX_KEYS:
            raise KeysError(f"more than {_MAX_KEYS} keys")
        return keys

    def _fetched(self) -> bytes:
        parts = urlsplit(self.address)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            context = ssl.create_default_context(cafile=self._ca or None)
            host, port = parts.hostname or "", parts.port
            connection = http.client.HTTPSConnection(host, port, timeout=_STEP_S, context=context)
            try:
                connection.request("GET", target, headers={"Accept": "application/json"})
                return self._answer(connection.getresponse())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KeysError(f"{self.address}: {error}") from None

    def _answer(self, response: http.client.HTTPResponse) -> bytes:
        # A redirect, too: it could lead to an address that the operator has not named.
        if response.status != http.client.OK:
            raise KeysError(f"{self.address}: status {response.status}")
        content = b""
        while part := response.read1(_CHUNK_BYTES):
            content += part
            if len(content) > MAX_BYTES:
                raise KeysError(f"{self.address}: more than {MAX_BYTES >> 10} KiB")
        return content


def _pem_keys(directory: str) -> Keys:
    """Read the files `KEY-ID.pem` of a directory."""
    keys: Keys = {}
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise KeysError(f"{directory}: {error.strerror}") from None
    for name in names:
        if name.endswith(".pem"):
            path = os.path.join(directory, name)
            try:
                keys[name.removesuffix(".pem")] = load_pem_public_key(_file(path))
            except ValueError as error:
                raise KeysError(f"{path}: not a PEM public key: {error}") from None
    return keys


def _jwks_keys(content: bytes, source: str) -> Keys:
    """Parse a JSON Web Key Set (RFC 7517). Keys of other types and for encryption are left out."""
    keys: Keys = {}
    try:
        found = json.loads(content)["keys"]
        for one in found:
            # With a symmetric key in the set, every reader of the set could sign tokens.
            if one.get("kty") in _PUBLIC_TYPES and one.get("use", "sig") == "sig":
                # Those of a curve that is not known here are for others.
                with contextlib.suppress(jwt.PyJWTError):
                    keys[str(one.get("kid", ""))] = jwt.PyJWK(one).key
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise KeysError(f"{source}: not a JSON Web Key Set: {error}") from None
    except RecursionError:
        raise KeysError(f"{source}: not a JSON Web Key Set: nested too deeply") from None
    return keys


def _file(path: str) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
