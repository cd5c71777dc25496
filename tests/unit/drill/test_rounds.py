"""The rounds of a drill as tasks say what they say in one process."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from amqpstore_tools.drill.run import DrillSettings, LeftOutError
from amqpstore_tools.drill.scenarios.power_cut import SHARES
from amqpstore_tools.drill.scenarios.rounds import drill
from amqpstore_tools.drill.verdict import Account, DrillFinding


class InTurn:
    """An executor that runs one task after the other. `waves` is how many began together."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.waves: list[int] = []

    def run(
        self,
        tasks: Sequence[DrillSettings],
        work: Callable[[DrillSettings], Account | str],
        tell: Callable[[], None],
    ) -> list[Account | str]:
        self.waves.append(len(tasks))
        tell()
        return [work(task) for task in tasks]


@pytest.mark.parametrize(
    ("name", "rounds", "operations", "waves"),
    [
        ("power-cut", 2, 2, [SHARES]),
        ("failing-sync", 5, None, [4, 1]),
        ("torn-catalog", 2, None, [2]),
    ],
)
def test_tasks_find_what_one_process_finds(
    tmp_path: Path, name: str, rounds: int, operations: int | None, waves: list[int]
) -> None:
    settings = DrillSettings("seven", str(tmp_path), rounds=rounds, operations=operations)
    executor = InTurn(2)
    expected, found = drill(name, settings), drill(name, settings, executor)
    assert executor.waves == waves
    assert found.verdicts == expected.verdicts
    assert (found.did, found.checks) == (expected.did, expected.checks)
    assert found.findings == expected.findings
    # What was done names files, which are in other directories.
    steps = [
        [dataclasses.replace(step, did="") for step in one.timeline] for one in (found, expected)
    ]
    assert steps[0] == steps[1]


class Says(InTurn):
    """An executor whose tasks all come to the same."""

    def __init__(self, outcome: Account | str) -> None:
        super().__init__(1)
        self._outcome = outcome

    def run(
        self,
        tasks: Sequence[DrillSettings],
        work: Callable[[DrillSettings], Account | str],
        tell: Callable[[], None],
    ) -> list[Account | str]:
        self.waves.append(len(tasks))
        return [self._outcome] * len(tasks)


def test_a_bound_is_looked_at_between_waves(tmp_path: Path) -> None:
    account = Account("failing-sync", "7", findings=[DrillFinding("I1", "lost", "here", "again")])
    account.did["disks recovered"] = 3
    executor = Says(account)
    found = drill("failing-sync", DrillSettings("7", str(tmp_path), images=10), executor)
    assert executor.waves == [2, 2]
    assert found.did["disks recovered"] == 12
    assert len(found.findings) == 1


def test_a_task_that_is_left_out_leaves_out_the_drill(tmp_path: Path) -> None:
    with pytest.raises(LeftOutError, match="too large"):
        drill("power-cut", DrillSettings("7", str(tmp_path)), Says("it is too large"))
