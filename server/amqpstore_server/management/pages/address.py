"""Which page is asked for, and what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Values = dict[str, Any]
"""What the template of a page gets."""


class PageAddress(NamedTuple):
    """What the address of a page says: the names in its path, decoded, and its parameters.

    `cookies` are what the browser has kept, such as which columns a list has in it.
    """

    path: Mapping[str, str]
    query: Mapping[str, str]
    cookies: Mapping[str, str]
