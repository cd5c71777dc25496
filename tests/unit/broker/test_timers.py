"""Timers: what is due is done once, in order, and the next due time is known."""

import random

import pytest

from amqpstore_server.broker.work.timers import Timer, Timers


class Rung(list[str]):
    """The timers that rang, in order."""

    def timer(self, timers: Timers, name: str, due_ms: int = 0) -> Timer:
        timer = timers.timer(lambda: self.append(name))
        timer.set(due_ms)
        return timer


def test_what_is_due_is_done_in_the_order_in_which_it_is_due() -> None:
    timers, rung = Timers(), Rung()
    for name, due_ms in (("c", 30), ("a", 10), ("later", 31), ("b", 20), ("b too", 20)):
        rung.timer(timers, name, due_ms)
    assert timers.run(30)
    assert rung == ["a", "b", "b too", "c"]
    assert timers.next_ms == 31


def test_nothing_is_due_before_its_time_and_nothing_twice() -> None:
    timers, rung = Timers(), Rung()
    timer = rung.timer(timers, "a", 10)
    assert not timers.run(9)
    assert timers.run(10)
    assert timer.due_ms == timers.next_ms == 0
    assert not timers.run(1000)
    assert rung == ["a"]


def test_a_timer_that_is_set_anew_is_due_then_and_only_then() -> None:
    timers, rung = Timers(), Rung()
    timer = rung.timer(timers, "a", 10)
    timer.set(20)
    assert timers.next_ms == 20
    assert not timers.run(10)
    timer.set(10)
    timer.set(20)
    assert timers.run(25)
    assert rung == ["a"]


def test_a_timer_that_is_not_set_any_more_is_never_due() -> None:
    timers, rung = Timers(), Rung()
    rung.timer(timers, "a", 10).set(0)
    assert timers.next_ms == 0
    assert not timers.run(100)


def test_a_timer_moves_only_forward_to_something_sooner() -> None:
    timers, rung = Timers(), Rung()
    timer = rung.timer(timers, "a")
    timer.set_sooner(0)
    assert timer.due_ms == 0
    timer.set_sooner(20)
    timer.set_sooner(30)
    assert timer.due_ms == 20
    timer.set_sooner(10)
    timer.set_sooner(0)
    assert timer.due_ms == timers.next_ms == 10


def test_what_an_action_sets_is_left_for_the_next_run() -> None:
    timers = Timers()
    rung: list[int] = []

    def again() -> None:
        rung.append(1)
        timer.set(10)

    timer = timers.timer(again)
    timer.set(10)
    assert timers.run(10)
    assert rung == [1]
    assert timers.next_ms == 10
    assert timers.run(10)
    assert rung == [1, 1]


def test_whoever_waits_is_told_only_of_something_sooner() -> None:
    timers, rung = Timers(), Rung()
    told: list[int] = []
    timers.on_sooner = lambda: told.append(timers.next_ms)
    a = rung.timer(timers, "a", 50)
    rung.timer(timers, "b", 60)
    rung.timer(timers, "c", 40)
    a.set(45)
    a.set(0)
    a.set(39)
    assert told == [50, 40, 39]


def test_timers_that_are_set_over_and_over_take_no_memory() -> None:
    timers, rung = Timers(), Rung()
    many = [rung.timer(timers, str(number)) for number in range(10)]
    for due_ms in range(1, 10_000):
        many[due_ms % 10].set(due_ms)
    assert len(timers._heap) < 200
    timers.run(20_000)
    assert sorted(rung) == sorted(map(str, range(10)))


@pytest.mark.parametrize("seed", range(20))
def test_against_a_plain_list(seed: int) -> None:
    rng = random.Random(seed)
    timers, rung = Timers(), Rung()
    many = {str(number): rung.timer(timers, str(number)) for number in range(8)}
    due: dict[str, int] = {}
    now_ms = 1
    for _ in range(500):
        name, at_ms = rng.choice(list(many)), now_ms + rng.randint(1, 30)
        action = rng.choice(["set", "sooner", "never", "pass"])
        if action == "set":
            many[name].set(at_ms)
            due[name] = at_ms
        elif action == "sooner":
            many[name].set_sooner(at_ms)
            due[name] = min(at_ms, due.get(name, at_ms))
        elif action == "never":
            many[name].set(0)
            due.pop(name, None)
        else:
            now_ms += rng.randint(0, 20)
            expected = sorted((ms, name) for name, ms in due.items() if ms <= now_ms)
            rung.clear()
            assert timers.run(now_ms) == bool(expected)
            assert sorted(rung) == sorted(name for _, name in expected)
            assert [due[name] for name in rung] == [ms for ms, _ in expected]
            due = {name: ms for name, ms in due.items() if ms > now_ms}
        assert timers.next_ms == min(due.values(), default=0)
        assert {name: timer.due_ms for name, timer in many.items() if timer.due_ms} == due
