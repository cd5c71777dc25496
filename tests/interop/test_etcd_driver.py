"""The driver against a real etcd: what a member asks for, in threads, and what it hears."""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from amqpstore_server.cluster.effects import (
    Attempt,
    Grant,
    KeepAlive,
    ReadKeys,
    Revoke,
    ShowAlive,
)
from amqpstore_server.cluster.keys import Compare, EtcdTransaction, Put, View, alive_key
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.driver import EtcdDriver
from amqpstore_server.etcd.settings import EtcdSettings
from tests.etcd_process import PATIENT_S, EtcdCluster
from tests.interop.relay import Relay
from tests.waiting import wait_until

LEASE_S = 2.0
"""The time of a lease that is to end: even on a busy machine it lasts until it has been used."""

LONG_S = 60.0
numbers: Iterator[int] = count()


class Heard:
    """The driver's answers, in the order in which they came."""

    def __init__(self) -> None:
        self.answers: list[tuple[object, ...]] = []
        self.views: list[View] = []
        self.objections: list[str] = []

    def viewed(self, view: View) -> None:
        self.views.append(view)

    def etcd_is_another(self, reason: str) -> None:
        self.objections.append(reason)

    def granted(self, lease: int) -> None:
        self.answers.append(("granted", lease))

    def grant_failed(self) -> None:
        self.answers.append(("grant failed",))

    def attempted(self, request: str, outcome: Outcome, revision: int) -> None:
        self.answers.append((request, outcome))

    def kept_alive(self, lease: int, asked_at: float, *, is_alive: bool) -> None:
        self.answers.append(("kept", lease, is_alive, asked_at))

    def next(self, number: int) -> tuple[object, ...]:
        wait_until(lambda: len(self.answers) > number, lambda: str(self.answers))
        return self.answers[number]

    def sees(self, request: str) -> bool:
        """Whether the last view has a key with this request."""
        rows = self.views[-1].rows.values() if self.views else ()
        return any(row.value.get("request") == request for row in rows)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd"))) as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    return f"/amqpstore/driver/{next(numbers)}/"


@pytest.fixture
def client(etcd: EtcdCluster, prefix: str) -> Generator[EtcdClient]:
    """Another client, which changes keys."""
    etcd.members[0].resume()
    etcd.start()
    with EtcdClient(etcd.settings, prefix, timeout_s=PATIENT_S) as client:
        yield client


class Driven:
    """A driver, and its answers."""

    def __init__(
        self, settings: EtcdSettings, prefix: str, timeout_s: float, lease_s: float
    ) -> None:
        self.heard = Heard()
        self.is_fit = True
        self.client = EtcdClient(settings, prefix, timeout_s=timeout_s)
        self.driver = EtcdDriver(self.client, self.heard, lease_s, lambda: self.is_fit)
        self.carry_out = self.driver.carry_out


@contextmanager
def driven(
    settings: EtcdSettings, prefix: str, timeout_s: float = PATIENT_S, lease_s: float = LONG_S
) -> Iterator[Driven]:
    member = Driven(settings, prefix, timeout_s, lease_s)
    try:
        yield member
    finally:
        member.driver.close()
        member.client.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etcd")]


def put(request: str, lease: int = 0, key: str = "note") -> EtcdTransaction:
    return EtcdTransaction((), (Put(key, {"request": request}, lease),), (), request)


