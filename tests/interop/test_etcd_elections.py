"""Elections of the core on a real etcd of three members: the simulator's machines, network and
rules, in real time, with partitions made by relays and members of etcd that are killed and stopped.
"""

import queue
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

import pytest

from amqpstore_server.cluster.effects import (
    Attempt,
    Grant,
    KeepAlive,
    ReadKeys,
    Revoke,
    ShowAlive,
)
from amqpstore_server.cluster.keys import IN_SYNC, LEADER, EtcdTransaction, Put, View
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.driver import EtcdDriver
from amqpstore_server.etcd.errors import EtcdError
from amqpstore_server.etcd.settings import EtcdSettings
from amqpstore_server.etcd.watching import Watching
from tests.etcd_process import EtcdCluster
from tests.interop.relay import Relay
from tests.simulated_group import history
from tests.simulated_group.etcd import (
    CLUSTER,
    TIMEOUT_S,
    GroupEtcd,
    first_values,
)
from tests.simulated_group.events import Events
from tests.simulated_group.machine import TIMING
from tests.simulated_group.nemesis import Nemesis

NOBODY = "http://127.0.0.1:9"
PREFIX = "/amqpstore/elections/main/"


class RealTime(Events):
    """Lets things happen when it is time, in one thread, with what other threads hand in."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_in: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._begun = time.monotonic()

    def run_until(self, end: float) -> None:
        while self.now < end:
            super().run_until(min(end, max(self.now, time.monotonic() - self._begun)))
            with suppress(queue.Empty):
                self.handed_in.get(timeout=0.002)()


class _Way:
    """One machine's way to etcd: relays, a driver, and who waits for its answers."""

    def __init__(self, events: RealTime, etcd: EtcdCluster, name: str, lose: Random) -> None:
        self.loss = 0.0
        self.relays = [Relay(url, self._answer) for url in etcd.urls]
        self._lose = lose
        self._urls = etcd.urls
        self._events = events
        settings = EtcdSettings(tuple(f"http://127.0.0.1:{one.port}" for one in self.relays))
        self.client = EtcdClient(settings, PREFIX)
        self.driver = EtcdDriver(self.client, self, TIMING.lease_s, lambda: True)
        self.reader: Callable[[View], None] = lambda _: None
        self.grants: list[tuple[Callable[[int], None], Callable[[], None]]] = []
        self.attempts: dict[str, Callable[[Outcome, int], None]] = {}
        self.renewals: dict[int, Callable[[bool], None]] = {}

    def close(self) -> None:
        for one in self.relays:
            one.close()
        self.driver.close()
        self.client.close()

    def _answer(self, piece: bytes) -> bytes:
        return b"" if self._lose.random() < self.loss else piece

    def cut_off(self, *, is_cut: bool) -> None:
        for relay, url in zip(self.relays, self._urls, strict=True):
            relay.target(NOBODY if is_cut else url)
            if is_cut:
                relay.cut()

    # Answers, in threads of the driver.

    def _hand_in(self, answer: Callable[[], None]) -> None:
        self._events.handed_in.put(answer)

    def viewed(self, view: View) -> None:
        self._hand_in(lambda: self.reader(view._replace(cluster=CLUSTER)))

    def etcd_is_another(self, reason: str) -> None:
        raise AssertionError(reason)

    def granted(self, lease: int) -> None:
        self._hand_in(lambda: self.grants.pop(0)[0](lease))

    def grant_failed(self) -> None:
        self._hand_in(lambda: self.grants.pop(0)[1]())

    def attempted(self, request: str, outcome: Outcome, revision: int) -> None:
        self._hand_in(lambda: self.attempts.pop(request)(outcome, revision))

    def kept_alive(self, lease: int, asked_at: float, *, is_alive: bool) -> None:
        self._hand_in(lambda: self.renewals[lease](is_alive))


