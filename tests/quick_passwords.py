"""Password hashes that take no time.

By design a hash takes a fifth of a second of processor time, and nearly each broker of a test makes
one, for guest, and checks it once. So the process of the tests and the brokers that it forks make
hashes with the smallest parameters. What a check costs is tested with brokers whose hashes are
those of an operator: see `CostlyPasswordsBroker`, and `CommandLineBroker`.
"""

import argon2


class QuickHasher(argon2.PasswordHasher):
    """Makes hashes of the smallest cost."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)


def use() -> None:
    """Make such hashes in this process from now on."""
    argon2.PasswordHasher = QuickHasher  # type: ignore[assignment,misc]
