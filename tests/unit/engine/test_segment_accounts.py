"""Accounts: what is live and what is garbage, held against a count of every message."""

import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore.catalog.shapes import misshapen
from amqpstore.format.records import Operation, OperationKind
from amqpstore.log.segment_accounts import (
    AscendingIds,
    SegmentAccount,
    SegmentAccounts,
    references_of,
)

SEGMENT = 5


@dataclass
class Plain:
    """The plain model: size and references of each message, in all segments."""

    sizes: dict[int, int] = field(default_factory=dict)
    references: Counter[int] = field(default_factory=Counter)

    def live(self, first: int, end: int) -> tuple[int, int]:
        ids = [one for one in self.sizes if first <= one < end and self.references[one]]
        return len(ids), sum(self.sizes[one] for one in ids)


def check(account: SegmentAccount, plain: Plain) -> None:
    ids = [one for one in plain.sizes if account.first_id <= one < account.end_id]
    assert account.count == len(ids)
    assert account.total_bytes == sum(plain.sizes[one] for one in ids)
    assert (account.live_count, account.live_bytes) == plain.live(account.first_id, account.end_id)
    assert dict(account.live()) == {
        one: plain.references[one] for one in ids if plain.references[one]
    }


def add(
    account: SegmentAccount, plain: Plain, first: int, sizes: list[int], held: list[int]
) -> None:
    """Messages with how many queues hold each; no table where that is one each."""
    table = None if held == [1] * len(held) else array("I", held)
    account.add(first, array("I", sizes), table)
    for message_id, (size, number) in enumerate(zip(sizes, held, strict=True), first):
        plain.sizes[message_id] = size
        plain.references[message_id] = number


batches = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(
            st.tuples(st.integers(32, 90), st.sampled_from([0, 1, 2, 3, 300, 70_000])),
            min_size=1,
            max_size=6,
        )
        | st.lists(st.tuples(st.integers(32, 90), st.just(1)), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=5,
)


@given(batches, st.data())
def test_an_account_is_what_a_count_of_every_message_says(
    added: list[tuple[int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    plain = Plain()
    account = SegmentAccount(SEGMENT, 10)
    next_id = 10
    for gap, rows in added:
        next_id += gap
        add(account, plain, next_id, [size for size, _ in rows], [held for _, held in rows])
        next_id += len(rows)
        check(account, plain)
        for _ in range(data.draw(st.integers(0, 3))):
            live = sorted(one for one in plain.sizes if plain.references[one])
            if not live:
                break
            ids = data.draw(st.sets(st.sampled_from(live), min_size=1)) | set()
            chosen = sorted(data.draw(st.sampled_from([ids, set(live)])))
            account.release(chosen, [plain.sizes[one] for one in chosen])
            for message_id in chosen:
                plain.references[message_id] -= 1
            check(account, plain)
        account = SegmentAccount.of_row(account.row())
        check(account, plain)


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=8))
def test_a_row_is_read_back_as_it_was_written(held: list[int]) -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.add(10, array("I", [40] * len(held)), array("I", held))
    account.end_bytes = 1234
    found = SegmentAccount.of_row(account.row())
    for name in SegmentAccount.__slots__:
        assert getattr(found, name) == getattr(account, name), name


def test_a_row_without_references_has_none() -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.add(10, array("I", [40, 50]), None)
    assert account.row().references == b""
    assert SegmentAccount.of_row(account.row()).references is None


@pytest.mark.parametrize(("held", "letter"), [(1, b"B"), (256, b"H"), (65_536, b"I")])
def test_references_take_as_little_room_as_the_largest_needs(held: int, letter: bytes) -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.add(10, array("I", [40, 40]), array("I", [held, 0]))
    packed = account.row().references
    assert packed[:1] == letter
    assert packed[1:] == held.to_bytes(array(letter.decode()).itemsize, "big").ljust(
        2 * array(letter.decode()).itemsize, b"\0"
    )


def test_messages_that_were_all_released_at_once_are_all_garbage() -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.add(10, array("I", [40, 50]), None)
    account.end_bytes = 190
    assert account.garbage_bytes == 0
    account.release([10, 11], [40, 50])
    assert (account.live_count, account.live_bytes, account.garbage_bytes) == (0, 0, 190)
    # The log may go on in this segment.
    account.add(12, array("I", [45]), None)
    account.end_bytes = 270
    assert (account.live_count, account.live_bytes) == (1, 45)
    assert 0 < account.garbage_bytes < 270


def test_a_segment_without_messages_is_all_garbage() -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.end_bytes = 132
    assert account.garbage_bytes == 132


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), max_size=6), st.integers(10, 20))
def test_references_are_how_often_each_message_was_enqueued(
    spans: list[tuple[int, int]], first_id: int
) -> None:
    enqueues = [
        Operation(OperationKind.ENQUEUE, min(count, 10 - start), queue, 1, first_id + start)
        for queue, (start, count) in enumerate(spans, 1)
    ]
    expected = [
        sum(one.first_id <= number < one.first_id + one.message_count for one in enqueues)
        for number in range(first_id, first_id + 10)
    ]
    found = references_of(enqueues, first_id, 10)
    assert (found is None) == (expected == [1] * 10)
    assert found is None or found.tolist() == expected


