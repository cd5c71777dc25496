"""Users, their tags and their password hashes, stored in the store's catalog."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import argon2
import msgpack

from amqpstore import DiskFullError, Store
from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.definitions.stored import rows_of
from amqpstore_server.logins.password_hashes import ARGON2

DEFAULT_USER = "guest"
DEFAULT_PASSWORD = b"guest"

TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""The tags that have a meaning, as in RabbitMQ; others are kept, and mean nothing."""

_IMPLIED = {
    "administrator": frozenset({"monitoring", "policymaker", "management"}),
    "monitoring": frozenset({"management"}),
    "policymaker": frozenset({"management"}),
}
"""The tags whose rights a user with a tag has as well."""

_log = logging.getLogger(__name__)


def implied_tags(tags: Iterable[str]) -> frozenset[str]:
    """Return tags with those that they imply."""
    found = set(tags)
    for tag in tags:
        found |= _IMPLIED.get(tag, frozenset())
    return frozenset(found)


_HASHES = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
}
_SALT_BYTES = 4

_MAX_REFUSED = 1000
"""Wrong logins that are remembered: a client that tries one again and again costs no check."""


class Users:
    """The users of a store.

    A check takes about 100 ms of one core, by design of the hash: call it in a worker thread. A
    login that was correct once is remembered for this process under a keyed digest, and so are the
    last wrong ones. Hashes imported from RabbitMQ are checked with RabbitMQ's algorithms, which are
    fast to try passwords with; so at the first correct login an argon2 hash takes their place.
    `imported` of its row is a digest of the old one, by which the same definitions, when they are
    read again, change nothing. `upgrades` turns that off.

    A row with `is_generated` has a password that may not have been seen yet: the first correct
    login removes it.
    """

    def __init__(self, store: Store) -> None:
        self.upgrades = True
        self._store = store
        self._hasher = argon2.PasswordHasher()
        self._key = os.urandom(32)
        self._verified: dict[str, tuple[dict[str, Any], bytes]] = {}
        """By user, the row when a login was correct, and the login's digest."""
        self._upgraded: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """By user, the row when a login was correct, and the one that is to take its place."""
        self._refused: dict[bytes, dict[str, Any] | None] = {}
        """By the digest of a wrong login, the user's row at that time."""
        self._rows: dict[str, dict[str, Any]] = dict(rows_of(store, "users"))
        self._is_empty = not store.definitions.rows("users")
        self._nobody = ""

    @property
    def is_empty(self) -> bool:
        """Whether no user was ever defined; a user whose row cannot be used counts."""
        return self._is_empty

    def define(self, user: str, row: dict[str, Any]) -> None:
        """Define a user with a hash, made by `hashed` or `imported`, and `tags`. Durable on
        return.
        """
        self._store.definitions.define(self.changes({user: row}))
        self.have({user: row})

    @staticmethod
    def changes(rows: Mapping[str, dict[str, Any] | None]) -> list[Change]:
        """Return the catalog changes for these users; None removes one."""
        return [Change("users", user, row) for user, row in rows.items()]

    def have(self, rows: Mapping[str, dict[str, Any] | None]) -> None:
        """Use these users from now on; their changes were committed."""
        for user, row in rows.items():
            if row is None:
                self._rows.pop(user, None)
                # Sessions and known logins of a user that was removed end with it.
                self._verified.pop(user, None)
            else:
                self._rows[user] = row
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

    def row_for_password(self, user: str, password: bytes) -> dict[str, Any]:
        """Return the row of a user with this password: with the present hash, if it is right for
        it. Slow.
        """
        row = self._rows.get(user)
        if row is not None and self._is_right(row, password):
            return _secret(row)
        return self.hashed(password)

    def row_for_hash(self, user: str, password_hash: bytes, algorithm: str) -> dict[str, Any]:
        """Return the row of a user with a hash from a definitions file: with the present one, if
        that has taken its place.
        """
        row = self._rows.get(user, {})
        if row.get("imported") == _digest_of(password_hash, algorithm):
            return _secret(row)
        if algorithm == ARGON2 and password_hash:
            encoded = password_hash.decode("ascii")
            return _secret(row) if row.get("hash") == encoded else {"hash": encoded}
        if algorithm == ARGON2:
            algorithm = "rabbit_password_hashing_sha256"  # which no password has
        return self.imported(password_hash, algorithm)

    @property
    def names(self) -> list[str]:
        """The names of all users."""
        return list(self._rows)

    def row(self, user: str) -> Mapping[str, Any] | None:
        """Return a user's row; None if there is no such user."""
        return self._rows.get(user)

    def has_other_secret(self, user: str, row: Mapping[str, Any]) -> bool:
        """Tell whether a known user would have another password with this row."""
        present = self._rows.get(user)
        return present is not None and _secret(present) != _secret(row)

    def password_digest(self, user: str, key: str) -> bytes | None:
        """Return a digest, under a key, of what a password is checked by: another password has
        another one. None if there is no such user.
        """
        row = self._rows.get(user)
        if row is None:
            return None
        return hmac.digest(key.encode(), msgpack.packb(_secret(row)), "sha256")

    def may(self, user: str, tag: str) -> bool:
        """Tell whether a user has a tag of `TAGS`, or one that implies it."""
        return tag in implied_tags(self._rows.get(user, {}).get("tags", ()))

    def may_impersonate(self, user: str) -> bool:
        """Tell whether a user may publish with another user's user-id."""
        return self.may(user, "impersonator")

    def limits_of(self, user: str) -> Mapping[str, Any]:
        """Return the limits of a user, by RabbitMQ's names: see `broker.quotas`."""
        limits: Mapping[str, Any] = self._rows.get(user, {}).get("limits", {})
        return limits

    def was_refused(self, user: str, password: bytes) -> bool:
        """Tell whether the same login was wrong a short while ago, and still is."""
        # The default is an object that no row is, as None is the row of an unknown user.
        row = self._refused.get(self._digest(user, password), self)
        return row is self._rows.get(user)

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
        if row is None:
            # A dummy hash is checked, so that the time taken does not reveal an unknown user.
            self._nobody = self._nobody or self._hasher.hash(os.urandom(16))
        right = self._is_right(row or {"hash": self._nobody}, password)
        # An empty password is never right: CVE-2016-9877 was a login without one.
        if not right or row is None or not password:
            self._remember_refused(user, password, row)
            return False
        self._verified[user] = row, self._digest(user, password)
        if self.upgrades and (algorithm := row.get("algorithm")):
            secret = {**self.hashed(password), "imported": _digest_of(row["hash"], algorithm)}
            self._upgraded[user] = row, {**secret, **_rights(row)}
        elif "is_generated" in row:
            self._upgraded[user] = row, {**_secret(row), **_rights(row)}
        return True

    def _remember_refused(self, user: str, password: bytes, row: dict[str, Any] | None) -> None:
        # By another thread: one step each.
        self._refused[self._digest(user, password)] = row
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):
            while len(self._refused) > _MAX_REFUSED:
                del self._refused[next(iter(self._refused))]

    def upgrade(self, user: str) -> None:
        """Store the row that the last `check` made in place of the present one, if it did. Durable
        on return.
        """
        row, new = self._upgraded.pop(user, (None, {}))
        # The user may have been changed or removed since.
        if row is None or row is not self._rows.get(user):
            return
        try:
            self._store.definitions.define(self.changes({user: new}))
        except DiskFullError:
            return  # at the next login, then
        self._rows[user] = new
        verified, digest = self._verified[user]
        if verified is row:
            self._verified[user] = new, digest
        if "algorithm" in row:
            _log.info("password hash upgraded", extra={"user": user})

    def _is_right(self, row: Mapping[str, Any], password: bytes) -> bool:
        """Tell whether a password is that of a row. Slow."""
        if algorithm := row.get("algorithm"):
            salt, digest = row["hash"][:_SALT_BYTES], row["hash"][_SALT_BYTES:]
            return hmac.compare_digest(_HASHES[algorithm](salt + password).digest(), digest)
        try:
            return self._hasher.verify(row["hash"], password)
        except argon2.exceptions.Argon2Error:
            return False

    def _digest(self, user: str, password: bytes) -> bytes:
        return hashlib.blake2b(user.encode() + b"\0" + password, key=self._key).digest()


def _secret(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says of the password."""
    return {name: row[name] for name in ("algorithm", "hash", "imported") if name in row}


def _rights(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says of the user, besides the password."""
    return {name: row[name] for name in ("tags", "limits") if name in row}


def _digest_of(password_hash: bytes, algorithm: str) -> bytes:
    # The salt is not stored with it: without the old hash, a password cannot be tried against this
    # faster than against the argon2 hash beside it.
    return hashlib.blake2b(algorithm.encode() + password_hash, digest_size=16).digest()


def unknown_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags that have no meaning here."""
    return [tag for tag in tags if tag not in TAGS]


def tag_notes(tags: Iterable[str]) -> list[str]:
    """Return a line for each tag that is kept and has no effect."""
    meant = ", ".join(TAGS)
    return [
        f"tag '{tag[:100]}' of a user has no effect: there are {meant}"
        for tag in unknown_tags(tags)
    ]
