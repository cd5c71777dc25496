"""Requests wait for a thread in their order, and no more of them than are needed."""

import threading
from collections.abc import Generator

import pytest

from amqpstore_server.etcd.lanes import Lane
from tests.waiting import wait_until


class Held:
    """A lane of texts that carries out its first job until it is let go."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._go_on = threading.Event()
        self.lane: Lane[str] = Lane("held", self._carry_out, self._may_skip, self._goes_before)
        self.lane.put("first")
        wait_until(lambda: self.done == ["first"])

    def _carry_out(self, job: str) -> None:
        self.done.append(job)
        self._go_on.wait()

    @staticmethod
    def _may_skip(last: str, job: str) -> bool:
        return last == job == "read"

    @staticmethod
    def _goes_before(last: str, job: str) -> bool:
        return last == "read" and job == "election"

    def put(self, *jobs: str) -> None:
        for job in jobs:
            self.lane.put(job)

    def let_go(self) -> None:
        self._go_on.set()


@pytest.fixture
def held() -> Generator[Held]:
    one = Held()
    yield one
    one.let_go()
    one.lane.close()


def test_a_read_stands_for_those_that_wait_behind_it_and_for_no_others(held: Held) -> None:
    """A read that was asked for after a transaction must see it."""
    held.put("read", "read", "transaction", "read", "read", "transaction", "transaction", "last")
    held.let_go()
    wait_until(lambda: held.done[-1] == "last")
    assert held.done == [
        "first",
        "read",
        "transaction",
        "read",
        "transaction",
        "transaction",
        "last",
    ]


def test_what_waits_at_the_end_is_left_out(held: Held) -> None:
    held.put("read", "transaction")
    closing = threading.Thread(target=held.lane.close)
    closing.start()
    wait_until(lambda: held.lane.is_closed)
    held.let_go()
    closing.join()
    assert held.done == ["first"]


def test_an_election_does_not_wait_for_a_read_and_the_read_sees_it(held: Held) -> None:
    """A candidate has no time for other requests if each takes a second."""
    held.put("transaction", "read", "election", "read", "election", "last")
    held.let_go()
    wait_until(lambda: held.done[-1] == "last")
    assert held.done == ["first", "transaction", "election", "election", "read", "last"]
