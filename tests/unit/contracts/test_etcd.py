"""Tests that a group's etcd passes: the model that the simulator uses, and a real one.

Both must pass each of them: a group does not rely on what holds for only one of the two.
"""

import time
from collections.abc import Callable, Generator, Iterator
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVar

import pytest

from amqpstore_server.cluster.keys import (
    IN_SYNC,
    LEADER,
    STATE,
    EtcdTransaction,
    MemberIdentity,
    Put,
    View,
    election,
    list_change,
    member_key,
    regain,
    resignation,
)
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.etcd.client import EtcdClient
from tests.etcd_process import PATIENT_S, EtcdCluster
from tests.simulated_group.etcd import Etcd
from tests.simulated_group.events import Events
from tests.waiting import wait_until

Answer = TypeVar("Answer")

MEMBERS = ("A", "B", "C")
LEASE_S = 2.0
LONG_S = 60.0
KEYS = {"group", STATE, IN_SYNC, *map(member_key, MEMBERS)}


class Subject(Protocol):
    """A model or a real etcd, which is asked in the same way."""

    def view(self) -> View: ...

    def grant(self, ttl_s: float) -> int: ...

    def keep_alive(self, lease: int) -> bool: ...

    def revoke(self, lease: int) -> None: ...

    def attempt(self, transaction: EtcdTransaction) -> tuple[Outcome, int]: ...

    def now(self) -> float:
        """Return the time, in seconds."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until it holds."""


class ModelSubject:
    def __init__(self) -> None:
        self.events = Events()
        self.etcd = Etcd(self.events, Random(1), MEMBERS, 2)
        self.etcd.loss = 0.0

    def _answer(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        ask(answers.append)
        while not answers:
            self.events.run_until(self.events.now + 0.001)
        return answers[0]

    def view(self) -> View:
        found: View = self._answer(lambda answer: self.etcd.read("A", answer))
        return found

    def grant(self, ttl_s: float) -> int:
        return int(self._answer(lambda answer: self.etcd.grant("A", ttl_s, answer, lambda: None)))

    def keep_alive(self, lease: int) -> bool:
        return bool(self._answer(lambda answer: self.etcd.keep_alive("A", lease, answer)))

    def revoke(self, lease: int) -> None:
        self.etcd.revoke("A", lease)
        self.events.run_until(self.events.now + self.etcd.slow_s)

    def attempt(self, transaction: EtcdTransaction) -> tuple[Outcome, int]:
        def ask(answer: Callable[[Any], None]) -> None:
            self.etcd.attempt(
                "A", transaction, lambda outcome, revision: answer((outcome, revision))
            )

        found: tuple[Outcome, int] = self._answer(ask)
        return found

    def now(self) -> float:
        return self.events.now

    def until(self, condition: Callable[[], bool]) -> None:
        start = self.events.now
        while not condition():
            assert self.events.now < start + 10
            self.events.run_until(self.events.now + 0.1)


class RealSubject:
    def __init__(self, client: EtcdClient) -> None:
        self.client = client
        self.leases: list[int] = []
        start: EtcdTransaction = EtcdTransaction(
            (),
            (
                Put("group", {"min_in_sync": 2, "replicas": 3, "protocol": 1}),
                *(Put(member_key(one), {"sync": True}) for one in MEMBERS),
                Put(STATE, {"term": 0, "leader": "", "request": ""}),
                Put(IN_SYNC, {"members": list(MEMBERS), "term": 0, "request": ""}),
            ),
        )
        assert client.attempt(start).outcome == "done"

    def view(self) -> View:
        return self.client.read()

    def grant(self, ttl_s: float) -> int:
        self.leases.append(self.client.grant(ttl_s))
        return self.leases[-1]

    def close(self) -> None:
        """End what would change the revision during the next test."""
        for lease in self.leases:
            self.client.revoke(lease)

    def keep_alive(self, lease: int) -> bool:
        return self.client.keep_alive(lease).is_alive

    def revoke(self, lease: int) -> None:
        self.client.revoke(lease)

    def attempt(self, transaction: EtcdTransaction) -> tuple[Outcome, int]:
        attempted = self.client.attempt(transaction)
        return attempted.outcome, attempted.revision

    def now(self) -> float:
        return time.monotonic()

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, pause_s=0.1)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd"))) as cluster:
        yield cluster


numbers: Iterator[int] = count()


@pytest.fixture(params=["model", "etcd"])
def subject(request: pytest.FixtureRequest) -> Generator[Subject]:
    if request.param == "model":
        yield ModelSubject()
        return
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    prefix = f"/amqpstore/contract/{next(numbers)}/"
    with EtcdClient(cluster.settings, prefix, timeout_s=PATIENT_S) as client:
        real = RealSubject(client)
        yield real
        real.close()


