"""Names as parts of paths, and back.

Browsers take `..` and `.` out of a path before they send it, percent-encoded or not. The pages
write these two names with an octet behind them that no name has, as it is not UTF-8.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

_DOTS = {".": ".%FF", "..": "..%FF"}
_NAMES = {part.upper(): name for name, part in _DOTS.items()}


def segment(name: str) -> str:
    """Return a name as a part of a path: a slash in it is not a border."""
    return _DOTS.get(name) or quote(name, safe="")


def name_of(part: str) -> str:
    """Return the name that a part of a path stands for. Raises: UnicodeDecodeError."""
    return _NAMES.get(part.upper()) or unquote(part, errors="strict")
