"""A group whose members' wall clocks are set while clients publish: leases, promises and timeouts
run on monotonic clocks, so that neither members nor clients notice.
"""

from pathlib import Path

import pytest

from amqpstore_server.cluster.timing import Timing
from tests.cluster_load import Load
from tests.cluster_processes import GroupProcesses
from tests.wall_clocks import WallClock

pytestmark = pytest.mark.long

YEARS_S = 10 * 365 * 86400
JUMPS_S = (YEARS_S, 0, -YEARS_S, -5, 5, 0)
HOLD_S = Timing().lease_s + Timing().margin_s
"""Longer than all leases and promises."""


def test_nobody_notices_that_wall_clocks_are_set(tmp_path: Path) -> None:
    """Each member's clock is set alone, and then all of them at once."""
    with GroupProcesses(str(tmp_path), 3, 2) as group:
        clocks = {one.id: WallClock(str(tmp_path / f"{one.id}.clock")) for one in group.members}
        for member in group.members:
            member.settings.update(clocks[member.id].environment)
        group.start()
        load = Load(group, 5, publishers=4, pace_s=0.05)
        load.start()
        load.wait_for_confirms(20)
        leader, term, connections = group.wait_for_leader(), group.view().term, load.connections
        follower = next(one for one in group.members if one is not leader)
        for members in ([leader], [follower], group.members):
            for ahead_s in JUMPS_S:
                for member in members:
                    clocks[member.id].set(ahead_s)
                load.goes_on_for(HOLD_S)
                view = group.view()
                assert len(view.in_sync) == 3, group.logs()
                assert (group.leader(), view.term) == (leader, term), group.logs()
        assert load.connections == connections, group.logs()
        load.verify()
