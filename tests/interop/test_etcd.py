"""The client against one real etcd: lost and late answers, restarts, backups, TLS and logins."""

import shutil
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import trustme

from amqpstore_server.cluster.keys import Compare, EtcdTransaction, Put
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import (
    CompactedError,
    EtcdUnavailableError,
    NotFitError,
    OtherEtcdError,
)
from amqpstore_server.etcd.settings import EtcdSettings
from tests.etcd_process import PATIENT_S, EtcdCluster
from tests.interop.relay import Relay
from tests.secured_etcd import Authority, SecuredEtcd
from tests.waiting import wait_until

LEASE_S = 1.0
numbers: Iterator[int] = count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdCluster]:
    with EtcdCluster(str(tmp_path_factory.mktemp("etcd"))) as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    return f"/amqpstore/test/{next(numbers)}/"


@pytest.fixture
def client(etcd: EtcdCluster, prefix: str) -> Generator[EtcdClient]:
    etcd.start()
    with patient(etcd.settings, prefix) as client:
        yield client


def patient(settings: EtcdSettings, prefix: str = "/amqpstore/c/g/") -> EtcdClient:
    return EtcdClient(settings, prefix, timeout_s=PATIENT_S)


def put(client: EtcdClient, request: str, key: str = "note") -> EtcdTransaction:
    """A transaction that replaces what is there now."""
    changed = client.read().changed(key)
    return EtcdTransaction((Compare(key, changed),), (Put(key, {"request": request}),), (), request)


def request_of(client: EtcdClient, key: str = "note") -> object:
    row = client.read().rows.get(key)
    return row.value["request"] if row else None


def address(relay: Relay) -> str:
    return f"http://127.0.0.1:{relay.port}"


# Answers that are lost, or late.


