"""Branches of very many messages: each decision takes several turns, and changes all in one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import amqpstore.prepared
import amqpstore.queues.acks
import amqpstore_server.broker.work.steps
from amqpstore_server.broker.channels import local_transaction
from amqpstore_server.broker.channels.branches import Steps, XaStatus
from amqpstore_server.broker.errors import NotFoundError, PreconditionFailedError
from amqpstore_server.broker.transactions import prepared_work
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.unit.broker.branches import XID, BranchClient
from tests.unit.broker.simulated import Client

BODIES = [f"{number:02}" for number in range(60)]
ACKED = BODIES[:40]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedBroker:
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 4)
    monkeypatch.setattr(local_transaction, "_MAX_SETTLED", 10)
    monkeypatch.setattr(amqpstore.queues.acks, "_MERGED_AT_ONCE", 10)
    monkeypatch.setattr(amqpstore.prepared, "_READ_AT_ONCE", 10)
    monkeypatch.setattr(prepared_work, "_MAX_MESSAGES", 10)
    monkeypatch.setattr(prepared_work, "_MAX_PUT_BACK", 10)
    monkeypatch.setattr(amqpstore_server.broker.work.steps, "_SORTED", 1)
    simulated = SimulatedBroker()
    for queue in ("q", "r", "s"):
        simulated.queue(queue)
    return simulated


@pytest.fixture
def client(simulated: SimulatedBroker) -> BranchClient:
    """A client that has acked the first messages of queue `q` in a branch, the last first, and
    published to `r` and `s`.
    """
    publisher = Client(simulated)
    for body in BODIES:
        publisher.publish("", "q", body, message_id=body)
    simulated.settle()
    client = BranchClient(simulated)
    client.start()
    while client.get("q"):
        pass
    for body in reversed(ACKED):
        client.ack(body)
    for number, body in enumerate(BODIES):
        client.publish("", "rs"[number % 2], body, message_id=body, priority=number // 2 % 2)
    client.end()
    return client


def taken(steps: Steps, count: int) -> Steps:
    """Take some steps, and return the others."""
    for _ in range(count):
        next(steps)
    return steps


def expecting(simulated: SimulatedBroker) -> list[str]:
    return [name for name, queue in simulated.vhost.queues.items() if queue.is_expecting]


def test_a_branch_is_prepared_in_steps_and_nothing_of_it_is_seen(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    other = Client(simulated)
    count = 0
    for count, _ in enumerate(client.preparing(), 1):
        other.publish("", "r", f"other {count}")
        is_prepared = client.recover() == [XID]
        simulated.settle()
        assert client.statuses == ([XaStatus.OK] if is_prepared else [])
        assert len(simulated.ready("r")) == count
        assert simulated.ready("s") == []
    assert count > 15
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == BODIES[40:]
    simulated.crash()
    assert simulated.ready("q") == BODIES[40:]
    assert BranchClient(simulated).recover() == [XID]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_commit_is_seen_all_at_once(
    simulated: SimulatedBroker, client: BranchClient, restarts: int
) -> None:
    client.prepare()
    simulated.settle()
    for _ in range(restarts):
        simulated.restart()
    client = BranchClient(simulated)
    other = Client(simulated)
    count = 0
    for count, _ in enumerate(client.committing(), 1):
        other.publish("", "r", f"other {count}")
        simulated.settle()
        assert (len(simulated.ready("r")), simulated.ready("s")) == (count, [])
        assert client.recover() == [XID]
        assert client.statuses == []
    assert count > 5
    simulated.settle()
    assert client.statuses == [XaStatus.OK]
    assert simulated.ready("r")[count:] == BODIES[::2]
    assert simulated.ready("s") == BODIES[1::2]
    assert expecting(simulated) == []


def test_one_phase_takes_steps_too(simulated: SimulatedBroker, client: BranchClient) -> None:
    for _ in client.committing(one_phase=True):
        assert client.statuses == []
    simulated.settle()
    assert client.statuses == [XaStatus.OK]
    assert (simulated.ready("r"), simulated.ready("s")) == (BODIES[::2], BODIES[1::2])
    client.channel.close()
    simulated.settle()
    assert simulated.ready("q") == BODIES[40:]


def test_what_is_rolled_back_is_delivered_in_order(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.prepare()
    simulated.settle()
    other = Client(simulated)
    other.consume("q", "t")
    counts = []
    for _ in client.rolling_back():
        simulated.settle()
        counts.append(len(other.bodies("t")))
    assert client.statuses == [XaStatus.OK, XaStatus.OK]
    simulated.settle()
    assert counts == [0, 0, 0, 10, 20, 30]
    assert other.bodies("t") == ACKED
    assert all(other.redelivered)


def test_a_rollback_goes_on_when_its_channel_goes(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.prepare()
    simulated.settle()
    other = BranchClient(simulated)
    steps = taken(other.rolling_back(), 2)
    other.channel.close()
    steps.close()
    simulated.settle()
    assert simulated.ready("q") == ACKED
    simulated.crash()
    assert simulated.ready("q") == BODIES


Decision = Callable[[BranchClient], Steps]

DECISIONS: dict[str, tuple[bool, Decision]] = {
    "prepare": (False, lambda client: client.preparing()),
    "one phase": (False, lambda client: client.committing(one_phase=True)),
    "commit": (True, lambda client: client.committing()),
}
"""Each with whether the branch is prepared before."""


@pytest.mark.parametrize("decision", DECISIONS)
def test_another_command_in_between_is_refused(
    simulated: SimulatedBroker, client: BranchClient, decision: str
) -> None:
    is_prepared, decide = DECISIONS[decision]
    if is_prepared:
        client.prepare()
    other = BranchClient(simulated)
    steps = taken(decide(client), 3)
    for attempt in (
        other.prepare,
        other.commit,
        other.rollback,
        lambda: other.commit(one_phase=True),
        lambda: other.start(join=True),
        lambda: other.set_timeout(5),
    ):
        with pytest.raises(PreconditionFailedError, match=r"XAER_PROTO: branch \S+ is being"):
            attempt()
    with pytest.raises(PreconditionFailedError, match="XAER_DUPID"):
        other.start()
    for _ in steps:
        pass
    simulated.settle()
    assert client.statuses[-1] is XaStatus.OK


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("closed_first", [False, True])
@pytest.mark.parametrize("steps_taken", [1, 4])
def test_a_channel_that_goes_before_the_decision_has_decided_nothing(
    simulated: SimulatedBroker,
    client: BranchClient,
    decision: str,
    closed_first: bool,
    steps_taken: int,
) -> None:
    is_prepared, decide = DECISIONS[decision]
    if is_prepared:
        client.prepare()
        simulated.settle()
    steps = taken(decide(client), steps_taken)
    if closed_first:
        client.channel.close()
    steps.close()
    client.channel.close()
    simulated.settle()
    assert expecting(simulated) == []
    other = BranchClient(simulated)
    if is_prepared:
        assert other.recover() == [XID]
        other.commit()
        simulated.settle()
        assert simulated.ready("q") == BODIES[40:]
        assert (simulated.ready("r"), simulated.ready("s")) == (BODIES[::2], BODIES[1::2])
    else:
        assert other.rollback() is XaStatus.RB_ROLLBACK
        assert (simulated.ready("q"), simulated.ready("r")) == (BODIES, [])


def test_what_is_decided_stays_so_when_its_channel_goes(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    steps = client.preparing()
    while not client.recover():
        next(steps)
    client.channel.close()
    steps.close()
    simulated.settle()
    assert simulated.vhost.queue("q").unacked_count == 0
    assert client.statuses == [XaStatus.OK]
    BranchClient(simulated).commit()
    simulated.settle()
    assert simulated.ready("q") == BODIES[40:]
    assert (simulated.ready("r"), simulated.ready("s")) == (BODIES[::2], BODIES[1::2])


def test_the_work_of_each_channel_is_finished_when_they_go(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    clients = [client]
    for _ in range(2):
        other = BranchClient(simulated)
        for body in BODIES:
            other.publish("", "s", body, message_id=body)
        simulated.settle()
        other.start(join=True)
        while other.get("s"):
            pass
        ack_until(other.channel, 0)
        other.end()
        clients.append(other)
    steps = client.preparing()
    while not client.recover():
        next(steps)
    steps.close()
    for closing_client in clients:
        closing_client.channel.close()
    simulated.settle()
    assert simulated.vhost.queue("q").unacked_count == 0
    assert simulated.vhost.queue("s").unacked_count == 0


def test_nothing_is_expected_of_a_commit_whose_channel_goes(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.prepare()
    simulated.settle()
    steps = client.committing()
    while not expecting(simulated):
        next(steps)
    steps.close()
    assert expecting(simulated) == []
    assert client.recover() == [XID]


@pytest.mark.parametrize("decision", ["prepare", "one phase"])
@pytest.mark.parametrize("why", [XaStatus.RB_ROLLBACK, XaStatus.RB_TIMEOUT])
def test_a_branch_that_fails_in_between_is_rolled_back(
    simulated: SimulatedBroker, client: BranchClient, decision: str, why: XaStatus
) -> None:
    client.set_timeout(5)
    other = BranchClient(simulated)
    steps = taken(DECISIONS[decision][1](other), 3)
    if why is XaStatus.RB_TIMEOUT:
        simulated.pass_time(5000)
    else:
        client.channel.close()
    for _ in steps:
        pass
    assert other.statuses == [why]
    with pytest.raises(NotFoundError):
        other.rollback()
    client.channel.close()
    simulated.settle()
    assert expecting(simulated) == []
    assert (simulated.ready("q"), simulated.ready("r")) == (BODIES, [])


@pytest.mark.parametrize("deleted", ["q", "r"])
@pytest.mark.parametrize("decision", [*DECISIONS, "rollback"])
def test_a_queue_may_be_deleted_in_between(
    simulated: SimulatedBroker, client: BranchClient, decision: str, deleted: str
) -> None:
    is_prepared, decide = DECISIONS.get(decision, (True, BranchClient.rolling_back))
    if is_prepared:
        client.prepare()
        simulated.settle()
    steps = taken(decide(client), 4)
    simulated.vhost.delete_queue(simulated.vhost.queue(deleted))
    for _ in steps:
        pass
    if decision == "prepare":
        client.commit()
    simulated.settle()
    assert client.statuses[-1] is XaStatus.OK
    assert simulated.ready("s") == ([] if decision == "rollback" else BODIES[1::2])
    client.channel.close()
    simulated.settle()
    if deleted == "r":
        assert simulated.ready("q") == (BODIES if decision == "rollback" else BODIES[40:])
    elif decision != "rollback":
        assert simulated.ready("r") == BODIES[::2]
    assert expecting(simulated) == []
    simulated.restart()
    assert BranchClient(simulated).recover() == []


def test_a_virtual_host_is_deleted_with_its_branches(
    simulated: SimulatedBroker, client: BranchClient
) -> None:
    client.prepare()
    simulated.settle()
    client.channel.close()
    simulated.broker.begin_deleting("/")
    for _ in simulated.broker.deleting_vhost("/"):
        simulated.work()
    simulated.settle()
    assert not simulated.store.prepared
    assert not simulated.store.queues
