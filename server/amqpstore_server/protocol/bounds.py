"""Bounds of one table, with everything in it, whichever way it comes; and of the messages in one
answer, whatever was asked.

The limits are those of AMQP tables (`field_table`). What comes as JSON becomes tables, or is kept
and listed like them: bodies of requests, filters, definitions. All of it is counted here, JSON
before anything is built of it: a few megabytes can be millions of objects, and no other client is
served while these are made.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any

MAX_DEPTH = 128
"""How deeply tables and arrays may be nested, the outermost included."""

MAX_ARGUMENTS_DEPTH = MAX_DEPTH - 2
"""The depth of tables of arguments: a row of the catalog has them two levels down."""

MAX_ENTRIES = 16384
"""Entries of a table and of everything inside it, taken together, but for the broker's own."""

MAX_BODY_ENTRIES = MAX_ENTRIES + 1024
"""Entries of the JSON of a request: a table, and what stands around it."""

MAX_DEFINITION_ENTRIES = 1 << 21
"""Entries of definitions: about 100,000 queues with their bindings. Each table in them is counted
by itself as well.
"""

MAX_PROPERTIES_BYTES = 4 << 20
"""About how many bytes of properties the messages in one answer may have: as JSON they take many
times as much.
"""

_CHUNK_BYTES = 256 << 10
_AT_ONCE = 2048
"""How much JSON is looked at before others have their turn, and how many of its marks."""

_MARK = re.compile(rb'[\[{\]},"]')
_EMPTY = re.compile(rb"[ \t\r\n]*[\]}]")


class TooLargeError(ValueError):
    """There is more in something than it may hold. The message says what, and how much."""


class MessageRoom:
    """The room that an answer has for messages, less those in it.

    Args: bodies_bytes, that their bodies may have.
    """

    def __init__(self, bodies_bytes: int) -> None:
        self.bodies_left_bytes = bodies_bytes
        self.properties_left_bytes = MAX_PROPERTIES_BYTES

    def take(self, body_bytes: int, properties_bytes: int) -> None:
        """Count a message, which may be larger than what is left."""
        self.bodies_left_bytes -= body_bytes
        self.properties_left_bytes -= properties_bytes


def too_many(what: str, most: int = MAX_ENTRIES) -> str:
    """Return the sentence about something with too many entries."""
    return f"{what} has more than {most} entries"


def too_deep(what: str, most: int) -> str:
    """Return the sentence about something that is nested too deeply."""
    return f"{what} nested more than {most} deep"


def check_fields(field: str, table: Mapping[str, Any]) -> None:
    """Check that a table could be one of AMQP: see `check_numbers`, and the number of its entries.
    That comes first, as there may be millions.

    Raises: ValueError.
    """
    count = 0
    waiting: list[Any] = [table]
    while waiting:
        one = waiting.pop()
        count += len(one)
        # The text is looked at before anything is built of it: 1.5 million headers in JSON took
        # ten seconds, in which no client was served.
        if count > MAX_ENTRIES:
            raise TooLargeError(too_many(f"`{field}`"))
        inside = one if isinstance(one, list) else one.values()
        waiting += [inner for inner in inside if isinstance(inner, dict | list)]
    check_numbers(field, table)


def check_numbers(field: str, value: Any) -> None:
    """Check that integers fit in AMQP's 64-bit fields, and that tables are not nested too deeply.

    Raises: ValueError.
    """
    level = [value]
    for depth in range(MAX_ARGUMENTS_DEPTH + 1):
        for one in level:
            if isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
                raise ValueError(f"`{field}` has {one}; expected integers of at most 64 bits")
        containers = [one for one in level if isinstance(one, dict | list)]
        if not containers:
            return
        if depth == MAX_ARGUMENTS_DEPTH:
            raise TooLargeError(too_deep(f"`{field}` is", MAX_ARGUMENTS_DEPTH))
        level = [
            inner
            for one in containers
            for inner in (one.values() if isinstance(one, dict) else one)
        ]


def counting_json(what: str, content: bytes, most: int) -> Iterator[None]:
    """Count the entries of all objects and arrays in JSON, in steps, before it is decoded. What is
    not JSON may pass: the decoder finds that out, at the latest where too much would be built.

    Raises: TooLargeError.
    """
    # There are no more than these marks, some of which may be in strings.
    at_most = 0
    for start in range(0, len(content), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        at_most += sum(content.count(mark, start, end) for mark in (b",", b"[", b"{"))
        yield
    if at_most <= most:
        return
    count = strings = 0
    offset = marks = 0
    while match := _MARK.search(content, offset):
        mark, offset = match[0], match.end()
        marks += 1
        if mark == b'"':
            strings += 1
            offset = yield from _behind_string(content, offset)
        elif mark == b"," or (mark in b"[{" and not _EMPTY.match(content, offset)):
            count += 1
        # An entry has a key and a string at most. Outside of all there may be one more string.
        if count > most or strings > 2 * most + 1:
            raise TooLargeError(too_many(what, most))
        if not marks % _AT_ONCE:
            yield


def _behind_string(content: bytes, offset: int) -> Generator[None, None, int]:
    """Return the offset behind a string, whose first quote is before `offset`: in steps, as nothing
    says how long it is.
    """
    escaped = 0
    while offset < len(content):
        quote = content.find(b'"', offset, offset + _CHUNK_BYTES)
        if quote < 0:
            offset += _CHUNK_BYTES
            yield
            continue
        offset = slash = quote + 1
        # An odd number of backslashes in front of a quote escapes it.
        while content[slash - 2 : slash - 1] == b"\\" and offset - slash < _CHUNK_BYTES:
            slash -= 1
        if not (offset - slash) % 2:
            return offset
        escaped += 1
        if not escaped % _AT_ONCE:
            yield
    return offset
