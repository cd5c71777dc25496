"""Metrics of a member move when what they tell happens between a real leader and follower."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore import Message, Store
from amqpstore.replica import Membership, write_membership
from amqpstore.system.files import OsFiles
from amqpstore_server.cluster.frames import Ack
from amqpstore_server.cluster.timing import Health
from amqpstore_server.config.config import Config
from amqpstore_server.metrics.families import Families
from amqpstore_server.metrics.replicas import families, of_follower
from amqpstore_server.process.service_manager import ServiceManager
from amqpstore_server.replication.leading_term import LeadingTerm
from amqpstore_server.replication.serving import MemberRuntime
from amqpstore_server.replication.settings import cluster_settings
from tests.pairs import TERM, Member, Pair, pair_of
from tests.unit.engine.stores import ENVELOPE
from tests.unit.replication.test_forged_frames import forged


def values_of(families: Families) -> dict[str, float]:
    """The metrics of a member, without their prefix, and with their labels."""
    return {
        " ".join([sample.name.removeprefix("amqpstore_replication_"), *sample.labels.values()]): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def told(member: Member) -> dict[str, float]:
    """The metrics of a follower."""
    return values_of(
        of_follower(member.controller.figures(takes_clients=False, least_free_bytes=0))
    )


def moved(pair: Pair, before: dict[str, float]) -> dict[str, float]:
    """Return the metrics of the follower that have changed."""
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
    """The metrics of the leader."""
    controller = pair.leader.controller
    term: Any = SimpleNamespace(_controller=controller, is_blocked=controller.orders.is_blocked)
    source: Any = SimpleNamespace(replication=partial(LeadingTerm.figures, term))
    return values_of(families(source))


def test_the_metrics_of_a_leader_move(tmp_path: Path) -> None:
    """The metrics move while its follower is away, and publishers wait for its ack."""
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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_start_from_a_damaged_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """The metrics are read of what a process has before its threads run."""
    directory = str(tmp_path / "data")
    store = Store.open(directory)
    queue = store.create_queue("orders")
    for body in (b"a", b"b"):
        store.publish([queue], [Message(ENVELOPE, body * 1000)])
        store.sync()
    store.abandon()
    if is_damaged:
        (segment,) = Path(directory).glob("segments/*.segment")
        content = segment.read_bytes()
        segment.write_bytes(content.replace(b"a" * 1000, b"a" * 999 + b"!"))
    write_membership(OsFiles(), directory, Membership("1" * 16, 1))
    config = Config(
        data=directory,
        cluster_name="c",
        cluster_etcd=["http://127.0.0.1:1"],
        cluster_replicate="127.0.0.1:0",
    )
    settings = cluster_settings(config)
    assert settings is not None
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    runtime = MemberRuntime(settings, config, lambda: config, ServiceManager({}))
    controller = runtime._controller
    figures = controller.figures(takes_clients=False, least_free_bytes=0)
    assert values_of(of_follower(figures))["damage_found"] == is_damaged
    controller._listener.close()
    controller._lane._close()
    runtime._client.close()
