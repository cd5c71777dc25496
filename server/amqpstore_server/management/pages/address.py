"""The address of a page: which one is asked for, and what it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Values = dict[str, Any]
"""The values that the template of a page gets."""


_OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")
"""A path of printable ASCII, as browsers write it: they leave out tabs and ends of lines, so that
`/<tab>/host` is another site, as is what begins with two slashes.
"""


def own_path(path: str) -> str:
    """Return a path, with what is behind it, if it is one of this site for certain; else `/`."""
    return path if _OWN_PATH.fullmatch(path) else "/"


class PageAddress(NamedTuple):
    """The parts of the address of a page: the names in its path, decoded, and its parameters.

    `cookies` are what the browser has kept, such as which columns a list has in it.
    """

    path: Mapping[str, str]
    query: Mapping[str, str]
    cookies: Mapping[str, str]
