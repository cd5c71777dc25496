"""`amqpstore cluster` on a real etcd: what it puts there, what it refuses, and what it says."""

import json
import secrets
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Store
from amqpstore.errors import MembershipError
from amqpstore.replica import FollowerStore, Membership, read_membership, write_membership
from amqpstore.system.files import OsFiles
from amqpstore_server.cluster.keys import (
    IN_SYNC,
    LEADER,
    EtcdTransaction,
    MemberIdentity,
    Put,
    View,
    alive_key,
    election,
    list_change,
    resignation,
)
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.settings import EtcdSettings
from amqpstore_tools.__main__ import main
from amqpstore_tools.administration.client import asked
from amqpstore_tools.offline.exits import ToolError
from tests.etcd_process import PATIENT_S, EtcdCluster
from tests.interop.relay import Relay
from tests.waiting import wait_until

LEASE_S = 60.0
"""Longer than any test: leases that run out are another matter."""
PREFIX = "/amqpstore/{}/main/"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd"))) as cluster:
        yield cluster


class Operator:
    """Runs verbs for a cluster of its own, each with an empty environment."""

    def __init__(
        self, url: str, directory: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        self.url = url
        self.name = name
        self._directory = directory
        self._capsys = capsys

    def data(self, name: str) -> str:
        return str(self._directory / name)

    def run(self, code: int, action: str, *arguments: str, data: str = "a") -> str:
        """Run an action, which has to end with this code. Returns all that it says."""
        replicate = f"127.0.0.1:{5000 + ord(data[0])}"
        options = ["--cluster-name", self.name, "--cluster-etcd", self.url]
        options += ["--data", self.data(data), "--cluster-replicate", replicate]
        found = main(["cluster", action, *arguments, *options])
        said = self._capsys.readouterr()
        assert found == code, said
        return said.err if code and not said.out else said.out

    def json(self, code: int, action: str, *arguments: str, data: str = "a") -> Any:
        return json.loads(self.run(code, action, *arguments, "--json", data=data))

    def member(self, data: str) -> str:
        found = read_membership(OsFiles(), self.data(data))
        assert found is not None
        return found.member


@pytest.fixture
def operator(
    etcd: EtcdCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Operator:
    monkeypatch.setenv("AMQPSTORE_CONFIG", "")
    return Operator(etcd.urls[0], tmp_path, capsys, secrets.token_hex(4))


@pytest.fixture
def client(etcd: EtcdCluster, operator: Operator) -> Generator[EtcdClient]:
    prefix = PREFIX.format(operator.name)
    with EtcdClient(etcd.settings, prefix, timeout_s=PATIENT_S) as client:
        yield client


class Actor:
    """Does in etcd what members do."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def show(self, member: str, role: str = "following", position: int = 1, **more: object) -> None:
        value = {"role": role, "term": 1, "position": position, "damaged": False, **more}
        lease = self._client.grant(LEASE_S)
        self._done(EtcdTransaction((), (Put(alive_key(member), value, lease),)))

    def lead(self, member: str) -> None:
        view = self._client.read()
        identity = MemberIdentity(member, "1", view.store_id, view.cluster)
        lease = self._client.grant(LEASE_S)
        self._done(election(view, identity, view.term + 1, lease, secrets.token_hex(8)))

    def list(self, *members: str) -> None:
        view = self._client.read()
        assert view.leader is not None
        changed = view.changed(IN_SYNC)
        self._done(list_change(view.leader.changed, changed, members, view.term, "list"))

    def resign(self, successor: str = "") -> None:
        view = self._client.read()
        assert view.leader is not None
        self._done(resignation(view.leader.changed, view.term, successor, "resign"))

    def when(self, condition: Callable[[View], bool], act: Callable[[View], None]) -> None:
        """Wait for something in etcd, and act on it."""
        wait_until(lambda: condition(self._client.read()), "an operator's wish")
        act(self._client.read())

    def _done(self, transaction: EtcdTransaction) -> None:
        assert self._client.attempt(transaction).outcome == "done"


@pytest.fixture
def actor(client: EtcdClient) -> Actor:
    return Actor(client)


@pytest.fixture
def three(operator: Operator, actor: Actor) -> tuple[str, str, str]:
    """A group of three, all in sync, of which the first leads."""
    operator.run(0, "init")
    a = operator.member("a")
    actor.lead(a)
    operator.run(0, "join", data="b")
    b = operator.member("b")
    actor.list(a, b)
    assert operator.json(0, "join", data="c")["min_in_sync"] == 2
    c = operator.member("c")
    actor.list(a, b, c)
    actor.show(a, "leading")
    actor.show(b)
    actor.show(c)
    return a, b, c


# Founding.


def test_a_store_becomes_a_group_with_nothing_changed_but_the_file_member(
    operator: Operator, client: EtcdClient, tmp_path: Path
) -> None:
    Store.open(operator.data("a")).close()
    segments = sorted((tmp_path / "a" / "segments").iterdir())
    content = [one.read_bytes() for one in segments]
    said = operator.json(0, "init")
    view = client.read()
    assert said["member"] == operator.member("a") == view.in_sync[0]
    assert (len(view.in_sync), view.min_in_sync, view.protocol, view.term) == (1, 1, 1, 0)
    assert view.store_id in (tmp_path / "a" / "STORE").read_text()
    assert len(view.secret) == 32
    assert read_membership(OsFiles(), operator.data("a")) == Membership(
        said["member"], view.cluster, view.group_id
    )
    assert len(view.group_id) == 32
    assert [one.read_bytes() for one in segments] == content
    with pytest.raises(MembershipError):
        Store.open(operator.data("a"))


def test_nothing_that_exists_is_founded_again(operator: Operator, client: EtcdClient) -> None:
    operator.run(0, "init")
    before = client.read().rows
    assert "is that of member" in operator.run(5, "init")
    said = operator.run(5, "init", data="b")
    assert operator.url in said
    assert PREFIX.format(operator.name) in said
    assert "`amqpstore cluster join`" in said
    assert client.read().rows == before
    assert not Path(operator.data("b")).exists()


def test_founding_that_was_interrupted_is_finished(operator: Operator, client: EtcdClient) -> None:
    """MEMBER was written, and etcd not asked, or it was and the answer was lost."""
    Store.open(operator.data("a")).close()
    member = Membership("0123456789abcdef", client.read().cluster)
    write_membership(OsFiles(), operator.data("a"), member)
    assert operator.json(0, "init")["member"] == "0123456789abcdef"
    assert client.read().in_sync == ("0123456789abcdef",)


def test_a_founding_that_is_refused_leaves_a_single_node(
    operator: Operator, client: EtcdClient
) -> None:
    Store.open(operator.data("a")).close()
    client.attempt(EtcdTransaction((), (Put("stray", {"a": 1}),)))
    assert "there are keys" in operator.run(5, "init")
    Store.open(operator.data("a")).close()


def test_a_directory_of_another_etcd_is_not_founded_by_mistake(
    operator: Operator, client: EtcdClient
) -> None:
    """The group's keys are lost, and an operator says so: then the group has this store, and its
    term.
    """
    operator.run(0, "init")
    member = operator.member("a")
    cluster = client.read().cluster
    client.attempt(EtcdTransaction((), deletes=tuple(client.read().rows)))
    write_membership(OsFiles(), operator.data("a"), Membership(member, cluster ^ 1))
    assert "--from-leader" in operator.run(5, "init")
    assert "use --yes" in operator.run(2, "init", "--from-leader")
    assert not client.read().rows
    assert operator.json(0, "init", "--from-leader", "--yes")["member"] == member
    assert client.read().in_sync == (member,)
    found = Membership(member, cluster, client.read().group_id)
    assert read_membership(OsFiles(), operator.data("a")) == found
    assert "already" in operator.run(5, "init", "--from-leader", "--yes")


def test_what_etcd_does_not_answer_is_told_with_the_endpoint(operator: Operator) -> None:
    operator.url = "http://127.0.0.1:9"
    for action in ("init", "join", "status", "switchover", "leave"):
        said = operator.run(5, action, data="none")
        if action != "leave":
            assert "http://127.0.0.1:9" in said
            assert PREFIX.format(operator.name) in said
            assert "cluster_etcd" in said
    assert not Path(operator.data("none")).exists()


def test_a_lost_answer_is_looked_up_and_not_asked_for_again(
    etcd: EtcdCluster, operator: Operator, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction happens, and its answer does not come."""
    attempt = EtcdClient.attempt
    with Relay(etcd.urls[0], lambda _: b"") as relay:
        settings = EtcdSettings((f"http://127.0.0.1:{relay.port}",))
        with EtcdClient(settings, PREFIX.format(operator.name)) as deaf:
            monkeypatch.setattr(EtcdClient, "attempt", lambda _, one: attempt(deaf, one))
            operator.run(0, "init")
    assert client.read().in_sync == (operator.member("a"),)


# Members.


def test_members_join_with_an_empty_directory(
    operator: Operator, client: EtcdClient, three: tuple[str, str, str]
) -> None:
    view = client.read()
    assert set(view.members) == set(three)
    assert view.members[three[1]]["replicate"] == "127.0.0.1:5098"
    marker = Path(operator.data("b"), "STORE").read_text()
    assert view.store_id in marker
    assert "is that of member" in operator.run(5, "join", data="b")
    Store.open(operator.data("other")).close()
    assert "a new member begins empty" in operator.run(5, "join", data="other").lower()
    Path(operator.data("files")).mkdir()
    Path(operator.data("files"), "x.txt").touch()
    assert "is not empty: it contains x.txt" in operator.run(5, "join", data="files")
    said = operator.json(0, "join", "--observer", data="bb")
    assert f"amqpstore cluster remove {three[1]}" in said["done"]
    view = client.read()
    assert said["member"] in view.members
    assert view.voters == set(three)
    assert view.min_in_sync == 2


def test_a_join_that_was_interrupted_is_finished(operator: Operator, client: EtcdClient) -> None:
    operator.run(0, "init")
    operator.run(0, "join", data="b")
    member = operator.member("b")
    client.attempt(EtcdTransaction((), deletes=(f"members/{member}",)))
    assert operator.json(0, "join", data="b")["member"] == member


def test_who_asks_a_follower_that_runs_is_sent_to_the_leader(operator: Operator) -> None:
    operator.run(0, "init")
    operator.run(0, "join", data="b")
    with FollowerStore.open(operator.data("b")), pytest.raises(ToolError, match="ask the leader"):
        asked(operator.data("b"), {"do": "list_users"})


def test_members_are_removed_when_the_leader_can_do_without(
    operator: Operator, client: EtcdClient, actor: Actor, three: tuple[str, str, str]
) -> None:
    a, b, c = three
    assert "leads" in operator.run(5, "remove", a)
    assert "127.0.0.1:5000 is not a member" in operator.run(1, "remove", "127.0.0.1:5000")
    assert "name a member" in operator.run(2, "remove", "")
    dropping = threading.Thread(
        target=actor.when, args=(lambda view: c not in view.members, lambda _: actor.list(a, b))
    )
    dropping.start()
    assert operator.json(0, "remove", c[:12])["member"] == c
    dropping.join()
    assert "set min_in_sync 1" in operator.run(5, "remove", b)
    assert set(client.read().members) == {a, b}
    actor.resign()
    assert "nobody leads" in operator.run(5, "remove", b)


def test_the_minimum_is_between_one_and_all(
    operator: Operator, client: EtcdClient, three: tuple[str, str, str]
) -> None:
    for wrong in ("0", "4"):
        assert "from 1 to 3" in operator.run(2, "set", "min_in_sync", wrong)
    operator.run(0, "set", "min_in_sync", "3")
    assert client.read().min_in_sync == 3
    assert client.read().store_id
    assert len(three) == 3


def test_two_changes_of_a_group_do_not_pass_each_other(
    operator: Operator, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is made anew from what the first has left."""
    operator.run(0, "init")
    operator.run(0, "join", data="b")
    attempt = EtcdClient.attempt
    raced: list[bool] = []

    def slow(self: EtcdClient, transaction: EtcdTransaction) -> Any:
        if not raced:
            raced.append(True)
            operator.run(0, "set", "min_in_sync", "2")
        return attempt(self, transaction)

    monkeypatch.setattr(EtcdClient, "attempt", slow)
    operator.run(0, "join", data="c")
    assert len(client.read().voters) == 3
    assert client.read().min_in_sync == 2


def test_the_last_member_takes_the_group_with_it(
    operator: Operator, client: EtcdClient, actor: Actor
) -> None:
    operator.run(0, "init")
    actor.lead(operator.member("a"))
    assert "run this again" in operator.run(5, "leave")
    actor.resign()
    operator.run(0, "leave")
    assert not client.read().rows
    Store.open(operator.data("a")).close()
    assert "not that of a member" in operator.run(5, "leave")
    operator.run(0, "init")


def test_a_member_that_is_not_in_sync_may_leave(
    operator: Operator, client: EtcdClient, actor: Actor
) -> None:
    operator.run(0, "init")
    operator.run(0, "join", data="b")
    actor.lead(operator.member("a"))
    operator.run(0, "leave", data="b")
    assert set(client.read().members) == {operator.member("a")}
    Store.open(operator.data("b")).close()


# Who leads.


def test_another_member_leads_when_the_leader_gives_way(
    operator: Operator, actor: Actor, three: tuple[str, str, str]
) -> None:
    a, b, c = three
    assert "leads already" in operator.run(5, "switchover", "--to", a)

    def give_way(view: View) -> None:
        actor.resign(view.handover)
        actor.lead(view.handover)

    def switched(expected: str, *to: str) -> Any:
        leader = threading.Thread(
            target=actor.when, args=(lambda view: view.handover == expected, give_way)
        )
        leader.start()
        report = operator.json(0, "switchover", *to)
        leader.join()
        return report

    assert switched(c, "--to", "127.0.0.1:5099")["member"] == c
    report = switched(b)
    assert report["member"] == b
    assert report["term"] == 3


def test_leadership_is_not_given_to_who_lacks_something_or_is_away(
    operator: Operator, client: EtcdClient, actor: Actor, three: tuple[str, str, str]
) -> None:
    a, b, c = three
    actor.list(a, b)
    assert "not in sync" in operator.run(5, "switchover", "--to", c)
    client.attempt(EtcdTransaction((), deletes=(alive_key(b),)))
    assert "does not run" in operator.run(5, "switchover", "--to", b)
    assert "no other member" in operator.run(5, "switchover")
    assert client.read().handover == ""


def test_force_says_what_is_lost_and_asks(
    operator: Operator,
    client: EtcdClient,
    actor: Actor,
    three: tuple[str, str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b, c = three
    actor.list(a, b)
    actor.show(c, position=(1 << 44) + 1234)
    assert "switchover" in operator.run(5, "force-leader", c)
    actor.resign()
    assert "says that it leads" in operator.run(5, "force-leader", c)
    client.attempt(EtcdTransaction((), deletes=(alive_key(a), alive_key(b))))
    before = client.read().rows
    output = operator.run(2, "force-leader", c)
    for text in (f"{a} (127.0.0.1:5097), does not run", "batch 1234", "lost for ever", "--yes"):
        assert text in output
    assert client.read().rows == before
    winner = threading.Thread(
        target=actor.when, args=(lambda view: view.in_sync == (c,), lambda _: actor.lead(c))
    )
    winner.start()
    assert operator.json(0, "force-leader", c, "--yes")["term"] == 3
    winner.join()
    assert client.read().in_sync == (c,)


# What is shown.


def test_status_shows_who_leads_and_what_is_wrong(
    operator: Operator, client: EtcdClient, actor: Actor, three: tuple[str, str, str]
) -> None:
    a, b, c = three
    actor.show(a, "leading", position=(1 << 44) + 1_000)
    facts = operator.json(0, "status")
    assert (facts["leader"], facts["in_sync"], facts["problems"]) == (a, [a, b, c], [])
    assert [one["role"] for one in facts["members"]] == ["leading", "following", "following"]
    lines = operator.run(0, "status").splitlines()
    assert lines[0] == f"{operator.name}, group main: term 1, led by {a} (127.0.0.1:5097)"
    assert lines[1] == "3 of 3 replicas in sync; a confirm needs at least 2"
    assert lines[3].split() == [
        *(a, "leading", "1.", "127.0.0.1:5097", "127.0.0.1:5672", "1,000"),
    ]
    operator.run(0, "set", "min_in_sync", "1")
    actor.show(a, "leading")
    output = " ".join(operator.run(1, "status").split())
    assert "! min_in_sync is 1 of 3 replicas: a leader that is alone confirms" in output
    operator.run(0, "set", "min_in_sync", "2")
    actor.list(a)
    actor.show(c, copied={"bytes": 3 << 20, "of": 10 << 20})
    output = operator.run(1, "status")
    assert f"! {c} (127.0.0.1:5099) receives a copy of the store, 30 % of 10.0 MiB so far" in output
    assert "copying" in output
    assert operator.json(1, "status")["members"][2]["copied_bytes"] == 3 << 20
    actor.list(a, b, c)
    actor.show(a, "leading", disk_low=True)
    output = " ".join(operator.run(1, "status").split())
    assert f"! the disk of {a} (127.0.0.1:5097) is nearly full: publishers are blocked" in output
    actor.list(a)
    actor.show(a, "leading", left={c: "it is slow"})
    actor.show(c)
    output = operator.run(1, "status")
    assert f"! {c} (127.0.0.1:5099) is not in sync yet" in output
    assert "It has left the list: it is slow" in " ".join(output.split())
    client.attempt(EtcdTransaction((), deletes=(alive_key(b), LEADER)))
    output = operator.run(1, "status")
    for problem in ("nobody leads", "publishers are blocked", f"{b} (127.0.0.1:5098) is away"):
        assert f"! {problem}" in output or problem in output
    assert len(operator.json(1, "status")["problems"]) == 4
    # A member that waits does not stand for election.
    actor.show(a)
    assert "an election is under way" in " ".join(operator.run(1, "status").split())
    actor.show(a, waits="it is older")
    assert "all of the list wait" in " ".join(operator.run(1, "status").split())
    assert f"In the list, and perhaps older: {a}" in operator.run(2, "force-leader", c)
    assert operator.run(2, "force-leader", a).count(a) == 1
    actor.show(a, "leading", waits="etcd is not used")
    output = " ".join(operator.run(1, "status").split())
    assert f"etcd names no leader, and {a} (127.0.0.1:5097) says that it leads" in output
    client.attempt(EtcdTransaction((), deletes=(alive_key(a),)))
    output = " ".join(operator.run(1, "status").split())
    assert f"no client is served: start {a} (127.0.0.1:5097)" in output


def test_a_member_is_registered_with_the_group_and_the_addresses_that_are_configured(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.run(0, "init")
    configured = {"GROUP": "orders", "ADVERTISE": "a.example:7", "ADVERTISE_AMQP": "b.example:8"}
    for name, value in configured.items():
        monkeypatch.setenv(f"AMQPSTORE_CLUSTER_{name}", value)
    operator.run(0, "init", data="b")  # beside the other group
    facts = operator.json(1, "status", data="b")
    (member,) = facts["members"]
    assert (facts["group"], member["replicate"], member["amqp"]) == (*configured.values(),)


def test_without_a_cluster_in_the_configuration_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMQPSTORE_CONFIG", "")
    assert main(["cluster", "status"]) == 2
    assert "cluster_name" in capsys.readouterr().err
