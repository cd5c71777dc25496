"""Runs, and lists of them against plain lists of sequences."""

from typing import Any, SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import ReadyList, Run, RunList, body_bytes, overhead_bytes
from tests.unit.engine.stores import bodies, messages


def test_a_split_run_on_disk_keeps_sequences_and_ids_together() -> None:
    rest = Run(10, 5, first_id=100, delivery_count=2)
    head = rest.split(2)
    assert (head.first_sequence, head.count, head.first_id, head.delivery_count) == (10, 2, 100, 2)
    assert (rest.first_sequence, rest.count, rest.first_id, rest.delivery_count) == (12, 3, 102, 2)
    assert head.end == rest.first_sequence


def test_a_split_run_in_memory_keeps_sequences_and_messages_together() -> None:
    rest = Run(10, 3, messages=messages(b"a", b"b", b"c"), delivery_count=1)
    head = rest.split(1)
    assert (head.first_sequence, bodies(head)) == (10, [b"a"])
    assert (rest.first_sequence, bodies(rest)) == (11, [b"b", b"c"])
    assert head.delivery_count == rest.delivery_count == 1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=40),
    st.lists(st.integers(1, 39)),
)
def test_the_parts_of_a_run_share_its_memory(kinds: list[tuple[int, int]], cuts: list[int]) -> None:
    envelopes = [Envelope("", "key" * kind) for kind in range(4)]
    whole = [Message(envelopes[kind], b"x" * size) for kind, size in kinds]
    run = Run(0, len(whole), messages=whole)
    run.bring_back(whole)
    parts = [run]
    for cut in cuts:
        for place, part in enumerate(parts):
            if part.first_sequence < cut < part.end:
                parts.insert(place, part.split(cut - part.first_sequence))
                break
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        found = part.messages or []
        shared = following and (following.messages or [])[0].envelope is found[-1].envelope
        assert part.is_short is bool(shared)
        last = found[-1]
        envelope_bytes = 2 * overhead_bytes([last]) - overhead_bytes([last, last]) if shared else 0
        assert part.body_bytes == body_bytes(found)
        assert part.memory_bytes == part.body_bytes + overhead_bytes(found) - envelope_bytes


