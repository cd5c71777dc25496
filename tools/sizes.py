"""Sizes in words."""

from __future__ import annotations


def in_bytes(count: float) -> str:
    """Bytes as people say them, in powers of 1024: `3.4 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number_of(count: int, what: str) -> str:
    """A number with what it counts: `1 file`, `2 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
