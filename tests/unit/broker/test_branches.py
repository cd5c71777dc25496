"""Distributed transactions in one process: states, rights, timeouts, and what a branch leaves."""

from collections.abc import Callable

import pytest

from amqpstore_server.broker.channels.branches import XaStatus, Xid
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceExhaustedError,
)
from amqpstore_server.broker.work.limits import BrokerLimits
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.branches import (
    OPERATOR,
    OTHER,
    STRANGER,
    XID,
    BranchClient,
    with_source,
    work,
)
from tests.unit.broker.simulated import Client, labelled


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_source()


@pytest.fixture
def client(simulated: SimulatedBroker) -> BranchClient:
    return BranchClient(simulated)


def contents(simulated: SimulatedBroker) -> dict[str, str]:
    return {name: " ".join(simulated.ready(name)) for name in ("source", "target", "dead")}


BEFORE = {"source": "1 2 3 4", "target": "", "dead": ""}


LOCKED = {"source": "3 4", "target": "", "dead": ""}


AFTER = {"source": "3 4", "target": "a b", "dead": "2"}


def test_nothing_of_it_happens_before_the_decision(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    simulated.settle()
    assert contents(simulated) == {"source": "4", "target": "", "dead": ""}
    client.prepare()
    assert client.statuses == []
    simulated.settle()
    assert client.statuses == [XaStatus.OK]
    assert contents(simulated) == LOCKED
    assert client.recover() == [XID]


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_commit_is_all_of_it(simulated: SimulatedBroker, restarts: int) -> None:
    client = BranchClient(simulated)
    work(client)
    client.prepare()
    simulated.settle()
    for _ in range(restarts):
        simulated.restart()
        simulated.settle()
        assert contents(simulated) == LOCKED
    client = BranchClient(simulated)
    assert client.recover() == [XID]
    client.commit()
    assert client.statuses == []
    simulated.settle()
    assert client.statuses == [XaStatus.OK]
    for _ in range(2):
        assert contents(simulated) == AFTER
        assert BranchClient(simulated).recover() == []
        simulated.restart()


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_after_a_rollback_what_was_acked_is_redelivered(
    simulated: SimulatedBroker, restarts: int
) -> None:
    client = BranchClient(simulated)
    work(client)
    client.prepare()
    simulated.settle()
    for _ in range(restarts):
        simulated.restart()
    client = BranchClient(simulated)
    assert client.rollback() is XaStatus.OK
    simulated.settle()
    assert contents(simulated) == BEFORE
    client.consume("source", "tag")
    simulated.settle()
    assert client.redelivered == [True, True, True, False]
    assert client.recover() == []


def test_one_phase_is_a_commit_at_once(simulated: SimulatedBroker, client: BranchClient) -> None:
    work(client)
    client.commit(one_phase=True)
    simulated.settle()
    assert client.statuses == [XaStatus.OK]
    assert contents(simulated) == AFTER


def test_a_rollback_before_the_prepare(simulated: SimulatedBroker, client: BranchClient) -> None:
    work(client)
    assert client.rollback() is XaStatus.OK
    simulated.settle()
    assert contents(simulated) == BEFORE
    with pytest.raises(NotFoundError, match="XAER_NOTA"):
        client.commit()


def test_a_branch_without_work_is_over_with_prepare(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.start()
    client.end()
    client.prepare()
    assert client.statuses == [XaStatus.RD_ONLY]
    with pytest.raises(NotFoundError):
        client.commit()
    client.start()
    client.get("source")
    client.requeue("1")
    client.end()
    client.prepare()
    simulated.settle()
    assert client.statuses == [XaStatus.RD_ONLY] * 2
    assert contents(simulated) == BEFORE


def test_several_channels_work_in_one_branch(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    other = BranchClient(simulated)
    client.start()
    client.publish("", "target", "a")
    assert other.start(join=True) is XaStatus.OK
    other.publish("", "target", "b")
    client.end()
    with pytest.raises(PreconditionFailedError, match="XAER_PROTO"):
        client.prepare()
    other.end()
    other.prepare()
    other.commit()
    simulated.settle()
    assert simulated.ready("target") == ["a", "b"]


def test_what_is_done_while_it_is_suspended_is_not_of_it(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.start()
    client.publish("", "target", "in it")
    client.end(suspend=True)
    client.publish("", "target", "outside")
    client.start(OTHER)
    client.publish("", "target", "another's")
    client.end(OTHER)
    assert client.start(resume=True) is XaStatus.OK
    client.publish("", "target", "and this")
    client.end()
    client.rollback(OTHER)
    client.commit(one_phase=True)
    simulated.settle()
    assert simulated.ready("target") == ["outside", "in it", "and this"]


def test_a_suspended_branch_is_not_ended(client: BranchClient) -> None:
    client.start()
    client.end(suspend=True)
    for decide in (client.prepare, client.commit, client.rollback):
        with pytest.raises(PreconditionFailedError, match="not ended"):
            decide()
    client.end()
    assert client.rollback() is XaStatus.OK


def test_a_branch_that_failed_can_only_be_rolled_back(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.start()
    client.get("source")
    client.ack("1")
    assert client.end(fail=True) is XaStatus.RB_ROLLBACK
    simulated.settle()
    assert contents(simulated) == BEFORE
    assert client.start(join=True) is XaStatus.RB_ROLLBACK
    client.prepare()
    assert client.statuses == [XaStatus.RB_ROLLBACK]
    with pytest.raises(NotFoundError):
        client.prepare()


@pytest.mark.parametrize("ended", [False, True])
def test_a_channel_that_closes_rolls_its_branches_back(
    simulated: SimulatedBroker, client: BranchClient, ended: bool
) -> None:
    other = BranchClient(simulated)
    client.start()
    client.get("source")
    client.ack("1")
    other.start(join=True)
    other.get("source")
    other.ack("2")
    other.publish("", "target", "a")
    if ended:
        client.end()
    client.channel.close()
    simulated.settle()
    assert contents(simulated) == BEFORE
    assert other.end() is XaStatus.RB_ROLLBACK
    other.commit(one_phase=True)
    assert other.statuses == [XaStatus.RB_ROLLBACK]
    simulated.settle()
    assert contents(simulated) == BEFORE


def test_a_channel_that_closes_takes_nothing_with_it_that_is_prepared(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    client.prepare()
    client.channel.close()
    simulated.settle()
    assert contents(simulated) == LOCKED
    other = BranchClient(simulated)
    other.commit()
    simulated.settle()
    assert contents(simulated) == AFTER


def test_a_branch_times_out_from_its_start(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.start()
    client.get("source")
    client.ack("1")
    simulated.pass_time(5000)
    client.set_timeout(60)
    assert client.timeout() == 60
    client.set_timeout(7)
    simulated.pass_time(1999)
    assert contents(simulated)["source"] == "2 3 4"
    simulated.pass_time(1)
    assert contents(simulated) == BEFORE
    client.publish("", "target", "too late")
    assert client.end() is XaStatus.RB_TIMEOUT
    assert client.rollback() is XaStatus.RB_TIMEOUT
    simulated.settle()
    assert contents(simulated) == BEFORE


def test_what_is_prepared_does_not_time_out(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    client.set_timeout(1)
    client.prepare()
    simulated.pass_time(10_000)
    assert client.recover() == [XID]
    with pytest.raises(PreconditionFailedError):
        client.set_timeout(1)
    client.commit()
    simulated.settle()
    assert contents(simulated) == AFTER


def test_what_is_prepared_can_be_rolled_back_as_ever_once_its_time_is_over(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    client.set_timeout(1)
    client.prepare()
    simulated.pass_time(10_000)
    assert client.rollback() is XaStatus.OK
    simulated.settle()
    assert contents(simulated) == BEFORE


def test_what_is_prepared_is_not_among_the_failed_once_its_time_is_over(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    simulated.services.limits = BrokerLimits(max_failed_branches=1)
    work(client)
    client.set_timeout(1)
    client.prepare()
    simulated.pass_time(10_000)
    for number in range(3):
        failed = Xid(2, bytes([number]), b"")
        client.start(failed)
        client.end(failed, fail=True)
    assert client.recover() == [XID]


def test_a_timeout_of_zero_is_none(simulated: SimulatedBroker, client: BranchClient) -> None:
    client.start()
    client.set_timeout(1)
    client.set_timeout(0)
    simulated.pass_time(1 << 40)
    assert client.end() is XaStatus.OK


def test_others_branches_are_nobodys_but_an_operators(simulated: SimulatedBroker) -> None:
    client = BranchClient(simulated)
    stranger, operator = BranchClient(simulated, STRANGER), BranchClient(simulated, OPERATOR)
    work(client)
    attempts: list[Callable[[], object]] = [
        stranger.prepare,
        stranger.commit,
        stranger.rollback,
        stranger.forget,
        stranger.timeout,
        lambda: stranger.start(join=True),
    ]
    for attempt in attempts:
        with pytest.raises(AccessRefusedError, match=r"amq\.dtx"):
            attempt()
    client.prepare()
    simulated.settle()
    assert stranger.recover() == []
    assert operator.recover() == [XID]
    operator.commit()
    simulated.settle()
    assert contents(simulated) == AFTER


def test_a_branch_that_a_queue_refuses_is_rolled_back(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    simulated.queue("full", max_length=1, overflow="reject-publish")
    client.start()
    client.get("source")
    client.ack("1")
    client.publish("", "full", "a")
    client.publish("", "full", "b")
    client.end()
    client.prepare()
    assert client.statuses == [XaStatus.RB_ROLLBACK]
    simulated.settle()
    assert contents(simulated) == BEFORE
    Client(simulated).publish("", "full", "room")
    simulated.settle()
    assert simulated.ready("full") == ["room"]


def test_a_full_disk_leaves_a_branch_as_it_was(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    simulated.fill_disk()
    with pytest.raises(ResourceExhaustedError):
        client.prepare()
    simulated.free_disk()
    client.prepare()
    simulated.settle()
    simulated.fill_disk()
    with pytest.raises(ResourceExhaustedError):
        client.commit()
    assert client.recover() == [XID]
    simulated.free_disk()
    client.commit()
    simulated.settle()
    assert contents(simulated) == AFTER


def test_what_comes_back_comes_before_the_prepare(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.start()
    nowhere = labelled("", "nowhere", "a", delivery_mode=2)
    client.channel.publish(*nowhere, Flags(mandatory=True))
    client.end()
    assert client.told == []
    client.prepare()
    assert client.told == ["returned a NO_ROUTE"]


def test_a_queue_that_was_deleted_gets_nothing_and_the_rest_is_committed(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    client.prepare()
    simulated.settle()
    simulated.vhost.delete_queue(simulated.vhost.queue("source"))
    simulated.vhost.delete_queue(simulated.vhost.queue("dead"))
    simulated.queue("dead")
    simulated.restart()
    client = BranchClient(simulated)
    client.commit()
    simulated.settle()
    assert (simulated.ready("target"), simulated.ready("dead")) == (["a", "b"], [])


def test_ttls_delays_and_priorities_are_those_of_the_commit(simulated: SimulatedBroker) -> None:
    simulated.queue("short", message_ttl=1000)
    simulated.queue("urgent", max_priority=3)
    simulated.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    simulated.bind("later", "target")
    client = BranchClient(simulated)
    client.start()
    client.publish("", "short", "s")
    client.publish("", "urgent", "low", priority=1)
    client.publish("", "urgent", "high", priority=3)
    client.publish("later", "", "d", headers={"x-delay": 5000})
    client.end()
    client.prepare()
    simulated.settle()
    simulated.pass_time(10 * 3_600_000)
    simulated.restart()
    BranchClient(simulated).commit()
    simulated.settle()
    assert simulated.ready("short") == ["s"]
    assert simulated.ready("urgent") == ["high", "low"]
    assert simulated.ready("target") == []
    simulated.pass_time(5000)
    assert simulated.ready("short") == []
    assert simulated.ready("target") == ["d"]


def test_a_length_in_bytes_counts_what_is_rolled_back(simulated: SimulatedBroker) -> None:
    simulated.queue("bytes", max_length_bytes=3)
    client = BranchClient(simulated)
    client.publish("", "bytes", "1", "2")
    simulated.settle()
    client.start()
    client.get("bytes")
    client.ack("1")
    client.end()
    client.prepare()
    simulated.settle()
    simulated.restart()
    client = BranchClient(simulated)
    client.publish("", "bytes", "3", "4")
    client.rollback()
    simulated.settle()
    assert simulated.ready("bytes") == ["2", "3", "4"]


def test_those_who_wait_get_what_is_rolled_back_and_committed(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    work(client)
    client.prepare()
    simulated.settle()
    simulated.restart()
    waiting = Client(simulated)
    waiting.consume("source", "tag")
    waiting.consume("target", "target")
    simulated.settle()
    BranchClient(simulated).commit()
    simulated.settle()
    assert waiting.bodies("target") == ["a", "b"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_who_waits_gets_what_is_rolled_back(
    simulated: SimulatedBroker, client: BranchClient, restarts: int
) -> None:
    work(client)
    client.get("source")
    client.ack("4")
    client.prepare()
    simulated.settle()
    for _ in range(restarts):
        simulated.restart()
    waiting = Client(simulated)
    waiting.consume("source", "tag")
    simulated.settle()
    seen = waiting.bodies("tag")
    assert BranchClient(simulated).rollback() is XaStatus.OK
    simulated.settle()
    assert sorted([*seen, "1", "2"]) == sorted(waiting.bodies("tag"))
    assert waiting.redelivered[-2:] == [True, True]


def test_failed_branches_are_remembered_up_to_a_number(simulated: SimulatedBroker) -> None:
    simulated.services.limits = BrokerLimits(max_failed_branches=3)
    client = BranchClient(simulated)
    xids = [Xid(1, bytes([number]), b"") for number in range(1, 6)]
    for xid in xids:
        client.start(xid)
        client.end(xid, fail=True)
    for xid in xids[:2]:
        with pytest.raises(NotFoundError):
            client.rollback(xid)
    assert [client.rollback(xid) for xid in xids[2:]] == [XaStatus.RB_ROLLBACK] * 3