def standing(
    view: View, member: str, incarnation: int, lease: int, request: str
) -> EtcdTransaction:
    identity = MemberIdentity(member, f"{member}.{incarnation}", "store", view.cluster)
    return election(view, identity, view.term + 1, lease, request)


def elect(
    subject: Subject, member: str = "A", request: str = "r1", lease_s: float = LONG_S
) -> tuple[int, View]:
    lease = subject.grant(lease_s)
    stood = standing(subject.view(), member, 1, lease, request)
    assert subject.attempt(stood)[0] == "done"
    return lease, subject.view()


def test_a_read_has_all_keys_with_their_revisions(subject: Subject) -> None:
    view = subject.view()
    assert (view.term, view.leader, view.in_sync, view.min_in_sync) == (0, None, MEMBERS, 2)
    assert set(view.rows) == KEYS
    assert 0 < view.changed(STATE) <= view.revision
    assert view.changed(LEADER) == 0
    assert view.cluster != 0


def test_reads_are_at_the_same_revision_until_something_changes(subject: Subject) -> None:
    before = subject.view()
    subject.grant(LONG_S)
    assert subject.view() == before


def test_an_election_puts_all_its_keys_at_one_revision(subject: Subject) -> None:
    before = subject.view()
    _, view = elect(subject)
    assert view.revision == before.revision + 1
    assert {view.changed(key) for key in (LEADER, STATE, IN_SYNC)} == {view.revision}
    leader = view.leader
    assert leader is not None
    assert leader.value["request"] == "r1"
    assert (view.term, view.last_leader) == (1, "A")


def test_an_election_answers_with_its_revision(subject: Subject) -> None:
    lease = subject.grant(LONG_S)
    answer = subject.attempt(standing(subject.view(), "A", 1, lease, "r"))
    assert answer == ("done", subject.view().revision)


def test_the_second_of_two_elections_is_refused_and_changes_nothing(subject: Subject) -> None:
    view = subject.view()
    first, second = subject.grant(LONG_S), subject.grant(LONG_S)
    assert subject.attempt(standing(view, "A", 1, first, "r1"))[0] == "done"
    between = subject.view()
    assert subject.attempt(standing(view, "B", 1, second, "r2")) == (
        "refused",
        between.revision,
    )
    assert subject.view() == between


@pytest.mark.parametrize("key", [STATE, IN_SYNC])
def test_an_election_on_what_was_changed_since_is_refused(subject: Subject, key: str) -> None:
    view = subject.view()
    value = {**view.rows[key].value, "request": "other"}
    assert subject.attempt(EtcdTransaction((), (Put(key, value),)))[0] == "done"
    lease = subject.grant(LONG_S)
    assert subject.attempt(standing(view, "A", 1, lease, "r"))[0] == "refused"


def test_the_same_election_never_happens_twice(subject: Subject) -> None:
    """A request whose answer was lost does no harm once any of its keys was changed."""
    lease = subject.grant(LONG_S)
    stood = standing(subject.view(), "A", 1, lease, "r")
    assert subject.attempt(stood)[0] == "done"
    once = subject.view()
    assert subject.attempt(stood)[0] == "refused"
    assert subject.view() == once


def test_a_lease_that_ends_takes_the_leader_and_nothing_else(subject: Subject) -> None:
    before = subject.now()
    _, view = elect(subject, lease_s=LEASE_S)
    subject.until(lambda: subject.view().leader is None)
    assert subject.now() - before > LEASE_S - 1.0
    after = subject.view()
    assert set(after.rows) == KEYS
    assert after.revision == view.revision + 1
    assert after.changed(STATE) == view.changed(STATE)


def test_a_lease_that_is_renewed_does_not_end(subject: Subject) -> None:
    lease, _ = elect(subject, lease_s=LEASE_S)
    since = subject.now()
    kept = []

    def renewed_for_long() -> bool:
        kept.append(subject.keep_alive(lease))
        return len(kept) >= 30

    subject.until(renewed_for_long)
    assert subject.now() - since > LEASE_S
    assert all(kept)
    assert subject.view().leader is not None


def test_a_lease_that_has_ended_is_not_renewed(subject: Subject) -> None:
    lease, _ = elect(subject)
    subject.revoke(lease)
    assert subject.view().leader is None
    assert not subject.keep_alive(lease)


def test_a_lease_that_is_gone_may_be_given_back(subject: Subject) -> None:
    subject.revoke(1234567)


