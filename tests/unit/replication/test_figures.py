"""What the metrics of a member tell moves when that happens between a real leader and follower."""

from __future__ import annotations

from pathlib import Path

from amqpstore_server.cluster.frames import Ack
from amqpstore_server.metrics.replicas import of_follower
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
