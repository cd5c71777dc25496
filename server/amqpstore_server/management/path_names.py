"""Names as segments of paths, and back.

Browsers take `..` and `.` out of a path before they send it, percent-encoded or not. The pages
write these two names with an octet behind them that no name has, as it is not UTF-8.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

_DOTS = {".": ".%FF", "..": "..%FF"}
_NAMES = {encoded.upper(): name for name, encoded in _DOTS.items()}


def segment(name: str) -> str:
    """Return a name as a segment of a path: a slash in it is not a border."""
    return _DOTS.get(name) or quote(name, safe="")


def name_of(encoded: str) -> str:
    """Return the name that a segment of a path stands for. Raises: UnicodeDecodeError."""
    # Names are compared in upper case, as a proxy may write the hexadecimal digits of an escape in
    # either.
    return _NAMES.get(encoded.upper()) or unquote(encoded, errors="strict")
