"""The list of long proofs, `proofs.toml`: which of them a change must pass, and with which seed.

What a share takes is in the list, and it is not cut by the clock: the same commit proves the same
on every machine.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple, Self

PATH = Path(__file__).with_name("proofs.toml")

WORKERS = 2
"""How many tests of a share run at a time."""

MAX_MINUTES = 20
"""The time that a share may take with this many workers."""


class Proofs(NamedTuple):
    """The list. Tests are names without the ids of parameters, each with its seconds."""

    seed: int
    turn: int
    """The group of the rotation whose turn it is, from 1 on."""
    always: dict[str, float]
    rotation: list[dict[str, float]]

    @classmethod
    def read(cls, path: Path = PATH) -> Self:
        """Read the list."""
        content: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return cls(**content)

    @property
    def share(self) -> dict[str, float]:
        """The tests whose turn it is, in order: first those of every turn."""
        return {**self.always, **self.rotation[self.turn - 1]}

    @property
    def minutes(self) -> float:
        """The minutes that the share takes."""
        return sum(self.share.values()) / WORKERS / 60
