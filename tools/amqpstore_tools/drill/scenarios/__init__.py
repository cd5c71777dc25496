"""The scenarios of a drill: one module each, with `ABOUT` and `run()`.

`run()` continues until its `DrillRun` is over, notes there what it did and found, and leaves
nothing behind outside the work directory of the run.

- `power_cut`, `clock_jumps`, `failing_sync`, `full_disk`: on a simulated disk; `failing_calls`,
  `simulated`: what they share.
- `kill`: the real broker process; `cluster`: three of them that replicate, with a real etcd.
- `bit_flips`, `missing_files`, `torn_catalog`: damaged files; `disk`: the operator's own disk.
- `rounds`: the rounds of any of them, in this process or as tasks of an executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amqpstore_tools.drill import damaged
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios import (
    bit_flips,
    clock_jumps,
    cluster,
    disk,
    failing_calls,
    failing_sync,
    full_disk,
    kill,
    missing_files,
    power_cut,
    torn_catalog,
)


class Scenario(NamedTuple):
    """The description of a scenario, the invariants that it checks, and its function. Each works on
    a store of its own or on the run's copy of one.
    """

    about: str
    checked: tuple[str, ...]
    run: Callable[[DrillRun], None]


SCENARIOS = {
    "power-cut": Scenario(power_cut.ABOUT, power_cut.CHECKED, power_cut.run),
    "kill": Scenario(kill.ABOUT, kill.CHECKED, kill.run),
    "bit-flips": Scenario(bit_flips.ABOUT, damaged.CHECKED, bit_flips.run),
    "missing-files": Scenario(missing_files.ABOUT, damaged.CHECKED, missing_files.run),
    "torn-catalog": Scenario(torn_catalog.ABOUT, damaged.CHECKED, torn_catalog.run),
    "full-disk": Scenario(full_disk.ABOUT, failing_calls.CHECKED, full_disk.run),
    "failing-sync": Scenario(failing_sync.ABOUT, failing_calls.CHECKED, failing_sync.run),
    "clock-jumps": Scenario(clock_jumps.ABOUT, clock_jumps.CHECKED, clock_jumps.run),
    "disk": Scenario(disk.ABOUT, disk.CHECKED, disk.run),
    "cluster": Scenario(cluster.ABOUT, cluster.CHECKED, cluster.run),
}
"""By name, in the order in which `all` runs them."""
