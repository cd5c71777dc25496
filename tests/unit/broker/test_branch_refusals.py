"""Steps of a distributed transaction out of their order: each is refused by its name."""

from collections.abc import Callable

import pytest

from amqpstore_server.broker.channels.branches import Xid
from amqpstore_server.broker.errors import BrokerError, NotFoundError, PreconditionFailedError
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.branches import OTHER, BranchClient, with_source, work
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_source()


@pytest.fixture
def client(simulated: SimulatedBroker) -> BranchClient:
    return BranchClient(simulated)


Step = Callable[[BranchClient], object]


def after(*steps: Step) -> Step:
    """One step after the other."""

    def all_of_them(client: BranchClient) -> None:
        for step in steps:
            step(client)

    return all_of_them


WRONG: dict[str, tuple[Step, type[BrokerError], str]] = {
    "join and resume": (
        lambda client: client.start(join=True, resume=True),
        PreconditionFailedError,
        "XAER_INVAL",
    ),
    "join of nothing": (lambda client: client.start(join=True), NotFoundError, "XAER_NOTA"),
    "resume of nothing": (lambda client: client.start(resume=True), NotFoundError, "XAER_NOTA"),
    "end of nothing": (lambda client: client.end(), NotFoundError, "XAER_NOTA"),
    "prepare of nothing": (lambda client: client.prepare(), NotFoundError, "XAER_NOTA"),
    "forget of nothing": (lambda client: client.forget(), NotFoundError, "XAER_NOTA"),
    "two at a time": (
        after(lambda client: client.start(), lambda client: client.start(OTHER)),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "twice": (
        after(
            lambda client: client.start(),
            lambda client: client.end(),
            lambda client: client.start(),
        ),
        PreconditionFailedError,
        "XAER_DUPID",
    ),
    "ended twice": (
        after(
            lambda client: client.start(), lambda client: client.end(), lambda client: client.end()
        ),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "fail and suspend": (
        after(lambda client: client.start(), lambda client: client.end(fail=True, suspend=True)),
        PreconditionFailedError,
        "XAER_INVAL",
    ),
    "resume of what is ended": (
        after(
            lambda client: client.start(),
            lambda client: client.end(),
            lambda client: client.start(resume=True),
        ),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "commit in two phases without the first": (
        after(work, lambda client: client.commit()),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "one phase after the first of two": (
        after(work, lambda client: client.prepare(), lambda client: client.commit(one_phase=True)),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "prepared twice": (
        after(work, lambda client: client.prepare(), lambda client: client.prepare()),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "join of what is prepared": (
        after(work, lambda client: client.prepare(), lambda client: client.start(join=True)),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "forget of what was not decided": (
        after(work, lambda client: client.prepare(), lambda client: client.forget()),
        PreconditionFailedError,
        "XAER_PROTO",
    ),
    "no global id": (
        lambda client: client.start(Xid(1, b"", b"")),
        PreconditionFailedError,
        "XAER_INVAL",
    ),
    "a global id of 65 bytes": (
        lambda client: client.start(Xid(1, bytes(65), b"")),
        PreconditionFailedError,
        "XAER_INVAL",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_step_is_refused_by_its_name(client: BranchClient, what: str) -> None:
    step, error, name = WRONG[what]
    with pytest.raises(error, match=name):
        step(client)


def test_a_channel_has_one_mode(simulated: SimulatedBroker, client: BranchClient) -> None:
    with pytest.raises(PreconditionFailedError, match="from dtx to tx"):
        client.channel.select_transactions()
    with pytest.raises(PreconditionFailedError, match="from dtx to confirm"):
        client.channel.select_confirms()
    client.start()
    with pytest.raises(PreconditionFailedError, match="not transactional"):
        client.channel.commit()
    plain = Client(simulated)
    with pytest.raises(PreconditionFailedError, match=r"dtx\.select"):
        plain.channel.check_branches()
    plain.channel.select_confirms()
    with pytest.raises(PreconditionFailedError, match="from confirm to dtx"):
        plain.channel.select_branches()
