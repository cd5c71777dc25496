"""The process of a member between following and leading."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from amqpstore import DeposedError, DurabilityError, Store
from amqpstore.options import Options
from amqpstore.replica import FollowerStore, Membership, create_follower
from amqpstore_server.config.config import Config
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.orders import Orders
from amqpstore_server.replication.serving import Doorways, MemberRuntime, _Next


async def _silent(*_: object) -> None:
    """Answer no request."""


class Deposed:
    """A leader that is deposed, as another may lead: nothing is sealed or defined any longer."""

    def seal(self, _layout: bytes, _content: bytes) -> None:
        return None

    def define(self, _number: int, _content: bytes) -> None:
        return None

    def synced(self, _term: int, _seq: int) -> None:
        pass


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemberRuntime:
    """A member without others, whose log is where its store ends."""
    made = MemberRuntime.__new__(MemberRuntime)
    made._directory = str(tmp_path / "data")
    create_follower(made._directory, uuid.uuid4(), Membership("0123456789abcdef", 1))
    with FollowerStore.open(made._directory) as store:
        store.adopt_term(1)
    made._options, made._config = Options(), Config()
    made._load_config = Config
    made._controller = SimpleNamespace(  # type: ignore[assignment]
        orders=Orders(),
        leader=None,
        connect_for_client=None,
        opened=lambda: None,
        follow=lambda: None,
    )
    monkeypatch.setattr(MemberRuntime, "_take_over", lambda *_: None)
    return made


def companion(runtime: MemberRuntime) -> LeaderCompanion:
    return LeaderCompanion(Deposed(), None, runtime._directory, 1)  # type: ignore[arg-type]


def test_a_signal_that_comes_with_an_election_still_ends_the_process(
    runtime: MemberRuntime,
) -> None:
    """The election has woken the task already that the signal cancels."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]

    async def both() -> None:
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGTERM)
        runtime._controller.orders.lead(companion(runtime))

    runtime._manager = SimpleNamespace(  # type: ignore[assignment]
        ready=lambda _: trio.lowlevel.spawn_system_task(both), watch=trio.sleep_forever
    )
    try:
        assert trio.run(runtime._follow, Doorways(Config(), _silent, passes_on=False)) is _Next.LEAD
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert runtime._controller.orders.is_stopping


def test_whoever_finds_the_store_of_a_deposed_leader_stopped_does_not_end_the_process(
    runtime: MemberRuntime,
) -> None:
    def serve(_config: Config, store: Store, _lead: Callable[[], Any]) -> None:
        with pytest.raises(DeposedError):
            store.create_queue("orders")
        store.create_queue("orders")

    assert not runtime._lead(companion(runtime), serve)


def test_a_store_that_stopped_for_another_reason_ends_the_process(runtime: MemberRuntime) -> None:
    def serve(_config: Config, store: Store, _lead: Callable[[], Any]) -> None:
        store._state.fail(OSError("broken"))
        store.create_queue("orders")

    with pytest.raises(DurabilityError, match="broken"):
        runtime._lead(companion(runtime), serve)