def test_an_answer_that_is_lost_does_not_say_that_nothing_happened(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    is_cut: list[bool] = []

    def lose(answer: bytes) -> bytes:
        return b"" if is_cut else answer

    with (
        Relay(etcd.members[0].url, lose) as relay,
        patient(EtcdSettings((address(relay), *etcd.urls)), prefix) as cut,
    ):
        transaction = put(cut, "r1")
        is_cut.append(True)
        attempted = cut.attempt(transaction)
        assert attempted.outcome == "unknown"
        assert address(relay) in attempted.reason
        # The next endpoint answers, and knows better.
        assert request_of(cut) == "r1"
        assert cut.attempt(transaction).outcome == "refused"


def test_a_late_transaction_fails_on_what_was_changed_meanwhile(
    etcd: EtcdCluster, client: EtcdClient
) -> None:
    """A client knows by this rule that a request is dead: a later request of its own has
    succeeded.
    """
    late = put(client, "late")
    assert client.attempt(put(client, "r2")).outcome == "done"
    assert client.attempt(late).outcome == "refused"
    assert request_of(client) == "r2"


def test_an_etcd_that_is_stopped_is_given_up_after_a_second(
    etcd: EtcdCluster, client: EtcdClient, prefix: str
) -> None:
    transaction = put(client, "r1")
    with EtcdClient(etcd.settings, prefix) as hasty:
        etcd.members[0].pause()
        try:
            begun = time.monotonic()
            attempted = hasty.attempt(transaction)
            took = time.monotonic() - begun
        finally:
            etcd.members[0].resume()
    assert (attempted.outcome, 0.9 < took < 10.0) == ("unknown", True)
    assert "no answer within 1 s" in attempted.reason
    # The late transaction may take effect now or later, also between the read and the write of
    # another request; either way it does not take effect twice.
    wait_until(lambda: client.attempt(put(client, "r2")).outcome == "done")
    assert client.attempt(transaction).outcome == "refused"
    assert request_of(client) == "r2"


# Leases.


def test_a_lease_ends_while_its_owner_is_not_fit(client: EtcdClient) -> None:
    lease = client.grant(LEASE_S)
    assert client.attempt(EtcdTransaction((), (Put("note", {}, lease),))).outcome == "done"
    with pytest.raises(NotFitError):
        client.keep_alive(lease, lambda: False)
    wait_until(lambda: "note" not in client.read().rows)
    assert not client.keep_alive(lease).is_alive
    late = EtcdTransaction((), (Put("note", {}, lease),))
    assert client.attempt(late).outcome == "refused"


# Watches.


def test_a_watch_tells_each_change_from_its_revision_on(client: EtcdClient, prefix: str) -> None:
    before = client.read().revision
    done = [client.attempt(put(client, f"r{number}")).revision for number in range(3)]
    watch = client.watch(before + 2)
    changes = watch.changes()
    assert next(changes) >= done[1]
    done.append(client.attempt(put(client, "r3")).revision)
    while next(changes) < done[-1]:
        pass
    watch.close()


def test_a_watch_of_what_was_compacted_says_so(etcd: EtcdCluster, client: EtcdClient) -> None:
    before = client.read().revision
    last = [client.attempt(put(client, f"r{number}")).revision for number in range(3)][-1]
    etcd.post("/v3/kv/compaction", {"revision": str(last)})
    watch = client.watch(before + 1)
    with pytest.raises(CompactedError, match=f"compacted to {last}"):
        list(watch.changes())
    watch.close()


# Ends and starts.


def test_nothing_answers_and_then_it_does_again(etcd: EtcdCluster, client: EtcdClient) -> None:
    assert client.attempt(put(client, "r1")).outcome == "done"
    lease = client.grant(30.0)
    etcd.kill()
    with pytest.raises(EtcdUnavailableError, match="Connection refused"):
        client.read()
    with pytest.raises(EtcdUnavailableError):
        client.keep_alive(lease)
    with pytest.raises(EtcdUnavailableError):
        client.watch(1)
    unknown = EtcdTransaction((), (Put("note", {"request": "r2"}),), (), "r2")
    assert client.attempt(unknown).outcome == "unknown"
    etcd.start()
    assert request_of(client) == "r1"
    assert client.keep_alive(lease).is_alive


def test_an_etcd_that_was_restored_from_a_backup_is_not_used(tmp_path: Path) -> None:
    """The restored etcd has the same cluster id: only its revisions show the restore."""
    with EtcdCluster(str(tmp_path)) as etcd, patient(etcd.settings) as client:
        member = etcd.members[0]
        assert client.attempt(put(client, "r1")).outcome == "done"
        etcd.kill()
        shutil.copytree(member.directory, tmp_path / "backup")
        etcd.start()
        assert client.attempt(put(client, "r2")).outcome == "done"
        etcd.kill()
        shutil.rmtree(member.directory)
        shutil.move(tmp_path / "backup", member.directory)
        etcd.start()
        with pytest.raises(EtcdUnavailableError, match="was it restored from a backup"):
            client.read()
        with pytest.raises(OtherEtcdError, match="was it restored from a backup"):
            client.read()
        with patient(etcd.settings) as another:
            assert request_of(another) == "r1"
            assert another.identity.cluster == client.identity.cluster


# TLS and logins.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Generator[SecuredEtcd]:
    with SecuredEtcd(str(tmp_path_factory.mktemp("secured")), authority) as etcd:
        yield etcd


def test_certificates_and_a_login(secured: SecuredEtcd, authority: Authority) -> None:
    with patient(secured.settings) as client:
        assert client.attempt(put(client, "r1")).outcome == "done"
        lease = client.grant(LEASE_S)
        assert client.keep_alive(lease).is_alive
        watch = client.watch(client.read().revision + 1)
        assert client.attempt(put(client, "r2")).outcome == "done"
        assert next(watch.changes()) == client.read().revision
        watch.stop()
        assert list(watch.changes()) == []
        watch.close()
        # After a restart etcd knows none of its tokens: what came with one was not carried out,
        # and is sent again with another.
        transaction = put(client, "r3")
        secured.kill()
        secured.start()
        assert client.attempt(transaction).outcome == "done"
        client.revoke(lease)
        client.watch(1).close()


def test_what_a_user_may_not_do_is_said(secured: SecuredEtcd, authority: Authority) -> None:
    with patient(secured.settings, "/elsewhere/") as client:
        with pytest.raises(EtcdUnavailableError, match="permission denied"):
            client.read()
        forbidden = EtcdTransaction((), (Put("note", {}),))
        assert "permission denied" in client.attempt(forbidden).reason


def test_a_wrong_password_is_named_and_not_shown(
    secured: SecuredEtcd, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(secured.settings, password="wrong-secret")
    with (
        patient(settings) as client,
        pytest.raises(EtcdUnavailableError, match="invalid user ID or password") as failed,
    ):
        client.read()
    shown = f"{settings} {failed.value} {[vars(one) for one in caplog.records]}"
    assert "wrong-secret" not in shown


def test_who_has_no_login_is_told(secured: SecuredEtcd, authority: Authority) -> None:
    settings = replace(secured.settings, user="", password="")
    with (
        patient(settings) as client,
        pytest.raises(EtcdUnavailableError, match="permission denied"),
    ):
        client.read()


def test_a_server_that_another_ca_has_certified_is_not_trusted(
    secured: SecuredEtcd, authority: Authority, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    settings = replace(secured.settings, ca=str(tmp_path / "other.pem"))
    with patient(settings) as client:
        with pytest.raises(EtcdUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            client.read()
        # The file is read again: a CA that was exchanged needs no restart.
        shutil.copy(authority.path("ca.pem"), tmp_path / "other.pem")
        assert client.read().revision > 0


def test_a_file_that_is_not_there_is_named(secured: SecuredEtcd, authority: Authority) -> None:
    settings = replace(secured.settings, certificate="/nowhere/client.pem")
    with (
        patient(settings) as client,
        pytest.raises(EtcdUnavailableError, match=r"No such file.*/nowhere/client"),
    ):
        client.read()


def test_a_user_where_etcd_has_none_is_let_in(etcd: EtcdCluster) -> None:
    """An operator can therefore configure a login first, and then switch it on in etcd."""
    etcd.start()
    settings = EtcdSettings(etcd.urls, user="amqpstore", password="right")
    with patient(settings) as client:
        assert client.read().revision > 0
