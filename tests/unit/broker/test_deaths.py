"""The header x-death, edited where it stands, says the same as if it were decoded and encoded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.broker.messages.deaths import (
    Reason,
    deaths_of,
    encode_deaths,
    one_more_death,
)
from amqpstore_server.protocol.field_table import (
    Int64,
    Timestamp,
    decode_value,
    encode_value,
)

NAMES = st.sampled_from(["", "q", "queue", "ö" * 127, "countl"])
KEYS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


HOPS = st.tuples(NAMES, st.sampled_from(Reason), NAMES, KEYS, st.sampled_from([None, "", "1000"]))
"""A queue, the reason why a message left it, and what it was published with."""

FOREIGN = st.dictionaries(
    st.sampled_from(["count", "reason", "queue", "time", "exchange", "other"]),
    st.one_of(
        NAMES,
        st.sampled_from(list(map(str, Reason))),
        st.integers(-(1 << 31), 1 << 40),
        st.just(Timestamp(7)),
        st.none(),
        st.booleans(),
    ),
)


def encoded(value: Any) -> bytes:
    return encode_value(value)


def plain(header: bytes | None) -> list[dict[str, Any]]:
    """Return the header decoded."""
    found: Any = [] if header is None else decode_value(header)
    return list(found)


def died(header: bytes | None, hop: tuple[Any, ...], now_s: int) -> bytes:
    queue, reason, exchange, keys, expiration = hop
    before = deaths_of(header)
    deaths, _ = one_more_death(before, queue, reason, (exchange, keys), expiration, now_s)
    return encode_deaths(deaths)


@given(st.lists(HOPS, max_size=12))
def test_each_queue_and_reason_has_one_entry_and_the_last_is_the_first(hops: list[Any]) -> None:
    header = None
    expected: list[dict[str, Any]] = []
    for now_s, hop in enumerate(hops, start=1):
        queue, reason, exchange, keys, expiration = hop
        header = died(header, hop, now_s)
        kind = {"queue": queue, "reason": str(reason)}
        same = [one for one in expected if kind.items() <= one.items()]
        entry = {
            "count": 1,
            **kind,
            "time": now_s,
            "exchange": exchange,
            "routing-keys": list(keys),
        }
        if expiration is not None:
            entry["original-expiration"] = expiration
        if same:
            entry = {**same[0], "count": same[0]["count"] + 1}
        expected = [entry, *(one for one in expected if one not in same)]
        assert plain(header) == expected
    # All that was written here is read without being decoded.
    assert all(isinstance(death.table, bytes) for death in deaths_of(header))


@given(st.lists(FOREIGN, max_size=6), st.lists(HOPS, min_size=1, max_size=4))
def test_what_others_wrote_is_merged_and_else_kept(
    forged: list[dict[str, Any]], hops: list[Any]
) -> None:
    header: bytes | None = encoded(forged)
    for now_s, hop in enumerate(hops, start=1):
        header = died(header, hop, now_s)
        queue, reason = hop[:2]
        first, *others = plain(header)
        assert (first["queue"], first["reason"]) == (queue, str(reason))
        assert first["count"] >= 1
        assert first["time"]
        kinds = [(one.get("queue"), one.get("reason")) for one in (first, *others)]
        whole = [kind for kind in kinds if all(isinstance(part, str) for part in kind)]
        assert len(set(whole)) == len(whole)
    malformed = [one for one in forged if not isinstance(one.get("queue"), str)]
    assert [one for one in plain(header) if not isinstance(one.get("queue"), str)] == malformed


def test_a_count_ends_where_64_bits_end() -> None:
    most = (1 << 63) - 1
    hop = ("q", Reason.REJECTED, "", ("q",), None)
    entry = {"count": Int64(most), "reason": "rejected", "queue": "q", "time": Timestamp(1)}
    for forged in (entry, {**entry, "count": Int64(-5)}):
        header = died(encoded([forged]), hop, 1)
        assert plain(header)[0]["count"] == (most if forged is entry else 1)


def test_text_that_looks_like_an_entry_is_text() -> None:
    (own,) = deaths_of(died(None, ("q", Reason.EXPIRED, "", ("k",), None), 1))
    assert isinstance(own.table, bytes)
    text = own.table[5:].decode()
    assert plain(died(encoded([text]), ("q", Reason.EXPIRED, "", ("k",), None), 2))[0]["count"] == 1


def test_what_is_not_an_array_is_no_deaths() -> None:
    for forged in ("x-death", 1, {"queue": "q", "reason": "rejected"}, None):
        assert deaths_of(encoded(forged)) == []
    assert plain(died(encoded([7, "q", None]), ("q", Reason.EXPIRED, "", ("k",), None), 9))
