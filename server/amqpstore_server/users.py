"""Who may log in: users and their password hashes, kept in the store's catalog."""

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
    login that was right once is remembered for this process under a keyed digest. Hashes that
    were imported from RabbitMQ are checked as there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hasher = argon2.PasswordHasher()
        self._key = os.urandom(32)
        self._verified: dict[str, tuple[dict[str, Any], bytes]] = {}
        """By user, what was kept of the password when a login was right, and the login's digest."""
        self._rows: dict[str, dict[str, Any]] = dict(rows_of(store, "users"))
        self._is_empty = not store.definitions("users")
        self._nobody = ""

    @property
    def is_empty(self) -> bool:
        """Whether no user was ever defined: one whose row cannot be used was."""
        return self._is_empty

    def define(self, user: str, row: dict[str, Any]) -> None:
        """Have a user with a hash, of `hashed` or `imported`, and `tags`. Durable on return."""
        self._store.define(self.changes({user: row}))
        self.have({user: row})

    @staticmethod
    def changes(rows: Mapping[str, dict[str, Any]]) -> list[Change]:
        """What is to be committed for these users."""
        return [Change("users", user, row) for user, row in rows.items()]

    def have(self, rows: Mapping[str, dict[str, Any]]) -> None:
        """Have these users from now on; their changes were committed."""
        self._rows.update(rows)
        self._is_empty &= not rows

    def hashed(self, password: bytes) -> dict[str, Any]:
        """What is kept of a password. Slow."""
        return {"hash": self._hasher.hash(password)}

    @staticmethod
    def imported(password_hash: bytes, algorithm: str) -> dict[str, Any]:
        """What is kept of RabbitMQ's hash: a salt of 4 bytes, and what it makes with the password.

        An empty one is of a user who cannot log in with a password.
        """
        return {"algorithm": algorithm, "hash": password_hash}

    def may_impersonate(self, user: str) -> bool:
        """Whether a user may publish in the name of others: the tag of RabbitMQ's that says so."""
        return "impersonator" in self._rows.get(user, {}).get("tags", ())

    def is_known(self, user: str, password: bytes) -> bool:
        """Whether the login was right before; otherwise it takes `check` to tell."""
        row, digest = self._verified.get(user, (None, b""))
        # The password may have been changed since, even while that login was being checked.
        if row is None or row is not self._rows.get(user):
            return False
        return hmac.compare_digest(digest, self._digest(user, password))

    def check(self, user: str, password: bytes) -> bool:
        """Whether the login is right: ask `is_known` behind it. Slow.

        While it is being checked the password may be changed: then the login was right, and is not
        known.
        """
        row = self._rows.get(user)
        if row is not None and (algorithm := row.get("algorithm")):
            salt, digest = row["hash"][:_SALT_BYTES], row["hash"][_SALT_BYTES:]
            right = hmac.compare_digest(_HASHES[algorithm](salt + password).digest(), digest)
        else:
            # Where there is no such user, one of nobody, so that the time taken does not tell.
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
