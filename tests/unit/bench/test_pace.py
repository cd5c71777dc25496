"""Intended send times do not depend on what was sent."""

from amqpstore_tools.bench.board import FOREVER_NS, Board
from amqpstore_tools.bench.paced import Pace
from amqpstore_tools.bench.worker import Schedule
from amqpstore_tools.bench.workload import dealt, shares

SECOND_NS = 1_000_000_000


def test_a_timed_run_has_rate_times_duration_messages() -> None:
    pace = Pace(Schedule(5, 5 + SECOND_NS, 5 + 3 * SECOND_NS), rate=100, quota=10**9)
    assert pace.total == 300
    assert pace.due_ns(0) == 5
    assert pace.due_ns(299) < 5 + 3 * SECOND_NS


def test_a_counted_run_has_its_quota() -> None:
    assert Pace(Schedule(0, 0, FOREVER_NS), rate=100, quota=7).total == 7


def test_message_i_is_due_at_its_due_time_and_not_before() -> None:
    pace = Pace(Schedule(1000, 1000, FOREVER_NS), rate=3, quota=10)
    assert pace.due(999) == 0
    for index in range(10):
        assert pace.due(pace.due_ns(index) - 1) <= index
        assert pace.due(pace.due_ns(index) + 1) == index + 1
    assert pace.due(10**15) == 10


def test_shares_and_deals_cover_all() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert [dealt(["a", "b", "c"], index, 2) for index in range(2)] == [["a", "c"], ["b"]]
    assert [dealt(["a", "b"], index, 3) for index in range(3)] == [["a"], ["b"], ["a"]]


def test_the_board_sums_its_rows() -> None:
    board = Board(3)
    board.row(0).publishing(5, 3, 100)
    board.row(1).consuming(7, 6, 300)
    board.row(2).consuming(1, 1, 200)
    totals = board.totals()
    assert (totals.published, totals.confirmed, totals.delivered, totals.acked) == (5, 3, 8, 7)
    assert totals.last_ns == 300
    assert not board.stopped
    board.stop()
    assert board.stopped
