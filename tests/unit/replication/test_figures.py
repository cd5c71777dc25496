"""What the metrics of a member tell moves when that happens between a real leader and follower."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amqpstore_server.cluster.frames import Ack
from amqpstore_server.cluster.timing import Health
from amqpstore_server.metrics.replicas import families, of_follower
from amqpstore_server.replication.leading_term import LeadingTerm
from tests.pairs import TERM, Member, Pair, pair_of
from tests.unit.replication.test_forged_frames import forged


def told(member: Member) -> dict[str, float]:
    """The metrics of a follower, without their prefix."""
    figures = member.controller.figures(takes_clients=False, least_free_bytes=0)
    return {
        sample.name.removeprefix("amqpstore_replication_"): sample.value
        for family in of_follower(figures)
        for sample in family.samples
    }


def moved(pair: Pair, before: dict[str, float]) -> dict[str, float]:
    """What has changed in the metrics of the follower."""
    return {name: value for name, value in told(pair.follower).items() if value != before[name]}


def test_the_metrics_of_a_follower_move(tmp_path: Path) -> None:
    with pair_of(tmp_path) as pair:
        before = told(pair.follower)
        assert before["streaming"] == 1
        assert before["lag_batches"] == before["refused_frames_total"] == 0
        pair.publish()
        assert moved(pair, before) == {"batch": before["batch"] + 1}
        before = told(pair.follower)
        pair.leader.socket.sendall(forged(Ack(TERM, 1 << 30)))
        pair.follower.link._read()
        assert moved(pair, before) == {"streaming": 0, "refused_frames_total": 1}
        pair.connect_again()
        assert moved(pair, before) == {"refused_frames_total": 1}
        pair.publish()
        assert told(pair.follower)["batch"] == before["batch"] + 1


def told_by_leader(pair: Pair) -> dict[str, float]:
    """The metrics of the leader, without their prefix."""
    controller = pair.leader.controller
    term: Any = SimpleNamespace(_controller=controller, is_blocked=controller.orders.is_blocked)
    source: Any = SimpleNamespace(replication=partial(LeadingTerm.figures, term))
    return {
        sample.name.removeprefix("amqpstore_replication_"): sample.value
        for family in families(source)
        for sample in family.samples
        if not sample.labels
    }


def test_the_metrics_of_a_leader_move(tmp_path: Path) -> None:
    """While its follower is away, and publishers wait for its ack."""
    with pair_of(tmp_path) as pair:
        pair.publish()
        connected = told_by_leader(pair)
        assert {connected[name] for name in ("in_sync", "min_in_sync", "in_reach")} == {2}
        assert {connected[name] for name in ("blocked", "refused_frames_total")} == {0}
        log, batch = pair.store.log, pair.seal()
        assert log.start_write(batch, pair.datasyncs)
        pair.follower.socket.sendall(forged(Ack(TERM, 1 << 30)))
        pair.leader.link._read()
        leader = pair.leader.controller
        leader._tell(lambda member, now: member.tick(now + 1000, Health()))
        away = {"in_reach": 1, "blocked": 1, "refused_frames_total": 1}
        assert told_by_leader(pair) == {**connected, **away}
        pair.connect_again()
        assert log.finish_write(batch, pair.datasyncs)
        log.complete(batch)
        assert told_by_leader(pair) == {**connected, "refused_frames_total": 1}