def test_an_election_under_a_lease_that_is_gone_is_refused(subject: Subject) -> None:
    """The end of the lease ends a candidacy: its request cannot be carried out any more."""
    lease = subject.grant(LONG_S)
    view = subject.view()
    subject.revoke(lease)
    assert subject.attempt(standing(view, "A", 1, lease, "r"))[0] == "refused"
    assert subject.view() == view


def test_a_refused_election_under_a_lease_that_is_gone_is_refused(subject: Subject) -> None:
    view = subject.view()
    elect(subject)
    assert subject.attempt(standing(view, "B", 1, 7654321, "r"))[0] == "refused"


def test_the_list_is_changed_by_who_leads_and_knows_it(subject: Subject) -> None:
    _, view = elect(subject)
    assert view.leader is not None
    fence, known = view.leader.changed, view.changed(IN_SYNC)
    shrunk = list_change(fence, known, ("A", "B"), 1, "r2")
    outcome, revision = subject.attempt(shrunk)
    assert outcome == "done"
    assert subject.view().changed(IN_SYNC) == revision
    assert subject.view().in_sync == ("A", "B")
    for fence_of, list_of in ((fence, known), (fence - 1, revision), (fence, revision + 1)):
        late = list_change(fence_of, list_of, MEMBERS, 1, "r3")
        assert subject.attempt(late)[0] == "refused"
    assert subject.view().in_sync == ("A", "B")


def test_a_leader_without_its_key_changes_nothing(subject: Subject) -> None:
    lease, view = elect(subject)
    assert view.leader is not None
    subject.revoke(lease)
    late = list_change(view.leader.changed, view.changed(IN_SYNC), ("A",), 1, "r2")
    assert subject.attempt(late)[0] == "refused"


def test_a_regained_leadership_has_another_fence_and_the_same_term(subject: Subject) -> None:
    lease, view = elect(subject)
    assert view.leader is not None
    subject.revoke(lease)
    new = subject.grant(LONG_S)
    again = regain(view.changed(STATE), view.leader.value, new, "r2")
    assert subject.attempt(again)[0] == "done"
    regained = subject.view()
    assert regained.leader is not None
    assert regained.leader.changed > view.leader.changed
    assert regained.leader.value["request"] == "r2"
    assert (regained.term, regained.changed(STATE)) == (1, view.changed(STATE))


def test_nothing_is_regained_once_somebody_was_elected(subject: Subject) -> None:
    lease, view = elect(subject)
    assert view.leader is not None
    subject.revoke(lease)
    theirs, _ = elect(subject, "B", "r2")
    subject.revoke(theirs)
    new = subject.grant(LONG_S)
    again = regain(view.changed(STATE), view.leader.value, new, "r3")
    assert subject.attempt(again)[0] == "refused"


def test_a_member_takes_back_its_own_key_under_a_new_lease(subject: Subject) -> None:
    old, view = elect(subject)
    assert view.leader is not None
    new = subject.grant(LONG_S)
    assert subject.attempt(standing(view, "A", 2, new, "r2"))[0] == "done"
    taken = subject.view()
    assert taken.leader is not None
    assert taken.term == 2
    assert taken.leader.value["incarnation"] == "A.2"
    subject.revoke(old)
    assert subject.view().leader is not None


def test_what_a_process_asked_for_changes_nothing_once_another_one_has_taken_its_key_back(
    subject: Subject,
) -> None:
    """Requests of a process may be on their way when it ends; the key was there all the time."""
    _, view = elect(subject)
    assert view.leader is not None
    new = subject.grant(LONG_S)
    assert subject.attempt(standing(view, "A", 2, new, "r2"))[0] == "done"
    taken = subject.view()
    fence = view.leader.changed
    assert subject.attempt(resignation(fence, 1, "B", "r3"))[0] == "refused"
    late = list_change(fence, taken.changed(IN_SYNC), ("A",), 1, "r4")
    assert subject.attempt(late)[0] == "refused"
    assert subject.view() == taken


def test_a_resignation_deletes_the_key_of_its_own_leadership_only(subject: Subject) -> None:
    lease, view = elect(subject)
    assert view.leader is not None
    assert subject.attempt(resignation(view.leader.changed - 1, 1, "B", "r2"))[0] == "refused"
    assert subject.attempt(resignation(view.leader.changed, 1, "B", "r3"))[0] == "done"
    after = subject.view()
    assert (after.leader, after.revision) == (None, view.revision + 1)
    assert after.handover == "B"
    subject.revoke(lease)
    assert subject.view() == after