def test_each_effect_is_carried_out_and_answered(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    with driven(etcd.settings, prefix) as member:
        member.carry_out(Grant())
        kind, lease = member.heard.next(0)
        assert kind == "granted"
        assert isinstance(lease, int)
        member.carry_out(Attempt(put("r1", lease)))
        assert member.heard.next(1) == ("r1", "done")
        absent = EtcdTransaction((Compare("note", 0),), (), (), "r2")
        member.carry_out(Attempt(absent))
        assert member.heard.next(2) == ("r2", "refused")
        before = time.monotonic()
        member.carry_out(KeepAlive(lease))
        kept, of, is_alive, asked_at = member.heard.next(3)
        assert (kept, of, is_alive) == ("kept", lease, True)
        assert isinstance(asked_at, float)
        assert before <= asked_at <= time.monotonic()
        member.carry_out(Revoke(lease))
        member.carry_out(ReadKeys())
        wait_until(lambda: bool(member.heard.views) and member.heard.views[-1].rows == {})
        answers = count(4)

        def is_gone() -> bool:
            member.carry_out(KeepAlive(lease))
            kept, of, is_alive, _ = member.heard.next(next(answers))
            assert (kept, of) == ("kept", lease)
            return is_alive is False

        # The etcd member that was read from may have removed the lease before etcd's leader, which
        # is asked here.
        wait_until(is_gone)


def test_what_is_asked_for_is_done_in_its_order(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    """A resignation comes before the lease is given back, and a read after what it asks about."""
    with driven(etcd.settings, prefix) as member:
        for number in range(20):
            member.carry_out(Attempt(put(f"r{number}")))
            member.carry_out(ReadKeys())
            member.carry_out(ReadKeys())
        wait_until(lambda: member.heard.sees("r19"))
        wait_until(lambda: len(member.heard.answers) == 20)
        assert member.heard.answers == [(f"r{number}", "done") for number in range(20)]


def test_a_lease_is_not_renewed_while_this_member_is_not_fit(
    etcd: EtcdCluster, client: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with driven(etcd.settings, prefix, lease_s=LEASE_S) as member:
        member.carry_out(Grant())
        lease = member.heard.next(0)[1]
        assert isinstance(lease, int)
        assert client.attempt(put("r1", lease)).outcome == "done"
        wait_until(lambda: member.heard.sees("r1"))
        member.is_fit = False

        def is_gone() -> bool:
            member.carry_out(KeepAlive(lease))
            return "note" not in client.read().rows

        wait_until(is_gone)
        wait_until(lambda: not member.heard.sees("r1"))
        assert len(member.heard.answers) == 1
        said = [record.message for record in caplog.records]
        assert said == ["the lease is not renewed: disk or event loop make no progress"]


def test_changes_of_others_are_heard_of_at_once(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    with driven(etcd.settings, prefix) as member:
        wait_until(lambda: bool(member.heard.views))
        begun = time.monotonic()
        for number in range(5):
            assert client.attempt(put(f"r{number}")).outcome == "done"
            wait_until(partial(member.heard.sees, f"r{number}"))
        # A watch that tells nothing is begun anew, with a read, after three seconds.
        assert time.monotonic() - begun < 14.0


def test_an_etcd_that_is_away_is_no_end(etcd: EtcdCluster, client: EtcdClient, prefix: str) -> None:
    with driven(etcd.settings, prefix) as member:
        wait_until(lambda: bool(member.heard.views))
        etcd.kill()
        member.carry_out(Grant())
        assert member.heard.next(0) == ("grant failed",)
        member.carry_out(Attempt(put("r1")))
        assert member.heard.next(1) == ("r1", "unknown")
        member.carry_out(KeepAlive(7))
        member.carry_out(Revoke(7))
        member.carry_out(ReadKeys())
        etcd.start()
        member.carry_out(Attempt(put("r2")))
        assert member.heard.next(2) == ("r2", "done")
        # The watch is back as well.
        wait_until(lambda: member.heard.sees("r2"))
        assert client.attempt(put("r3")).outcome == "done"
        wait_until(lambda: member.heard.sees("r3"))


def test_a_lost_connection_and_a_compaction_hide_nothing(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    """While the watch was cut off, etcd has forgotten the revisions from which it would go on."""
    is_cut = threading.Event()

    def block(answer: bytes) -> bytes:
        return b"" if is_cut.is_set() else answer

    with (
        Relay(etcd.members[0].url, block) as relay,
        driven(EtcdSettings((f"http://127.0.0.1:{relay.port}",)), prefix) as member,
    ):
        assert client.attempt(put("r1")).outcome == "done"
        wait_until(lambda: member.heard.sees("r1"))
        is_cut.set()
        relay.cut()
        for number in range(3):
            last = client.attempt(put(f"hidden {number}")).revision
        etcd.post("/v3/kv/compaction", {"revision": str(last)})
        is_cut.clear()
        wait_until(lambda: member.heard.sees("hidden 2"))
        assert client.attempt(put("r2")).outcome == "done"
        wait_until(lambda: member.heard.sees("r2"))


def test_a_revision_that_is_compacted_before_the_watch_begins_is_read_anew(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    """Revisions are compacted between the read and the watch, several times: each watch would be
    too late.
    """
    compacted: list[int] = []

    class Compacting(Heard):
        def viewed(self, view: View) -> None:
            super().viewed(view)
            if len(compacted) < 3:
                compacted.append(client.attempt(put(f"r{len(compacted)}")).revision)
                compacted.append(client.attempt(put(f"r{len(compacted)}")).revision)
                etcd.post("/v3/kv/compaction", {"revision": str(compacted[-1])})

    heard = Compacting()
    with EtcdClient(etcd.settings, prefix, timeout_s=PATIENT_S) as other:
        driver = EtcdDriver(other, heard, LEASE_S, lambda: True)
        wait_until(lambda: heard.sees("r3"))
        assert client.attempt(put("last")).outcome == "done"
        wait_until(lambda: heard.sees("last"))
        driver.close()


def test_a_stopped_etcd_delays_neither_answers_nor_the_end_for_long(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    with driven(etcd.settings, prefix, 1.0) as member:
        wait_until(lambda: bool(member.heard.views))
        etcd.members[0].pause()
        try:
            begun = time.monotonic()
            for _ in range(100):
                member.carry_out(ReadKeys())
            member.carry_out(Grant())
            member.carry_out(Attempt(put("r1")))
            # Behind the read under way, and the one that stands for all others.
            assert member.heard.next(0) == ("grant failed",)
            assert member.heard.next(1) == ("r1", "unknown")
            assert time.monotonic() - begun < 15.0
            begun = time.monotonic()
            member.driver.close()
            assert time.monotonic() - begun < 15.0
        finally:
            etcd.members[0].resume()


def test_renewals_that_wait_are_one(etcd: EtcdCluster, client: EtcdClient, prefix: str) -> None:
    """A hundred renewals that waited for etcd do not become a hundred answers once it is back."""
    with driven(etcd.settings, prefix, 1.0) as member:
        lease = client.grant(60.0)
        etcd.members[0].pause()
        for _ in range(100):
            member.carry_out(KeepAlive(lease))
        member.carry_out(Attempt(put("r1")))
        member.heard.next(0)
        etcd.members[0].resume()
        member.carry_out(KeepAlive(8))
        wait_until(lambda: member.heard.answers[-1][:3] == ("kept", 8, False))
        assert len(member.heard.answers) <= 5


def test_a_member_shows_that_it_runs(
    etcd: EtcdCluster, client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore_server.etcd.presence.LEASE_S", LEASE_S)

    def shown() -> object:
        row = client.read().rows.get("alive/A")
        return row and dict(row.value)

    with driven(etcd.settings, prefix) as member:

        def shows(position: int) -> bool:
            member.carry_out(ShowAlive(alive_key("A"), {"position": position}))
            return shown() == {"position": position}

        wait_until(lambda: shows(1))
        wait_until(lambda: shows(2))
        until = time.monotonic() + 1.5 * LEASE_S
        while time.monotonic() < until:
            assert shows(2)
        wait_until(lambda: shown() is None)
        wait_until(lambda: shows(2))
        etcd.kill()
        member.carry_out(ShowAlive(alive_key("A"), {"position": 3}))
        etcd.start()
        wait_until(lambda: shows(3))
