"""Values of arguments, and which of them are the same although their types differ.

A client's language chooses between text and bytes, between widths of integers, and often between 1
and 1.0; another client, or the next version of the same one, may choose otherwise.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

_AS_THEY_ARE = frozenset({int, bool, bytes, type(None)})
"""The types of values that are compared as they are: one may have thousands inside it."""

_MAX_WHOLE = 1 << 53
"""Floating-point numbers beyond this are all whole, whatever number they stood for."""


def octets_of(value: Any) -> Any:
    """Return text as its octets, and any other value as it is."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def comparable(value: Any) -> Any:
    """Return a value that msgpack can encode, and that is the same for all values that a headers
    exchange cannot tell apart, inside tables and arrays too.
    """
    if isinstance(value, dict):
        return [
            "table",
            *[
                (
                    name,
                    one
                    if type(one) in _AS_THEY_ARE
                    else one.encode("utf-8", "surrogateescape")  # `octets_of`: each call costs
                    if type(one) is str
                    else comparable(one),
                )
                for name, one in sorted(value.items(), key=itemgetter(0))
            ],
        ]
    if isinstance(value, list):
        return ["array", *[one if type(one) in _AS_THEY_ARE else comparable(one) for one in value]]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_WHOLE:
        return int(value)
    return octets_of(value)
