"""A drill's run: its bounds, what its seed decides, and what is said of each invariant."""

from pathlib import Path

import pytest

from amqpstore_tools.drill.board import _seen
from amqpstore_tools.drill.run import DrillRun, DrillSettings
from amqpstore_tools.drill.scenarios import SCENARIOS
from amqpstore_tools.drill.verdict import INVARIANTS, NAMED, Step, Verdict

MANUAL = (Path(__file__).parents[3] / "tools" / "README.md").read_text()
FEW = 3
"""Up to this many drills that do not check an invariant are named, instead of those that do."""


def settings(**others: int | str) -> DrillSettings:
    return DrillSettings(**{"seed": "7", "work": "/nowhere", **others})  # type: ignore[arg-type]


def drawn(run: DrillRun) -> list[float]:
    found = []
    for rng in run.rounds():
        found.append(rng.random())
        run.saw(["I1"])
    return found


def test_a_seed_decides_what_each_round_draws() -> None:
    assert drawn(DrillRun("kill", settings(images=4))) == drawn(
        DrillRun("kill", settings(images=4))
    )
    assert drawn(DrillRun("kill", settings(images=4))) != drawn(
        DrillRun("kill", settings(seed="8", images=4))
    )


def test_a_round_alone_draws_what_it_drew_among_others() -> None:
    together = drawn(DrillRun("kill", settings(images=5)))
    assert drawn(DrillRun("kill", settings(round=3))) == together[2:3]


def test_images_bound_a_run() -> None:
    run = DrillRun("kill", settings(images=5))
    assert len(drawn(run)) == 5
    assert run.fraction == 1.0


def test_a_violation_names_the_command_that_shows_it_again() -> None:
    run = DrillRun("bit-flips", settings(data="/var/lib/a store", round=12))
    for _ in run.rounds():
        run.found("I2", "a body", "somewhere")
    (finding,) = run.end().findings
    assert finding.reproduce == (
        "amqpstore drill bit-flips --seed 7 --round 12 --data '/var/lib/a store'"
    )


def test_where_rounds_follow_each_other_all_of_them_are_shown_again() -> None:
    run = DrillRun("kill", settings(images=3))
    run.rounds_follow = True
    for _ in run.rounds():
        run.found("I2", "a body", "somewhere")
        run.saw(["I2"])
    (finding,) = run.end().findings
    assert finding.reproduce == "amqpstore drill kill --seed 7 --images 1"


def test_every_invariant_has_a_verdict() -> None:
    run = DrillRun("kill", settings())
    run.saw(["I1", "I2"])
    run.found("I2", "a body", "somewhere")
    verdicts = run.end().verdicts
    assert list(verdicts) == list(INVARIANTS) == [f"I{number}" for number in range(1, 16)]
    assert verdicts["I1"] is Verdict.HELD
    assert verdicts["I2"] is Verdict.VIOLATED
    assert verdicts["I3"] is Verdict.NOT_EXERCISED


def test_the_same_violation_is_found_once() -> None:
    run = DrillRun("kill", settings())
    for where in ("here", "there"):
        run.found("I2", "a body", where)
    assert [finding.where for finding in run.end().findings] == ["here"]


def test_what_was_done_is_shown_as_it_is_done(tmp_path: Path) -> None:
    shown: list[int] = []
    run = DrillRun("kill", settings(), lambda run: shown.append(run.images))
    run.saw(["I1"], 3)
    run.step(Step(1, 1, "kill -9", 1, 1, 1))
    assert shown == [3]


def test_what_takes_long_is_shown_instead_of_the_counts() -> None:
    shown: list[str] = []
    run = DrillRun("cluster", settings(rounds=1), lambda run: shown.append(_seen(run)))
    run.show("the group starts")
    for _ in run.rounds():
        run.show("what the manual says")
        run.step(Step(1, 1, "kill -9", 1, 1, 1))
    assert shown == [
        "the group starts",
        "round 1: what the manual says",
        "round 1, 0 disks, 0 violations",
    ]


def test_the_time_of_a_run_begins_when_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    run = DrillRun("cluster", settings(seconds=2))
    now += 10
    assert run.is_over
    run.begin()
    assert not run.is_over


def test_one_message_is_one() -> None:
    run = DrillRun("bit-flips", settings())
    for expected in ("1 message was not served", "2 messages were not served"):
        run.account.did[NAMED] += 1
        assert expected in run.account.summary


@pytest.mark.parametrize("count", [49, 50])
def test_a_run_ends_when_it_has_found_enough(count: int) -> None:
    run = DrillRun("kill", settings())
    for number in range(count):
        run.found("I2", f"body {number}", "somewhere")
    assert run.is_over == (count == 50)


def checked_by(invariant: str) -> str:
    named = {name: f"`{name}`" for name in SCENARIOS}
    others = [named.pop(name) for name, one in SCENARIOS.items() if invariant not in one.checked]
    if len(others) > FEW:
        return ", ".join(named.values())
    return f"all but {', '.join(others)}" if others else "all"


def test_the_manual_says_what_each_drill_does_and_checks() -> None:
    section = MANUAL.partition("\n## Drill it\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    names = [row.split("`")[1] for row in rows if row.startswith("| `")]
    assert names == list(SCENARIOS)
    assert [row for row in rows if row.startswith("| I")] == [
        f"| {name} | {text} | {checked_by(name)} |" for name, text in INVARIANTS.items()
    ]