class RealEtcd(GroupEtcd):
    """A real etcd instead of the model. It is as slow as it is: `slow_s` has no effect."""

    def __init__(self, events: RealTime, etcd: EtcdCluster) -> None:
        super().__init__()
        self.real = etcd
        self.leaders: dict[int, set[tuple[str, str]]] = {}
        """The leaders that were seen in each term: member and incarnation."""
        self._stack = ExitStack()
        self._time = events
        self._ways: dict[str, _Way] = {}
        self._applied: object = None
        self._admin = self._stack.enter_context(EtcdClient(etcd.settings, PREFIX))
        puts = tuple(Put(key, value) for key, value in first_values(("A", "B", "C"), 2).items())
        assert self._admin.attempt(EtcdTransaction((), puts)).outcome == "done"
        for number, name in enumerate("ABC"):
            self._ways[name] = _Way(events, etcd, name, Random(number))
            self._stack.callback(self._ways[name].close)
        self._list: tuple[str, ...] = ()
        watching = Watching(self._admin, lambda view: events.handed_in.put(lambda: self._see(view)))
        self._stack.callback(watching.close)

    def close(self) -> None:
        for one in self.real.members:
            one.resume()
        self._stack.close()

    def _see(self, view: View) -> None:
        if view.leader is not None:
            value = view.leader.value
            seen = self.leaders.setdefault(value["term"], set())
            seen.add((value["member"], value["incarnation"]))
        if view.in_sync != self._list:
            self._list = view.in_sync
            self.changed(IN_SYNC)

    # Faults.

    def apply(self) -> None:
        """Turn the faults that the history asks for into real ones."""
        wanted = (frozenset(self.cut_off), self.is_away, self.loss)
        if wanted == self._applied:
            return
        self._applied = wanted
        for name, way in self._ways.items():
            way.loss = self.loss
            way.cut_off(is_cut=name in self.cut_off)
        for member in self.real.members:
            if self.is_away:
                member.pause()
            else:
                member.resume()
        with suppress(AssertionError):
            if not self.is_away and self.cut_off:
                self.real.leader().kill()
        if not self.cut_off and not self.is_away:
            for member in self.real.members:
                if not member.is_running:
                    member.begin()

    def lose_leases(self) -> None:
        self.lose_lease_of(LEADER)

    def lose_lease_of(self, key: str) -> None:
        with suppress(EtcdError):
            view = self._admin.read()
            self.lost_leases_at = self._time.now
            if key in view.rows:
                self._admin.attempt(EtcdTransaction((), (), (key,), "lost"))

    def extend_leases(self) -> None:
        with suppress(AssertionError):
            leader = self.real.leader()
            leader.kill()
            leader.begin()

    # Requests.

    def view(self) -> View:
        """Return the keys, or none while they cannot be read."""
        if not self.is_away:
            with suppress(EtcdError):
                return self._admin.read()
        return View(CLUSTER, 0, {})

    @property
    def in_sync(self) -> tuple[str, ...]:
        return self.view().in_sync

    def read(self, member: str, answer: Callable[[View], None]) -> None:
        self._ways[member].reader = answer
        self._ways[member].driver.carry_out(ReadKeys())

    def grant(
        self, member: str, ttl_s: float, answer: Callable[[int], None], fail: Callable[[], None]
    ) -> None:
        self._ways[member].grants.append((answer, fail))
        self._ways[member].driver.carry_out(Grant())

    def keep_alive(self, member: str, lease: int, answer: Callable[[bool], None]) -> None:
        self._ways[member].renewals[lease] = answer
        self._ways[member].driver.carry_out(KeepAlive(lease))

    def revoke(self, member: str, lease: int) -> None:
        self._ways[member].driver.carry_out(Revoke(lease))

    def show_alive(self, member: str, key: str, value: Any) -> None:
        self._ways[member].driver.carry_out(ShowAlive(key, value))

    def attempt(
        self, member: str, transaction: EtcdTransaction, answer: Callable[[Outcome, int], None]
    ) -> None:
        held_s = self.hold(transaction)
        if held_s and not self.is_cut(member):
            self._time.after(held_s, lambda: self._carry_out_late(transaction))
            self._time.after(TIMEOUT_S, lambda: answer("unknown", 0))
            return
        self._ways[member].attempts[transaction.request] = answer
        self._ways[member].driver.carry_out(Attempt(transaction))

    def _carry_out_late(self, transaction: EtcdTransaction) -> None:
        if not self.is_away:
            with suppress(EtcdError):
                self._admin.attempt(transaction)


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd")), 3) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.rounds(2)
def test_one_leader_a_term_and_nothing_confirmed_is_lost(
    three: EtcdCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RealEtcd] = []

    def real_etcd(events: RealTime, *_others: object) -> RealEtcd:
        made.append(RealEtcd(events, three))
        return made[0]

    monkeypatch.setattr(history, "Events", RealTime)
    monkeypatch.setattr(history, "Etcd", real_etcd)
    group = history.Group(seed)
    etcd = made[0]
    try:
        etcd.loss = group.random.choice((0.0, 0.0, 0.05))
        nemesis = Nemesis(group)
        group.run(6.0)
        for _ in range(10):
            nemesis.strike()
            etcd.apply()
            group.run(group.random.choice((0.3, 1.0, 3.0, 6.0)))
        group.heal()
        etcd.apply()
        group.goes_on(history.PATIENCE_S)
        outcome = group.outcome(seed)
    finally:
        etcd.close()
    assert outcome.violations == ()
    assert outcome.confirmed > 0
    assert len(etcd.leaders) > 0
    # I7: a term has one leader, in one incarnation.
    assert [term for term, seen in etcd.leaders.items() if len(seen) > 1] == []
