"""Headers that are too large to be sent: the oldest entries of x-death give way.

A message grows by its deaths, and may so come to have more bytes than a frame to its consumer, or
more entries than a table. What is handed out has to be taken back when the consumer publishes it,
so the broker leaves out the oldest deaths, and says in the header x-death-omitted how many.
"""

from __future__ import annotations

from amqpstore_server.broker.messages.deaths import DEATHS_FIELD
from amqpstore_server.protocol.bounds import MAX_ENTRIES
from amqpstore_server.protocol.content import join_properties, split_properties
from amqpstore_server.protocol.field_table import (
    EMPTY_TABLE,
    OWN_HEADERS,
    Int64,
    array_of,
    count_entries,
    decode_value,
    encode_name,
    encode_value,
    join_table,
    split_array,
    split_table,
)

SAFE_BYTES = MAX_ENTRIES // 2 - 1024
"""Properties of fewer bytes do not have too many entries after one more death, which repeats the
routing keys in them."""

OMITTED_FIELD = encode_name("x-death-omitted")
_OMITTED_BYTES = len(OMITTED_FIELD) + len(encode_value(Int64(0)))

_LAST_TO_GO = [
    encode_name(name)
    for name in sorted(OWN_HEADERS)
    if name.startswith(("x-first-death", "x-last-death"))
]


def shortened(raw: bytes, most_bytes: int) -> bytes:
    """Return properties without the oldest entries of x-death, so that they have no more than
    `most_bytes`; as few as that can make them.
    """
    parts = split_properties(raw)
    headers = split_table(parts.get("headers", EMPTY_TABLE))
    excess = len(raw) - most_bytes
    if DEATHS_FIELD in headers:
        if OMITTED_FIELD not in headers:
            excess += _OMITTED_BYTES
        entries, omitted = split_array(headers[DEATHS_FIELD]), 0
        # Entries are cut from the end: the newest death is the first entry, and the one that
        # matters.
        while entries and excess > 0:
            excess -= len(entries.pop())
            omitted += 1
        _set_deaths(headers, entries, omitted)
    if excess > 0:
        for name in _LAST_TO_GO:
            headers.pop(name, None)
    parts["headers"] = join_table(headers)
    return join_properties(parts)


def limit_entries(headers: dict[bytes, bytes]) -> None:
    """Leave out the oldest entries of x-death while headers have more entries than a client may
    publish. Args: headers, values by name, both encoded, of a message with x-death.
    """
    own = sum(encode_name(name) in headers for name in OWN_HEADERS)
    excess = _count(headers) - own - MAX_ENTRIES
    if excess <= 0:
        return
    entries, omitted = split_array(headers[DEATHS_FIELD]), 0
    while entries and excess > 0:
        excess -= _count({b"": entries.pop()})
        omitted += 1
    _set_deaths(headers, entries, omitted)


def _count(fields: dict[bytes, bytes]) -> int:
    """Return the number of entries of a table, of everything inside it together. Args: fields,
    values by name, both encoded.
    """
    containers = [value for value in fields.values() if value[:1] in (b"A", b"F")]
    inside = sum([count_entries(join_table({b"\0": value})) for value in containers])
    return len(fields) - len(containers) + inside


def _set_deaths(headers: dict[bytes, bytes], entries: list[bytes], omitted: int) -> None:
    """Set x-death to the entries that stay, and say how many do not."""
    if not omitted:
        return
    before = decode_value(headers[OMITTED_FIELD]) if OMITTED_FIELD in headers else 0
    if isinstance(before, int) and 0 < before < 1 << 62:
        omitted += before
    headers[DEATHS_FIELD] = array_of(entries)
    headers[OMITTED_FIELD] = encode_value(Int64(omitted))
