"""Hypothesis strategies for values of the wire, derived from each method's own layout.

Most are built once: to build one takes hypothesis longer than to draw from it.
"""

from decimal import Decimal
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import FieldValue, Timestamp
from amqpstore_server.protocol.layout import WireType
from amqpstore_server.protocol.methods import METHODS, Method

for_each_method = settings(max_examples=15)
"""Settings of tests that run once for each method."""

LAST_YEAR_S = 253_402_300_799
"""9999-12-31 23:59:59: what is later, datetime (and so pika) cannot say."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
shortstrs = st.one_of(texts, st.just("é" * 127), st.just("x" * 255))
decimals = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 18),
)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


@cache
def field_values(*, floats: bool = True) -> st.SearchStrategy[FieldValue]:
    """Every type that a field has; `floats=False` leaves out what pika cannot send."""
    leaves: list[st.SearchStrategy[FieldValue]] = [
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        texts,
        st.binary(max_size=20),
        decimals,
        st.integers(0, LAST_YEAR_S).map(Timestamp),
    ]
    if floats:
        leaves.append(st.floats(allow_nan=False))
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)
        ),
        max_leaves=10,
    )


@cache
def tables(*, floats: bool = True) -> st.SearchStrategy[dict[str, FieldValue]]:
    return st.dictionaries(shortstrs, field_values(floats=floats), max_size=5)


@cache
def arguments(wire_type: WireType, *, floats: bool = True) -> st.SearchStrategy[Any]:
    strategies: dict[WireType, st.SearchStrategy[Any]] = {
        WireType.BIT: st.booleans(),
        WireType.OCTET: unsigned(8),
        WireType.SHORT: unsigned(16),
        WireType.LONG: unsigned(32),
        WireType.LONGLONG: unsigned(64),
        WireType.SHORTSTR: shortstrs,
        WireType.OCTETS: st.binary(max_size=50),
        WireType.LONGSTR: st.binary(max_size=50),
        WireType.TABLE: tables(floats=floats),
        WireType.TRAILING_TABLE: tables(floats=floats),
    }
    return strategies[wire_type]


def methods_of(cls: type[Method], *, floats: bool = True) -> st.SearchStrategy[Method]:
    """Return a strategy for any method of one class."""
    fields = {
        argument.name: arguments(argument.wire_type, floats=floats)
        for argument in cls.layout.arguments
        if not argument.is_reserved
    }
    return st.builds(cls, **fields)


methods = st.one_of([methods_of(cls) for cls in sorted(METHODS.values(), key=lambda cls: cls.name)])


@cache
def properties(*, floats: bool = True) -> st.SearchStrategy[BasicProperties]:
    """Return a strategy for properties: each of the fourteen is there or not."""
    text = st.none() | shortstrs
    octet = st.none() | unsigned(8)
    return st.builds(
        BasicProperties,
        content_type=text,
        content_encoding=text,
        headers=st.none() | tables(floats=floats),
        delivery_mode=octet,
        priority=octet,
        correlation_id=text,
        reply_to=text,
        expiration=text,
        message_id=text,
        timestamp=st.none() | unsigned(64),
        type=text,
        user_id=text,
        app_id=text,
        cluster_id=text,
    )
