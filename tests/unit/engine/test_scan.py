"""A whole segment: the scan finds each sound record and loses no other to a damaged one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore.format.message import encode_head
from amqpstore.format.records import (
    HEADER,
    MAGIC,
    Gap,
    Kind,
    Record,
    encode_record,
    encode_segment_header,
    encode_transaction,
    scan,
)

SEGMENT = 3
SEED = 12345
HEAD = encode_head("", "q", b"")


def message(number: int, body: bytes = b"body", segment: int = SEGMENT, seed: int = SEED) -> bytes:
    return encode_record(Kind.MESSAGE, number, segment, HEAD + body, seed=seed)


def numbers(content: bytes, segment: int = SEGMENT) -> list[int]:
    """Numbers of the sound MESSAGE records."""
    return [
        found.number
        for found in scan(content, segment, SEED)
        if isinstance(found, Record) and found.kind == Kind.MESSAGE
    ]


def gaps(content: bytes) -> list[Gap]:
    return [found for found in scan(content, SEGMENT, SEED) if isinstance(found, Gap)]


RECORDS = [
    encode_segment_header(SEGMENT, 1, bytes(16), 0),
    message(1),
    message(2, b"x" * 50),
    message(3, b""),
    encode_transaction([], 1, SEGMENT, 0, seed=SEED),
    message(4),
    encode_transaction([], 2, SEGMENT, 0, seed=SEED),
]
CONTENT = b"".join(RECORDS)


def test_records_back_to_back_are_found_without_a_gap() -> None:
    found = list(scan(CONTENT, SEGMENT, SEED))
    assert [record.end - record.offset for record in found] == list(map(len, RECORDS))
    assert all(isinstance(record, Record) for record in found)


@pytest.mark.parametrize("offset", range(len(CONTENT)))
def test_a_flipped_bit_costs_one_record_and_no_other(offset: int) -> None:
    content = bytearray(CONTENT)
    content[offset] ^= 1
    found = list(scan(bytes(content), SEGMENT, SEED))
    (gap,) = [one for one in found if isinstance(one, Gap)]
    assert gap.offset <= offset < gap.end
    assert len(found) == len(RECORDS)
    assert sum(isinstance(one, Record) for one in found) == len(RECORDS) - 1


@pytest.mark.parametrize("size", range(len(CONTENT)))
def test_a_cut_file_keeps_its_whole_records(size: int) -> None:
    found = list(scan(CONTENT[:size], SEGMENT, SEED))
    end = 0
    for one in found:
        assert one.offset == end
        end = one.end
    assert end == size
    whole = [one for one in found if isinstance(one, Record)]
    assert len(whole) >= len(found) - 1


@given(st.integers(0, len(CONTENT)), st.binary(max_size=100), st.integers(0, len(CONTENT)))
def test_a_scan_covers_every_byte_once_whatever_they_are(
    start: int, other: bytes, end: int
) -> None:
    content = CONTENT[:start] + other + CONTENT[end:]
    at = 0
    for one in scan(content, SEGMENT, SEED):
        assert one.offset == at
        assert one.end > at
        at = one.end
    assert at == len(content)


@given(st.binary(max_size=500))
def test_random_bytes_are_one_gap(content: bytes) -> None:
    found = list(scan(content, SEGMENT, SEED))
    assert len(found) == bool(content)
    assert all(isinstance(one, Gap) for one in found)


@pytest.mark.parametrize("size", [1, 31, 32, 4096, 100_000])
def test_zeros_are_one_gap(size: int) -> None:
    assert list(scan(bytes(size), SEGMENT, SEED)) == [Gap(0, size, gaps(bytes(size))[0].reason)]


def test_numbers_that_no_store_gives_are_refused() -> None:
    content = message(1) + message((1 << 62) + 1) + message(2) + message(1 << 62)
    assert numbers(content) == [1, 2, 1 << 62]
    assert any(
        "number 4611686018427387905 is larger than any that a store assigns" in gap.reason
        for gap in gaps(content)
    )


def test_a_body_that_looks_like_a_record_is_not_taken_for_one() -> None:
    inner = message(9)
    content = message(1, inner + MAGIC) + message(2)
    assert numbers(content) == [1, 2]


def test_a_body_that_looks_like_a_record_is_skipped_with_its_damaged_record() -> None:
    content = bytearray(message(1, b"xxxx" + message(9)) + message(10))
    content[HEADER.size + len(HEAD)] ^= 1
    assert numbers(bytes(content)) == [10]


def test_a_copy_of_an_earlier_record_in_a_body_is_refused_when_the_header_is_damaged() -> None:
    copy = message(1)
    damaged = bytearray(message(2, copy))
    damaged[4] ^= 1
    content = message(1) + bytes(damaged) + message(3)
    assert numbers(content) == [1, 3]
    assert any("is out of order" in gap.reason for gap in gaps(content))


def test_a_forged_record_in_a_body_is_refused_when_the_header_is_damaged() -> None:
    damaged = bytearray(message(2, message(1000, seed=0)))
    damaged[4] ^= 1
    assert numbers(message(1) + bytes(damaged) + message(3)) == [1, 3]


def test_records_of_another_segment_are_gaps_that_cost_nothing_else() -> None:
    content = message(1) + message(2, segment=SEGMENT + 1) + message(3)
    assert numbers(content) == [1, 3]
    (gap,) = gaps(content)
    assert gap.reason == f"the record was written for segment {SEGMENT + 1}"


def test_a_record_that_stands_there_twice_counts_once() -> None:
    assert numbers(message(1) + message(1) + message(2)) == [1, 2]


def test_numbers_of_different_kinds_do_not_hinder_each_other() -> None:
    content = message(7) + encode_transaction([], 1, SEGMENT, 0, seed=SEED) + message(8)
    assert not gaps(content)


@pytest.mark.parametrize("junk", [b"junk", bytes(100), MAGIC, MAGIC * 20, message(5)[1:-1]])
def test_the_scan_goes_on_at_the_next_sound_record(junk: bytes) -> None:
    content = message(1) + junk + message(6)
    assert numbers(content) == [1, 6]
    (gap,) = gaps(content)
    assert (gap.offset, gap.end) == (len(message(1)), len(message(1)) + len(junk))
