"""Tests of xids, the names of branches, and of how they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_tools.pika import Xid

xids = st.builds(
    Xid,
    st.integers(0, 2**32 - 1),
    st.binary(min_size=1, max_size=64),
    st.binary(max_size=64),
)


def test_an_xid_is_a_long_and_two_short_octet_strings() -> None:
    """J01."""
    assert Xid(0x01020304, b"\xff\x00g", b"b").encode() == b"\x01\x02\x03\x04\x03\xff\x00g\x01b"
    assert Xid(0, b"g").encode() == b"\x00\x00\x00\x00\x01g\x00"


@given(st.lists(xids, max_size=5))
def test_xids_one_behind_another_come_back(several: list[Xid]) -> None:
    assert Xid.decode_all(b"".join(xid.encode() for xid in several)) == several


@given(xids, xids, st.data())
def test_xids_that_end_in_the_middle_are_an_error(
    first: Xid, last: Xid, data: st.DataObject
) -> None:
    whole = first.encode() + last.encode()
    cut = data.draw(st.integers(len(first.encode()) + 1, len(whole) - 1))
    with pytest.raises(ValueError, match="an xid ends in"):
        Xid.decode_all(whole[:cut])


@given(st.binary(max_size=200))
def test_any_octets_are_xids_or_a_value_error(octets: bytes) -> None:
    try:
        several = Xid.decode_all(octets)
    except ValueError:
        return
    assert b"".join(xid.encode() for xid in several) == octets


@pytest.mark.parametrize(
    ("format_id", "global_id", "branch_id"),
    [
        (-1, b"g", b""),
        (2**32, b"g", b""),
        (0, b"", b""),
        (0, b"g" * 65, b""),
        (0, b"g", b"b" * 65),
    ],
)
def test_an_xid_has_limits(format_id: int, global_id: bytes, branch_id: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not within|octets, not"):
        Xid(format_id, global_id, branch_id)


def test_new_xids_differ_and_keep_their_prefix() -> None:
    first, second = Xid.new(7, b"prefix"), Xid.new(7, b"prefix")
    assert first != second
    assert first.global_id.startswith(b"prefix")
    assert len(first.global_id) == len(b"prefix") + 16
    with pytest.raises(ValueError, match="global-id"):
        Xid.new(7, b"p" * 49)


def test_an_xid_is_shown_in_hexadecimal() -> None:
    assert str(Xid(255, b"\x01\xff", b"z")) == "0xff:01ff:7a"
