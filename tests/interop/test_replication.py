"""Members of a group as real processes, with a real etcd: what was confirmed is there, whichever
member leads.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pika
import pika.exceptions
import pytest
import requests

from amqpstore.system.filenames import is_compacted, segment_numbers
from amqpstore_server.cluster.keys import IN_SYNC
from amqpstore_server.cluster.timing import Timing
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_tools.__main__ import main
from tests.cluster_processes import GroupProcesses, MemberProcess, listening_port
from tests.etcd_process import EtcdCluster
from tests.interop.relay import Relay

PERSISTENT = pika.BasicProperties(delivery_mode=2)
FAILOVER_S = 30.0
"""Ten times as long as a lease: five seconds are held by the tests in virtual time."""

TIMING = Timing()


@pytest.fixture
def pair(tmp_path: Path) -> Generator[GroupProcesses]:
    with GroupProcesses(str(tmp_path), 2) as group:
        group.start()
        yield group


def publish(member: MemberProcess, first: int, count: int) -> None:
    """Publish messages that are numbered, and wait for the confirm of each."""
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for number in range(first, first + count):
        channel.basic_publish("", "orders", b"%d" % number, PERSISTENT)
    connection.close()


def numbers(member: MemberProcess) -> list[int]:
    """Return the numbers in the queue; their messages stay there."""
    connection = member.connect()
    channel = connection.channel()
    found = []
    while True:
        _, _, body = channel.basic_get("orders")
        if body is None:
            break
        found.append(int(body))
    connection.close()
    return found


def let_die(member: MemberProcess, count: int) -> None:
    """Reject messages whose dead letters have nowhere to go yet, as a single active consumer. One
    more stays in the queue.
    """
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    arguments = {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "dead",
        "x-dead-letter-strategy": "at-least-once",
    }
    channel.queue_declare("deadly", durable=True, arguments=arguments)
    for number in range(count + 1):
        channel.basic_publish("", "deadly", b"%d" % number, PERSISTENT)
    consumed = channel.consume("deadly", inactivity_timeout=60)
    for _, (method, _, _) in zip(range(count), consumed, strict=False):
        assert method is not None
        channel.basic_reject(method.delivery_tag or 0, requeue=False)
    channel.cancel()
    # What is confirmed after them is in the other member's log as well, and so they are.
    channel.basic_publish("", "deadly", b"", PERSISTENT)
    connection.close()


def check_dead(member: MemberProcess, count: int) -> None:
    """The dead letters still wait, apart from the message that lives, and go when they can."""
    connection = member.connect()
    channel = connection.channel()
    assert channel.queue_declare("amq.letters.deadly", passive=True).method.message_count == count
    consumed = channel.consume("deadly", inactivity_timeout=60)
    assert next(consumed)[2] == b"%d" % count
    channel.cancel()
    channel.queue_declare("dead", durable=True)
    channel.exchange_declare("dead", "fanout", durable=True)
    channel.queue_bind("dead", "dead")
    arrived = channel.consume("dead", inactivity_timeout=60)
    assert [next(arrived)[2] for _ in range(count)] == [b"%d" % each for each in range(count)]
    connection.close()


def pass_on(member: MemberProcess, count: int = 10) -> None:
    """Publish and consume messages of 1 MiB: segments of them are removed."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("passing", durable=True)
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", "passing", bytes(1 << 20), PERSISTENT)
        channel.basic_get("passing", auto_ack=True)
    connection.close()


def segments(member: MemberProcess) -> dict[int, bytes]:
    """The content of the log's segments, without the zeros that they are filled with."""
    place = Path(member.directory) / "segments"
    names = [path.name for path in place.iterdir()]
    return {
        number: (place / f"{number:010}.segment").read_bytes().rstrip(b"\0")
        for number in segment_numbers(names)
        if not is_compacted(number)
    }


