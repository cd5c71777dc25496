"""Times as people write them on a command line."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime


def time_ms(text: str) -> int:
    """Parse a time as ms since 1970: ISO 8601, in UTC without a zone, or a number.

    Raises: argparse.ArgumentTypeError.
    """
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-11-21T17:00:00, or milliseconds since 1970"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
