"""The client against three members of etcd that are killed, stopped and started again."""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from amqpstore_server.cluster.keys import Compare, EtcdTransaction, Put, View
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError, EtcdUnavailableError
from amqpstore_server.etcd.settings import EtcdSettings
from amqpstore_server.etcd.watching import Watching
from tests.etcd_process import EtcdCluster
from tests.waiting import wait_until

LEASE_S = 3.0
numbers: Iterator[int] = count()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd")), 3) as cluster:
        yield cluster


@pytest.fixture
def client(three: EtcdCluster) -> Generator[EtcdClient]:
    for one in three.members:
        one.resume()
    three.start()
    with EtcdClient(three.settings, f"/amqpstore/three/{next(numbers)}/") as client:
        yield client


def log_of(view: View) -> list[str]:
    row = view.rows.get("note")
    return list(row.value["log"]) if row else []


def put(view: View, request: str, lease: int = 0) -> EtcdTransaction:
    log = [*log_of(view), request]
    compare = Compare("note", view.changed("note"))
    return EtcdTransaction((compare,), (Put("note", {"log": log}, lease),), (), request)


def read(client: EtcdClient) -> View:
    """Read, also while etcd elects a leader of its own."""
    views: list[View] = []

    def is_read() -> bool:
        with suppress(EtcdUnavailableError):
            views.append(client.read())
        return bool(views)

    wait_until(is_read)
    return views[0]


@pytest.mark.long
def test_a_leader_of_etcd_that_dies_takes_no_lease_with_it(
    three: EtcdCluster, client: EtcdClient
) -> None:
    lease = client.grant(LEASE_S)
    assert client.attempt(put(read(client), "r1", lease)).outcome == "done"
    three.leader().kill()
    is_kept: list[bool] = []
    end = time.monotonic() + 2 * LEASE_S

    def is_over() -> bool:
        with suppress(EtcdUnavailableError):
            is_kept.append(client.keep_alive(lease).is_alive)
        return time.monotonic() > end

    wait_until(is_over, pause_s=0.2)
    assert is_kept
    assert all(is_kept)
    assert "note" in read(client).rows


@pytest.mark.long
def test_a_member_that_is_stopped_is_asked_once(three: EtcdCluster, client: EtcdClient) -> None:
    before = read(client)
    followers = [one for one in three.members if one is not three.leader()]
    with EtcdClient(EtcdSettings((followers[0].url, followers[1].url)), "/amqpstore/three/") as two:
        followers[0].pause()
        begun = time.monotonic()
        two.read()
        first = time.monotonic() - begun
        begun = time.monotonic()
        two.read()
        second = time.monotonic() - begun
    assert first >= 1.0 > second
    assert before.revision <= read(client).revision


@pytest.mark.long
def test_a_minority_answers_nothing(three: EtcdCluster, client: EtcdClient) -> None:
    """A minority has all keys, and cannot know whether they are still current."""
    view = read(client)
    survivor = three.members[2]
    for one in three.members[:2]:
        one.kill()
    with EtcdClient(EtcdSettings((survivor.url,)), "/amqpstore/three/") as alone:
        with pytest.raises(EtcdUnavailableError):
            alone.read()
        with pytest.raises(EtcdUnavailableError):
            alone.grant(LEASE_S)
    transaction = put(view, "late")
    assert client.attempt(transaction).outcome == "unknown"
    three.start()
    # A later transaction shows whether this one happened.
    wait_until(lambda: client.attempt(put(read(client), "mine")).outcome == "done")
    log = log_of(read(client))
    assert log[-1] == "mine"
    assert log.count("late") <= 1
    assert client.attempt(transaction).outcome == "refused"


@pytest.mark.long
def test_a_watch_outlives_the_member_that_it_was_on(three: EtcdCluster, client: EtcdClient) -> None:
    views: list[View] = []
    watching = Watching(client, views.append)
    try:
        for number, harm in enumerate(("kill", "pause", "kill")):
            wait_until(lambda: bool(views))
            getattr(three.members[number], harm)()
            request = f"after {harm} {number}"
            wait_until(
                lambda request=request: client.attempt(put(read(client), request)).outcome == "done"  # type: ignore[misc]
            )
            wait_until(
                lambda request=request: request in log_of(views[-1])  # type: ignore[misc]
            )
            three.members[number].resume()
            three.start()
    finally:
        watching.close()


@pytest.mark.long
@pytest.mark.rounds(2)
def test_what_was_done_is_there_once_and_what_was_refused_never(
    three: EtcdCluster, client: EtcdClient, seed: int
) -> None:
    """One writer, and members of etcd that are killed, stopped and started all the time."""
    random = Random(seed)
    outcomes: dict[str, str] = {}
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            with suppress(EtcdError):
                request = f"r{len(outcomes)}"
                outcomes[request] = client.attempt(put(client.read(), request)).outcome

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            member = random.choice(three.members)
            getattr(member, random.choice(("kill", "pause")))()
            before = len(outcomes)
            wait_until(lambda before=before: len(outcomes) > before + 20)  # type: ignore[misc]
            member.resume()
            three.start()
    finally:
        is_over.set()
        writer.join()
    wait_until(lambda: client.attempt(put(read(client), "last")).outcome == "done")
    log = log_of(read(client))
    assert len(log) == len(set(log))
    done = [request for request, outcome in outcomes.items() if outcome == "done"]
    assert [request for request in log if outcomes.get(request) == "done"] == done
    assert not [request for request in log if outcomes.get(request) == "refused"]
