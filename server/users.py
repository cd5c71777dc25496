"""Who may log in: users and their password hashes, kept in the store's catalog."""

from __future__ import annotations

import hashlib
import hmac
import os

import argon2

from amqpstore import Store
from amqpstore.catalog import Change
from server.broker.broker import DEFAULT_VHOST
from server.broker.permissions import ALL
from server.broker.rows import name_key

DEFAULT_USER = "guest"
DEFAULT_PASSWORD = b"guest"


class Users:
    """The users of a store. A new store gets guest/guest, which is good from loopback only.

    A check takes about 100 ms of one core, by design of the hash: call it in a worker thread. A
    login that was right once is remembered for this process under a keyed digest.
    """

    def __init__(self, store: Store) -> None:
        self._hasher = argon2.PasswordHasher()
        self._key = os.urandom(32)
        self._verified: dict[str, bytes] = {}
        self._hashes = {name: row["hash"] for name, row in store.definitions("users").items()}
        if not self._hashes:
            hashed = self._hasher.hash(DEFAULT_PASSWORD)
            store.define(
                [
                    Change("users", DEFAULT_USER, {"hash": hashed}),
                    Change("permissions", name_key(DEFAULT_USER, DEFAULT_VHOST), ALL),
                ]
            )
            self._hashes = {DEFAULT_USER: hashed}
        # Checked against where there is no such user, so that the time taken does not tell.
        self._nobody = self._hasher.hash(os.urandom(16))

    def is_known(self, user: str, password: bytes) -> bool:
        """Whether the login was right before; otherwise it takes `check` to tell."""
        digest = self._verified.get(user)
        return digest is not None and hmac.compare_digest(digest, self._digest(user, password))

    def check(self, user: str, password: bytes) -> bool:
        """Whether the login is right. Slow."""
        try:
            self._hasher.verify(self._hashes.get(user, self._nobody), password)
        except argon2.exceptions.Argon2Error:
            return False
        if user not in self._hashes or not password:
            return False
        self._verified[user] = self._digest(user, password)
        return True

    def _digest(self, user: str, password: bytes) -> bytes:
        return hashlib.blake2b(user.encode() + b"\0" + password, key=self._key).digest()
