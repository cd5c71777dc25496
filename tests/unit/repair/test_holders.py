"""Counts of the queues that hold a message, against a plain counter."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from amqpstore import Run
from amqpstore_tools.repair.truth.holders import Holders

held = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=9)


@given(held, held)
def test_holders_are_counted(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    counts: Counter[int] = Counter()
    parts = []
    for part in (first, second):
        parts.append(Holders())
        parts[-1].add(Run(1, count, first_id=first_id) for first_id, count in part)
        for first_id, count in part:
            counts.update(range(first_id, first_id + count))
    both = parts[0].joined(parts[1])
    assert [both[one] for one in range(60)] == [counts[one] for one in range(60)]
    assert parts[0][1000] == 0
