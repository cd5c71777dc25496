"""The segments that a store should have are compared with the rule, number by number."""

from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore.identity.expected_segments import (
    MISSING,
    ExpectedSegments,
    MissingSegments,
    is_of_log,
    next_numbers,
)
from amqpstore.system.filenames import FIRST_COMPACTED

numbers = st.sets(st.integers(1, 9) | st.integers(FIRST_COMPACTED, FIRST_COMPACTED + 3))
every = [*range(12), *range(FIRST_COMPACTED, FIRST_COMPACTED + 5)]


@given(numbers, st.integers(0, 9), numbers, numbers)
@example({1, 2}, 0, set(), {4})
@example({3}, 3, {1, 3, FIRST_COMPACTED}, {3})
def test_each_number_is_what_the_format_says(
    files: set[int], position: int, rows: set[int], ends: set[int]
) -> None:
    found = ExpectedSegments.of(files, position, rows, ends)
    in_log = [one for one in {position, *files, *ends} if one < FIRST_COMPACTED]
    highest = max((one for one in in_log if one >= position), default=position)
    missing = [one.number for one in found.missing()]
    assert len(missing) == len(set(missing))
    for number in every:
        must_be = max(position, 1) <= number <= highest
        is_of = max(position, 1) <= number < FIRST_COMPACTED
        assert (number in missing) == ((must_be or number in rows) and number not in files)
        assert (number in found.log) == (is_of and number in files)
        assert (number in found.rowed) == (number in rows and number not in found.log)
        assert (number in found.left_over) == (number in files - rows and not is_of)
        is_open = number == highest and number in files and number not in ends
        assert not number or (number == found.open) == (is_open and number >= position)
    assert found.is_complete == (not missing)
    assert found.log == sorted(found.log)


def test_a_number_far_ahead_costs_no_more_than_its_row() -> None:
    found = ExpectedSegments.of([1], 1, [1], [FIRST_COMPACTED - 1])
    missing = list(found.missing())
    assert missing[0] == MissingSegments(2, 0)
    assert len(missing) == 1001
    assert missing[-1] == MissingSegments(1002, FIRST_COMPACTED - 1 - 1002)
    assert missing[0].reason == MISSING
    assert missing[-1].reason == f"{MISSING}, and so are the {missing[-1].others} after it"
    assert found.open == 0


def test_what_is_in_front_of_a_segment_that_is_missing_was_durable() -> None:
    assert ExpectedSegments.of([1, 2], 0, (), ()).open == 2
    assert ExpectedSegments.of([1, 2], 0, (), [3]).open == 0
    assert ExpectedSegments.of([1, 2], 3, (), ()).open == 0
    assert ExpectedSegments.of([1, 2], 0, (), [2]).open == 0


def test_the_position_of_a_new_store_is_before_segment_1() -> None:
    assert not is_of_log(0, 0)
    assert is_of_log(1, 0)
    assert not is_of_log(1, 2)
    assert not is_of_log(FIRST_COMPACTED, 0)


def test_no_number_is_given_again() -> None:
    assert next_numbers({0}, None) == (1, FIRST_COMPACTED)
    assert next_numbers({0, 7, 3}, None) == (8, FIRST_COMPACTED)
    assert next_numbers({0, 7, FIRST_COMPACTED + 4}, None) == (8, FIRST_COMPACTED + 5)
    assert next_numbers({0, FIRST_COMPACTED + 4}, FIRST_COMPACTED + 9) == (1, FIRST_COMPACTED + 9)
