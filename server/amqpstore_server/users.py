"""Users and their password hashes, stored in the store's catalog."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any

import argon2

from amqpstore import Store
from amqpstore.catalog import Change
from amqpstore_server.broker.stored import rows_of

DEFAULT_USER = "guest"
DEFAULT_PASSWORD = b"guest"


_HASHES = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
}
_SALT_BYTES = 4


class Users:
    """The users of a store.

    A check takes about 100 ms of one core, by design of the hash: call it in a worker thread. A
    login that was correct once is remembered for this process under a keyed digest. Hashes imported
    from RabbitMQ are checked with RabbitMQ's algorithms.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hasher = argon2.PasswordHasher()
        self._key = os.urandom(32)
        self._verified: dict[str, tuple[dict[str, Any], bytes]] = {}
        """By user, the row when a login was correct, and the login's digest."""
        self._rows: dict[str, dict[str, Any]] = dict(rows_of(store, "users"))
        self._is_empty = not store.definitions("users")
        self._nobody = ""

    @property
    def is_empty(self) -> bool:
        """Whether no user was ever defined; a user whose row cannot be used counts."""
        return self._is_empty

    def define(self, user: str, row: dict[str, Any]) -> None:
        """Define a user with a hash, made by `hashed` or `imported`, and `tags`. Durable on
        return.
        """
        self._store.define(self.changes({user: row}))
        self.have({user: row})

    @staticmethod
    def changes(rows: Mapping[str, dict[str, Any]]) -> list[Change]:
        """Return the catalog changes for these users."""
        return [Change("users", user, row) for user, row in rows.items()]

    def have(self, rows: Mapping[str, dict[str, Any]]) -> None:
        """Use these users from now on; their changes were committed."""
        self._rows.update(rows)
        self._is_empty &= not rows

    def hashed(self, password: bytes) -> dict[str, Any]:
        """Return the row of a password. Slow."""
        return {"hash": self._hasher.hash(password)}

    @staticmethod
    def imported(password_hash: bytes, algorithm: str) -> dict[str, Any]:
        """Return the row of a hash of RabbitMQ's: a salt of 4 bytes, and the hash of it and the
        password.

        An empty hash means that the user cannot log in with a password.
        """
        return {"algorithm": algorithm, "hash": password_hash}

    def may_impersonate(self, user: str) -> bool:
        """Tell whether a user may publish with another user's user-id: RabbitMQ's tag
        `impersonator`.
        """
        return "impersonator" in self._rows.get(user, {}).get("tags", ())

    def is_known(self, user: str, password: bytes) -> bool:
        """Tell whether the same login was correct before; if not, call `check`."""
        row, digest = self._verified.get(user, (None, b""))
        # The password may have been changed since, even during the check.
        if row is None or row is not self._rows.get(user):
            return False
        return hmac.compare_digest(digest, self._digest(user, password))

    def check(self, user: str, password: bytes) -> bool:
        """Tell whether the login is correct: call `is_known` afterwards. Slow.

        The password may be changed during the check: then the login was correct, and is not known.
        """
        row = self._rows.get(user)
        if row is not None and (algorithm := row.get("algorithm")):
            salt, digest = row["hash"][:_SALT_BYTES], row["hash"][_SALT_BYTES:]
            right = hmac.compare_digest(_HASHES[algorithm](salt + password).digest(), digest)
        else:
            # For an unknown user a dummy hash is checked, so that the time taken does not reveal
            # it.
            self._nobody = self._nobody or self._hasher.hash(os.urandom(16))
            try:
                right = self._hasher.verify(row["hash"] if row else self._nobody, password)
            except argon2.exceptions.Argon2Error:
                right = False
        if not right or row is None or not password:
            return False
        self._verified[user] = row, self._digest(user, password)
        return True

    def _digest(self, user: str, password: bytes) -> bytes:
        return hashlib.blake2b(user.encode() + b"\0" + password, key=self._key).digest()
