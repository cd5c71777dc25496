"""The keys of the catalog's tables, as text and parsed (FORMAT.md, "Catalog tables").

A key is text of decimal digits with leading zeros, so that the keys' bytes sort in the order of the
numbers. Tables of the broker, such as vhosts and users, have keys in its own form.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol, TypeVar

K = TypeVar("K")

_MAX_QUEUE_ID = (1 << 63) - 1
_MAX_SEGMENT = (1 << 32) - 1


class Keys(Protocol[K]):
    """The form of the keys of a table. `form` is as in FORMAT.md, for printf."""

    @property
    def form(self) -> str: ...

    def text(self, key: K) -> str:
        """Return the key as it is stored."""

    def parse(self, text: str) -> K:
        """Parse a stored key. Raises: ValueError, when it does not have this form."""


class NumberKeys:
    """Keys that are one number. Args: most, the highest; `refusal`, the error text for one out of
    range.
    """

    def __init__(self, digits: int, most: int | None = None, refusal: str = "") -> None:
        self._digits = digits
        self._pattern = re.compile(f"[0-9]{{{digits}}}")
        self._most = most
        self._refusal = refusal

    @property
    def form(self) -> str:
        return f"%0{self._digits}d"

    def text(self, key: int) -> str:
        return f"{key:0{self._digits}}"

    def parse(self, text: str) -> int:
        # Leading zeros are part of the form: the same number in two forms would be two rows.
        if not self._pattern.fullmatch(text):
            raise ValueError("the key does not have the form of this table's keys")
        number = int(text)
        if self._most is not None and not 0 < number <= self._most:
            raise ValueError(self._refusal)
        return number


class IndexKey(NamedTuple):
    """Names an index file."""

    queue_id: int
    number: int


class IndexKeys:
    """Keys of index files."""

    form = "%020d-%010d"
    _pattern = re.compile("([0-9]{20})-([0-9]{10})")

    def text(self, key: tuple[int, int]) -> str:
        queue_id, number = key
        return f"{queue_id:020}-{number:010}"

    def parse(self, text: str) -> IndexKey:
        if not (match := self._pattern.fullmatch(text)):
            raise ValueError("the key does not have the form of this table's keys")
        return IndexKey(int(match[1]), int(match[2]))


QUEUE_KEYS = NumberKeys(20, _MAX_QUEUE_ID, "this is not a valid queue id")
SEGMENT_KEYS = NumberKeys(10, _MAX_SEGMENT, "this is not a valid segment number")
DICTIONARY_KEYS = NumberKeys(10)
LSN_KEYS = NumberKeys(20)
INDEX_KEYS = IndexKeys()
