"""Replaces values by others, as a seed says."""

from __future__ import annotations

import random
from typing import Any


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


NUMBERS = [
    *(0, 1, 2, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 31) + 1),
    *((1 << 32) - 1, 1 << 32, 1 << 40, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 63),
    (1 << 64) - 1,
]
VALUES: list[Any] = [
    *NUMBERS,
    *(-1, -(1 << 63), None, True, False, 0.5, float("nan"), float("inf"), 1e300),
    *("", "a", "\0", "a\0b", "../../x", "/etc/passwd", "x" * 600, "x" * 5000, "é", "\x1b[2J"),
    *(b"", b"\xff", b"B", b"Q" + bytes(8), b"x" * 5000, [], [[]], {}, {"": None}, {1: 2}),
    *([0] * 1000, [[1, 2]], [[1, 2, 3]], [[1, 2, 3, 4]], [["a", None, {}, b""]]),
    *(_nested(60), _nested(400), _nested(900), {"x": _nested(500)}),
]


class Forger:
    """Changes what a seeded generator picks; `did` says what."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.did = ""

    def number(self, before: int, most: int = (1 << 64) - 1) -> int:
        """Return another number to write in place of one."""
        rng = self.random
        near = [before + 1, before - 1, before * 2, before ^ 1 << rng.randrange(64)]
        return rng.choice(near if rng.random() < 0.5 else NUMBERS) & most

    def value(self, value: Any) -> Any:
        """Return a copy of a value in which one value somewhere is changed, missing or there
        twice.
        """
        rng = self.random
        if isinstance(value, dict) and value and rng.random() < 0.95:
            return self._of_map(value)
        if isinstance(value, list) and value and rng.random() < 0.9:
            return self._of_list(value)
        changed: Any
        if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.6:
            changed = self.number(value)
        elif isinstance(value, bytes) and value and rng.random() < 0.6:
            changed = self.octets(value)
        else:
            changed = rng.choice(VALUES)
        self.did += f" {_shown(value)} -> {_shown(changed)}"
        return changed

    def octets(self, content: bytes) -> bytes:
        """Return a copy of some bytes in which some are overwritten, cut off or there twice."""
        rng = self.random
        changed = bytearray(content)
        place = rng.randrange(len(changed)) if changed else 0
        way = rng.random()
        size = rng.choice((1, 2, 4, 8))
        if way < 0.5:
            number = rng.choice(NUMBERS) & (1 << 8 * size) - 1
            changed[place : place + size] = number.to_bytes(size, "big")
        elif way < 0.7 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif way < 0.8:
            del changed[place:]
        elif way < 0.9:
            changed[place:place] = changed[place : place + 64]
        else:
            changed += bytes(size)
        self.did += f" bytes at {place}"
        return bytes(changed)

    def _of_map(self, value: dict[Any, Any]) -> dict[Any, Any]:
        rng = self.random
        key = rng.choice(list(value))
        self.did += f" {key!r}"
        way = rng.random()
        if way < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if way < 0.15:
            other = rng.choice(["", "x", "x" * 600, "é/../\0", 0, None])
            return {(other if name == key else name): one for name, one in value.items()}
        return {**value, key: self.value(value[key])}

    def _of_list(self, value: list[Any]) -> list[Any]:
        rng = self.random
        place = rng.randrange(len(value))
        self.did += f" [{place}]"
        way = rng.random()
        if way < 0.1:
            return value[:place] + value[place + 1 :]
        if way < 0.2:
            return [*value[:place], value[place], *value[place:]]
        return [*value[:place], self.value(value[place]), *value[place + 1 :]]


def _shown(value: Any) -> str:
    return repr(value)[:60]
