"""Password hashes in definitions files: RabbitMQ's, and the encoded form of argon2."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import argon2

ARGON2 = "argon2"
"""The `hashing_algorithm` of this broker's own hashes."""

_SHA256 = "rabbit_password_hashing_sha256"

_MAX_MEMORY_KIB = 1 << 18
_MAX_ROUNDS = 16
_MAX_LANES = 16
"""A hash says what its check costs; one that costs more than this is refused."""


_SALT_BYTES = 4


def salted_sha256(password: bytes) -> bytes:
    """Return the hash of a password in the form of RabbitMQ's definitions: a new salt, and the
    SHA-256 of it and the password. Who has it can try passwords fast.
    """
    salt = os.urandom(_SALT_BYTES)
    return salt + hashlib.sha256(salt + password).digest()


def is_argon2(password_hash: bytes) -> bool:
    """Tell whether this is an argon2 hash whose check does not cost too much."""
    try:
        cost = argon2.extract_parameters(password_hash.decode("ascii"))
    except (argon2.exceptions.InvalidHashError, ValueError):
        return False
    # An imported hash with gigabytes of memory cost would take the machine down at its first
    # login.
    return (
        cost.memory_cost <= _MAX_MEMORY_KIB
        and cost.time_cost <= _MAX_ROUNDS
        and cost.parallelism <= _MAX_LANES
    )


def hash_and_algorithm(row: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return `password_hash` and `hashing_algorithm` for the row of a user."""
    found = row.get("hash", b"")
    if isinstance(found, str):
        return found.encode(), ARGON2
    return found, row.get("algorithm", _SHA256)