@given(st.sets(st.integers(0, 300)), st.integers(0, 300), st.integers(1, 300), st.integers(1, 5))
@settings(max_examples=200)
def test_many_runs_are_removed_as_few_are(
    starts: set[int], first: int, count: int, length: int
) -> None:
    found = []
    for many in (0, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("amqpstore.format.runs._MANY", many)
            runs: RunList[Run] = RunList()
            for start in sorted(starts):
                runs.append(Run(start * length, length))
            removed = [(run.first_sequence, run.count) for run in runs.remove(first, count)]
            found.append((removed, runs.count, [(run.first_sequence, run.count) for run in runs]))
    assert found[0] == found[1]


def test_a_run_says_what_it_is() -> None:
    assert repr(Run(3, 2, first_id=9)) == "<Run 3..4 on disk, delivered 0x>"
    in_memory = Run(3, 1, messages=messages(b"a"), delivery_count=2)
    assert repr(in_memory) == "<Run 3..3 in memory, delivered 2x>"


class MovedRuns(list[Run]):
    """Counts what insertions move."""

    moved = 0

    def insert(self, place: SupportsIndex, run: Run) -> None:
        self.moved += len(self) - place.__index__()
        super().insert(place, run)

    def __setitem__(self, place: Any, runs: Any) -> None:
        if isinstance(place, slice):
            self.moved += len(self)
        super().__setitem__(place, runs)

    def __delitem__(self, place: Any) -> None:
        self.moved += len(self)
        super().__delitem__(place)


def test_runs_that_come_back_last_first_do_not_move_each_other() -> None:
    runs: RunList[Run] = RunList()
    runs._runs = moved = MovedRuns()
    for sequence in range(5000, 0, -1):
        runs.insert(Run(sequence, 1))
    assert moved.moved < 10 * 5000
    assert [run.first_sequence for run in runs] == [*range(1, 5001)]
    # Nor does one at the front that comes and goes.
    for _ in range(5000):
        runs.insert(Run(0, 1))
        assert runs.take_first(1).first_sequence == 0
    assert moved.moved < 10 * 5000
    for sequence in range(1, 5001):
        assert runs.first.first_sequence == sequence
        runs.take_first(1)
    assert runs.count == len(runs) == 0
    assert moved.moved < 20 * 5000


def test_the_first_of_no_runs_is_an_error() -> None:
    runs: RunList[Run] = RunList()
    with pytest.raises(IndexError):
        _ = runs.first
    with pytest.raises(IndexError):
        runs.take_first(1)


def test_a_run_that_overlaps_the_one_before_it_is_refused() -> None:
    runs: RunList[Run] = RunList()
    runs.append(Run(1, 5))
    with pytest.raises(ValueError):
        runs.insert(Run(3, 1))


def test_a_stored_run_that_continues_the_last_becomes_part_of_it() -> None:
    ready = ReadyList()
    ready.append_stored(Run(1, 2, first_id=11))
    ready.append_stored(Run(3, 4, first_id=13))
    assert (len(ready), ready.count) == (1, 6)


@pytest.mark.parametrize(
    "other",
    [Run(4, 1, first_id=13), Run(3, 1, first_id=14)],
    ids=["a gap in the sequences", "a gap in the ids"],
)
def test_a_stored_run_that_does_not_continue_the_last_stays_apart(other: Run) -> None:
    ready = ReadyList()
    ready.append_stored(Run(1, 2, first_id=11))
    ready.append_stored(other)
    assert (len(ready), ready.count) == (2, 3)


def test_a_stored_run_does_not_become_part_of_one_that_was_delivered() -> None:
    ready = ReadyList()
    ready.append_stored(Run(1, 2, first_id=11, delivery_count=1))
    ready.append_stored(Run(3, 1, first_id=13))
    assert [run.delivery_count for run in ready] == [1, 0]


@given(st.integers(1, 400), st.integers(1, 20), st.integers(1, 9))
@settings(max_examples=50)
def test_runs_taken_from_a_long_list_come_in_order(runs: int, length: int, limit: int) -> None:
    ready: RunList[Run] = RunList()
    for number in range(runs):
        ready.append(Run(1 + number * length, length, first_id=1 + number * length))
    taken: list[int] = []
    while ready.count:
        run = ready.take_first(limit)
        assert run.first_id == run.first_sequence
        assert 1 <= run.count <= limit
        taken += range(run.first_sequence, run.end)
    assert taken == list(range(1, runs * length + 1))
    assert len(ready) == 0


class RunListAgainstPlainList(RuleBasedStateMachine):
    """Sequences in a RunList, and those taken from it, are compared with two plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: RunList[Run] = RunList()
        self.next_sequence = 1
        self.inside: list[int] = []
        self.outside: list[Run] = []

    @rule(count=st.integers(1, 6), gap=st.integers(0, 2))
    def append(self, count: int, gap: int) -> None:
        first = self.next_sequence + gap
        self.next_sequence = first + count
        self.runs.append(Run(first, count, first_id=1000 + first))
        self.inside += range(first, first + count)

    @precondition(lambda self: self.inside)
    @rule(limit=st.integers(1, 8))
    def take_first(self, limit: int) -> None:
        run = self.runs.take_first(limit)
        assert 1 <= run.count <= limit
        self._out(run)
        assert run.first_sequence <= min(self.inside, default=run.first_sequence)

    @rule(first=st.integers(1, 60), count=st.integers(1, 30))
    def remove(self, first: int, count: int) -> None:
        expected = [one for one in self.inside if first <= one < first + count]
        removed = self.runs.remove(first, count)
        assert [one for run in removed for one in range(run.first_sequence, run.end)] == expected
        for run in removed:
            self._out(run)

    @precondition(lambda self: self.outside)
    @rule(choice=st.integers(0, 1000))
    def insert(self, choice: int) -> None:
        run = self.outside.pop(choice % len(self.outside))
        self.runs.insert(run)
        self.inside = sorted([*self.inside, *range(run.first_sequence, run.end)])

    @rule()
    def clear(self) -> None:
        for run in self.runs.clear():
            self._out(run)
        assert not self.inside

    def _out(self, run: Run) -> None:
        for one in range(run.first_sequence, run.end):
            self.inside.remove(one)
        self.outside.append(run)

    @invariant()
    def the_runs_are_the_sequences(self) -> None:
        runs = list(self.runs)
        found = [one for run in runs for one in range(run.first_sequence, run.end)]
        assert found == self.inside
        assert self.runs.count == len(self.inside)
        assert len(self.runs) == len(runs)
        assert all(run.first_id == 1000 + run.first_sequence for run in runs)
        if runs:
            assert self.runs.first is runs[0]


TestRunListAgainstPlainList = RunListAgainstPlainList.TestCase
TestRunListAgainstPlainList.settings = settings(max_examples=60, stateful_step_count=40)


def test_runs_of_the_same_sequences_overlap() -> None:
    ready = ReadyList()
    for first, count in ((5, 3), (10, 1), (20, 5)):
        ready.append(Run(first, count, first_id=first))

    def overlaps(*others: tuple[int, int]) -> bool:
        return (
            ready.overlap([Run(first, count, first_id=first) for first, count in others])
            is not None
        )

    assert not overlaps()
    assert not overlaps((1, 4), (8, 2), (11, 9), (25, 1))
    assert overlaps((1, 5))
    assert overlaps((1, 4), (7, 1))
    assert overlaps((8, 2), (10, 1))
    assert overlaps((11, 3), (24, 9))
    assert overlaps((1, 30))