def test_an_enqueue_of_other_messages_is_left_out() -> None:
    outside = Operation(OperationKind.ENQUEUE, 5, 1, 1, 8)
    found = references_of([outside], 10, 4)
    assert found is not None
    assert found.tolist() == [1, 1, 1, 0]


def test_ids_that_no_segment_has_are_left_out_and_the_others_released() -> None:
    one, two = SegmentAccount(1, 10), SegmentAccount(2, 20)
    one.add(10, array("I", [40] * 5), None)
    two.add(20, array("I", [40] * 5), None)
    accounts = SegmentAccounts([two, one])
    ids = [3, 13, 14, 15, 19, 20, 21, 25, 30]
    accounts.release(ids, [40] * len(ids))
    assert [account.live_count for account in accounts] == [3, 3]
    assert accounts.changed == {one, two}


def test_one_account_in_the_place_of_neighbours() -> None:
    found = [SegmentAccount(number, 10 * number) for number in (1, 2, 3, 4)]
    accounts = SegmentAccounts(found)
    accounts.changed.update(found)
    merged = SegmentAccount(2**31, 20)
    accounts.replace(found[1:3], merged)
    assert [account.number for account in accounts] == [1, 2**31, 4]
    assert accounts.changed == {found[0], merged, found[3]}
    accounts.replace([found[0]], None)
    assert [account.number for account in accounts] == [2**31, 4]


def test_ids_with_gaps_of_one_queue_each_are_counted_by_their_places() -> None:
    """A segment that a repair wrote anew has no table of references yet."""
    account = SegmentAccount(1 << 31, 3)
    account.ids = AscendingIds(array("Q", [3, 7, 20]))
    account.end_id = 21
    account.count = account.live_count = 3
    account.total_bytes = account.live_bytes = 300
    account.end_bytes = 400
    account.release([7], [100])
    assert list(account.live()) == [(3, 1), (20, 1)]
    assert (account.live_count, account.live_bytes) == (2, 200)
    assert misshapen("segments", f"{1 << 31:010}", account.row().row()) == ""


@pytest.mark.parametrize(
    ("step", "held", "most_bytes"), [(2, 1, 2), (100, 1, 4), (100, 3, 5), (1, 1, 0), (1, 300, 2)]
)
def test_what_compaction_kept_takes_few_bytes_a_message(
    step: int, held: int, most_bytes: int
) -> None:
    count = 10_000
    ids = array("Q", range(1 << 40, (1 << 40) + step * count, step))
    account = SegmentAccount(SEGMENT, ids[0])
    account.restrict(ids, array("I", [held]) * count, 40 * count)
    for one in (account, SegmentAccount.of_row(account.row())):
        assert sum(map(table_bytes, (one.ids, one.references))) <= most_bytes * count + 2000
        assert list(one.live()) == [(message_id, held) for message_id in ids]
        one.release(ids[:1] + ids[5:7], [40] * 3)
        assert one.live_count == count - (3 if held == 1 else 0)


def table_bytes(table: object) -> int:
    """Return how much memory a table takes, with its columns."""
    if table is None:
        return 0
    parts = getattr(table, "_distances", None)
    return sys.getsizeof(table) + (0 if parts is None else sys.getsizeof(parts))


@pytest.mark.parametrize("ids", [[10], [10, 11]])
def test_what_a_damaged_index_releases_again_is_released_once(ids: list[int]) -> None:
    account = SegmentAccount(SEGMENT, 10)
    account.add(10, array("I", [40, 40, 40]), None)
    account.release([10], [40])
    account.release(ids, [4_000_000_000] * len(ids))
    live = [one for one in (11, 12) if one not in ids]
    assert list(account.live()) == [(one, 1) for one in live]
    assert account.live_count == len(live)
    assert misshapen("segments", f"{SEGMENT:010}", account.row().row()) == ""