def test_a_member_takes_over_and_the_other_one_rejoins(
    pair: GroupProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leader is killed, comes back as a follower, and leads again after an orderly stop.

    Dead letters that wait in their queue wait on with the next leader.
    """
    first = pair.wait_for_leader()
    publish(first, 0, 50)
    let_die(first, 5)
    began = time.monotonic()
    first.kill()
    second = pair.wait_for_leader(but=first)
    assert time.monotonic() - began < FAILOVER_S, pair.logs()
    assert numbers(second) == list(range(50))
    check_dead(second, 5)
    first.start()
    pair.wait_until_in_sync(2)
    publish(second, 50, 50)
    began = time.monotonic()
    assert second.terminate() == 0, pair.logs()
    assert pair.wait_for_leader(but=second) is first
    assert time.monotonic() - began < FAILOVER_S, pair.logs()
    assert sorted(numbers(first)) == list(range(100))
    assert first.terminate() == 0, pair.logs()
    ours, theirs = segments(first), segments(second)
    common = sorted({*ours} & {*theirs})
    assert common
    assert [ours[one] for one in common] == [theirs[one] for one in common]
    for member in pair.members:
        assert main(["check", member.directory]) == 0, capsys.readouterr().out


@pytest.mark.long
def test_a_leader_that_is_stopped_by_a_signal_leads_no_longer(pair: GroupProcesses) -> None:
    """Paused, it is replaced; once it goes on, it follows. What it confirmed before is there."""
    first = pair.wait_for_leader()
    publish(first, 0, 20)
    first.signal(signal.SIGSTOP)
    second = pair.wait_for_leader(but=first)
    publish(second, 20, 20)
    first.signal(signal.SIGCONT)
    pair.wait_until_in_sync(2)
    assert sorted(numbers(second)) == list(range(40))
    second.kill()
    assert pair.wait_for_leader(but=second) is first
    assert sorted(numbers(first)) == list(range(40))


@pytest.mark.long
def test_a_large_message_on_a_slow_link_costs_no_follower_its_place(tmp_path: Path) -> None:
    """The message is on its way for longer than a follower may be silent: what counts is that more
    comes.
    """
    rate = [0]

    def limit(piece: bytes) -> bytes:
        time.sleep(rate[0] and len(piece) / rate[0])
        return piece

    with GroupProcesses(str(tmp_path), 2) as group:
        first, second = group.members
        with Relay(f"amqp://{first.address}", limit) as relay:
            first.settings["AMQPSTORE_CLUSTER_ADVERTISE"] = f"127.0.0.1:{relay.port}"
            first.start()
            group.wait_until_in_sync(1)
            second.start()
            group.wait_until_in_sync(2)
            before = group.view().changed(IN_SYNC)
            connection = first.connect()
            channel = connection.channel()
            channel.queue_declare("large", durable=True)
            channel.confirm_delivery()
            rate[0] = 2 << 20
            began = time.monotonic()
            channel.basic_publish("", "large", bytes(24 << 20), PERSISTENT)
            # Some of it is in the buffers of sockets.
            assert time.monotonic() - began > 2 * TIMING.promise_s
            channel.basic_publish("", "large", b"behind it", PERSISTENT)
            connection.close()
            assert group.view().changed(IN_SYNC) == before
            assert relay.accepted == 1
            first.kill()
            assert group.wait_for_leader(but=first) is second
            connection = second.connect()
            channel = connection.channel()
            assert [len(channel.basic_get("large")[2] or b"") for _ in range(2)] == [24 << 20, 9]
            connection.close()


@pytest.mark.long
def test_a_group_whose_etcd_is_lost_goes_on_with_another_one(
    pair: GroupProcesses, tmp_path: Path
) -> None:
    """The group's keys are written anew from the last leader, and the other members join with what
    they have.
    """
    first = pair.wait_for_leader()
    (second,) = (one for one in pair.members if one is not first)
    publish(first, 0, 20)
    assert second.terminate() == 0
    publish(first, 20, 20)
    assert first.terminate() == 0
    place = tmp_path / "another"
    place.mkdir()
    with EtcdCluster(str(place)) as etcd:
        for member in pair.members:
            member.etcd = etcd
        assert first.id in first.operate("init", "--from-leader", "--yes")
        first.start()
        pair.wait(first.serves)
        publish(first, 40, 10)
        second.operate("join")
        second.start()
        with EtcdClient(etcd.settings, "/amqpstore/test/main/") as client:
            pair.wait(lambda: client.read().in_sync == (first.id, second.id))
        first.kill()
        pair.wait(second.serves)
        assert sorted(numbers(second)) == list(range(50))
        # The member was away, and had all of the log's beginning.
        assert "a copy of the leader's store" not in second.log()


@pytest.mark.long
def test_a_member_that_cannot_listen_lets_another_one_lead(tmp_path: Path) -> None:
    """The member's process goes on, and follows; it leads when it is elected again, and can
    listen.
    """
    with GroupProcesses(str(tmp_path), 3) as group:
        first, second, third = group.members
        group.start()
        publish(first, 0, 20)
        order = [one for one in group.members if one.id in group.view().in_sync[1:]]
        second, third = sorted(order, key=lambda one: group.view().in_sync.index(one.id))
        with socket.create_server((second.host.address, second.port)):
            first.kill()
            group.wait(third.serves)
            assert "this member cannot lead" in second.log()
            publish(third, 20, 20)
            assert second.is_running
            group.wait(lambda: len(group.view().in_sync) == 2)
        third.kill()
        group.wait(second.serves)
        assert sorted(numbers(second)) == list(range(40))


@pytest.mark.long
def test_a_reload_reaches_a_member_in_each_of_its_roles(tmp_path: Path) -> None:
    """A follower takes over the live keys, which hold when it leads; the service manager is told of
    the reload, and gets signs of life all the time.
    """
    path = tmp_path / "amqpstore.toml"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        GroupProcesses(str(tmp_path), 2) as group,
    ):
        manager.bind(str(tmp_path / "notify"))
        heard: list[str] = []

        def listen() -> None:
            while lines := manager.recv(4096).decode():
                heard.extend(lines.splitlines())

        threading.Thread(target=listen, daemon=True).start()

        def hear(*expected: str) -> None:
            for one in expected:
                group.wait(lambda one=one: one in heard)  # type: ignore[misc]
                del heard[: heard.index(one) + 1]

        first, second = group.members
        path.write_text("cluster_keep_log_bytes = 1000000000\n")
        second.settings = {
            "AMQPSTORE_CONFIG": str(path),
            "AMQPSTORE_SEGMENT_BYTES": str(1 << 20),
            "NOTIFY_SOCKET": manager.getsockname(),
            "WATCHDOG_USEC": "300000",
        }
        first.settings = {"AMQPSTORE_SEGMENT_BYTES": str(1 << 20)}
        group.start()
        hear("STATUS=following", "WATCHDOG=1")
        pass_on(first, 8)
        kept = Path(second.directory) / "kept"
        group.wait(lambda: any(kept.glob("*.segment")))
        path.write_text("cluster_keep_log_bytes = 0\n")
        second.signal(signal.SIGHUP)
        hear("RELOADING=1", "STATUS=configuration reloaded")
        assert not [*kept.glob("*.segment")]
        first.kill()
        assert group.wait_for_leader(but=first) is second
        pass_on(second, 8)
        assert not [*kept.glob("*.segment")]
        path.write_text("cluster_keep_log_bytes = 1000000000\n")
        hear(f"STATUS=amqp://127.0.0.1:{second.port}", "WATCHDOG=1")
        second.signal(signal.SIGHUP)
        hear("RELOADING=1", "STATUS=configuration reloaded", "WATCHDOG=1")
        pass_on(second, 8)
        assert any(kept.glob("*.segment"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", manager.getsockname())


@pytest.mark.long
def test_a_follower_takes_clients_for_the_leader(tmp_path: Path) -> None:
    """The clients are the leader's, with their own addresses, and are closed when it no longer
    leads.
    """
    with GroupProcesses(str(tmp_path), 2, proxy=True) as group:
        ports = {member: listening_port() for member in group.members}
        for member, port in ports.items():
            member.settings["AMQPSTORE_MANAGEMENT_LISTEN"] = f"{member.host.address}:{port}"
        metered = {member: f"{member.host.address}:{listening_port()}" for member in group.members}
        for member, address in metered.items():
            member.settings["AMQPSTORE_METRICS_LISTEN"] = address
        group.start()
        leader = group.wait_for_leader()
        (follower,) = (one for one in group.members if one is not leader)
        group.wait(lambda: _is_served(follower))
        _manage_through(follower, ports[follower], leader, ports[leader])
        metrics = requests.get(f"http://{metered[follower]}/metrics", timeout=60)
        assert metrics.status_code == 200
        assert "amqpstore_replication_streaming 1.0" in metrics.text
        assert (
            requests.get(f"http://{metered[follower]}/health/leader", timeout=60).status_code == 503
        )
        publish(follower, 0, 20)
        assert numbers(leader) == list(range(20))
        connection = follower.connect()
        transport = connection._impl._transport  # type: ignore[attr-defined]
        host, port = transport._sock.getsockname()
        group.wait(lambda: f"peer={host}:{port}" in leader.log())
        leader.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.sleep(60)
        assert group.wait_for_leader(but=leader) is follower
        group.wait(lambda: _is_served(follower))
        assert numbers(follower) == list(range(20))
        leader.start()
        group.wait_until_in_sync(2)
        group.wait(lambda: _is_served(leader))
        publish(leader, 20, 20)
        assert sorted(numbers(follower)) == list(range(40))


def _manage_through(
    follower: MemberProcess, port: int, leader: MemberProcess, leaders_port: int
) -> None:
    """Check that the leader answers requests that a follower gets."""
    url, leaders = (
        f"http://{member.host.address}:{its_port}"
        for member, its_port in ((follower, port), (leader, leaders_port))
    )
    login = (leader.login.username, leader.login.password)
    with requests.Session() as session:
        session.auth = login
        created = session.put(f"{url}/api/queues/%2F/through", json={"durable": True})
        assert created.status_code == 201
        names = [one["name"] for one in session.get(f"{leaders}/api/queues").json()]
        assert "through" in names
        assert session.get(f"{leaders}/health/leader").status_code == 200
        refused = session.get(f"{url}/health/leader")
        node = session.get(f"{url}/api/overview").json()["node"]
        assert (refused.status_code, refused.json()["reason"]) == (
            503,
            f"this member follows: {node} leads",
        )
        assert session.get(f"{url}/metrics").status_code == 503
        assert session.get(f"{leaders}/metrics").status_code == 200
        assert session.delete(f"{url}/api/queues/%2F/through").status_code == 204


def _is_served(member: MemberProcess) -> bool:
    with contextlib.suppress(pika.exceptions.AMQPError):
        member.connect().close()
        return True
    return False
