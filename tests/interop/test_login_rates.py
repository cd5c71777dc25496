"""Logins a second, and the time until thousands of clients that come at once are served: on a new
broker, on one that was killed, and on the next leader of a group.
"""

import sys
from pathlib import Path

import pytest

from tests.broker_process import CommandLineBroker
from tests.cluster_processes import GroupProcesses
from tests.login_load import logins_per_second, raise_descriptors, stampede

pytestmark = [pytest.mark.long, pytest.mark.alone]

CLIENTS = 10_000
DESCRIPTORS = 2 * CLIENTS
SERVED_WITHIN_S = 10.0


@pytest.mark.parametrize(("at_a_time", "least"), [(1, 1500), (50, 2500)])
def test_so_many_log_in_a_second(tmp_path: Path, at_a_time: int, least: int) -> None:
    with CommandLineBroker(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        rates = [logins_per_second(broker.port, 3000, at_a_time) for _ in range(5)]
    rated = " ".join(f"{rate:,.0f}" for rate in rates)
    sys.stdout.write(f"\n{at_a_time} at a time: {rated} logins a second\n")
    assert max(rates) >= least


def test_clients_that_come_back_at_once_are_served(tmp_path: Path) -> None:
    if not raise_descriptors(DESCRIPTORS):
        pytest.skip(f"this process may not open {DESCRIPTORS:,} files")
    with CommandLineBroker(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        first = stampede(broker.port, CLIENTS)
        broker.kill()
        broker.start()
        again = stampede(broker.port, CLIENTS)
    sys.stdout.write(
        f"\n{CLIENTS:,} at once: {first.seconds:.1f} s, after a kill {again.seconds:.1f} s\n"
    )
    for one in (first, again):
        assert one.seconds < SERVED_WITHIN_S
        assert not one.thrown_out


def test_clients_that_come_to_the_next_leader_are_served(tmp_path: Path) -> None:
    if not raise_descriptors(DESCRIPTORS):
        pytest.skip(f"this process may not open {DESCRIPTORS:,} files")
    with GroupProcesses(str(tmp_path), 2) as group:
        group.start()
        first = group.wait_for_leader()
        group.wait_until_in_sync(2)
        stampede(first.port, CLIENTS)
        first.kill()
        second = group.wait_for_leader(but=first)
        again = stampede(second.port, CLIENTS)
    sys.stdout.write(f"\n{CLIENTS:,} at once after a failover: {again.seconds:.1f} s\n")
    assert again.seconds < SERVED_WITHIN_S
    assert not again.thrown_out
