"""JSON of operators, which may be large: it is counted before anything is built of it, and decoded
in pieces, so that clients have their turn meanwhile. HTTP and the admin socket have this in common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from amqpstore_server.administration.work import ResultT, Work
from amqpstore_server.protocol.bounds import counting_json

_IN_THREAD_BYTES = 64 << 10
_LEVELS = 2
"""Levels of objects whose lists are decoded in pieces: definitions are a field of a request."""

_LIST = ord("[")
_OBJECT = ord("{")


def decoding(
    what: str, content: bytes, most_entries: int, decode: Callable[[bytes], ResultT]
) -> Work[ResultT]:
    """Decode JSON, in another thread if there is much of it.

    Args: what, names it in an error; most_entries, of all objects and arrays in it: see `bounds`;
    decode, begins with `json_of`.
    Raises: TooLargeError; what `decode` raises.
    """
    if len(content) > most_entries:
        yield from counting_json(what, content, most_entries)
    if len(content) <= _IN_THREAD_BYTES:
        return decode(content)
    decoded: ResultT = yield partial(decode, content)
    return decoded


def json_of(content: bytes | memoryview, levels: int = _LEVELS) -> Any:
    """Decode JSON: of an object with much in it the elements of each list by themselves. The
    decoder lets no other thread go on, and definitions of 100,000 queues would take it 50 ms.

    Args: levels, of objects inside each other that are looked at in this way.
    Raises: msgspec.DecodeError, UnicodeDecodeError, RecursionError.
    """
    if len(content) <= _IN_THREAD_BYTES:
        return msgspec.json.decode(content)
    try:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return msgspec.json.decode(content)  # it is not an object
    return {name: _field(memoryview(value), levels - 1) for name, value in fields.items()}


def _field(value: memoryview, levels: int) -> Any:
    if value[0] == _LIST:
        elements = msgspec.json.decode(value, type=list[msgspec.Raw])
        return [msgspec.json.decode(one) for one in elements]
    if value[0] == _OBJECT and levels:
        return json_of(value, levels)
    return msgspec.json.decode(value)
