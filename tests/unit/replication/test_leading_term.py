"""A leader shows that its event loop turns, from the moment at which it is to open its store."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from amqpstore import DeposedError, Options
from amqpstore_server.app import App
from amqpstore_server.cluster.timing import Health, Timing
from amqpstore_server.config.config import Config
from amqpstore_server.listening.listening import listen
from amqpstore_server.replication import leading_term
from amqpstore_server.replication.leading_term import LeadingTerm
from amqpstore_server.replication.orders import Orders
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles

TIMING = Timing()


class StandIn:
    """A stand-in for the controller, with what a leadership asks of it."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.turned_at: float | None = None
        self.opening_since: float | None = time.monotonic()
        self.serves_until = float("inf")
        self.is_disk_low = False
        self.member = SimpleNamespace(leader=None)
        self.proxied_listeners = SimpleNamespace(open=lambda _scheme: None)

    def stop(self) -> None:
        pass


def leadership(controller: Any) -> LeadingTerm:
    companion: Any = SimpleNamespace(
        when_defined=lambda callback: callback(), call_settled=lambda: None
    )
    store: Any = SimpleNamespace(directory="/data", space=SimpleNamespace(is_low=True))
    return LeadingTerm(controller, companion, store, lambda _config: None)


def test_an_app_that_leads_shows_that_its_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real leadership is in the real app: nothing else would notice a loop that hangs."""
    controller = StandIn()
    # No clients come from followers here.
    monkeypatch.setattr(LeadingTerm, "with_passed_on", lambda _term, plain, tls: (plain, tls))

    async def lead() -> None:
        with stores.open_store("/data", MemoryFiles(), Options(reserve_bytes=0)) as store:
            app = App(Config(data="/data"), store, None, term=leadership(controller))
            send, signals = trio.open_memory_channel[int](1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app.run, await listen([("127.0.0.1", 0)]), signals)
                while controller.turned_at is None:
                    await trio.sleep(0.01)
                assert controller.opening_since is None
                assert controller.is_disk_low
                before = controller.turned_at
                while controller.turned_at == before:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            send.close()

    trio.run(lead)
    # There is no loop any longer that could hang.
    assert controller.turned_at is None


def test_who_hangs_while_it_opens_its_store_is_not_fit_to_lead() -> None:
    opening = Health(opening_since=10.0)
    assert opening.is_fit(10.0 + TIMING.opening_s, TIMING)
    assert not opening.is_fit(10.1 + TIMING.opening_s, TIMING)


@pytest.mark.trio
async def test_clients_of_a_deposed_leader_have_a_limited_time_to_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    controller = StandIn()
    controller.orders.depose("another member leads")
    closed: list[float] = []
    client: Any = SimpleNamespace(close=closed.append)
    with pytest.raises(DeposedError):
        await leadership(controller).step_down([client])
    assert closed == [0.0]
    assert trio.current_time() == pytest.approx(leading_term._STEP_DOWN_S, abs=0.1)


@pytest.mark.trio
async def test_a_leadership_that_is_blocked_says_so_at_once() -> None:
    controller = StandIn()
    term = leadership(controller)
    blocked = trio.Event()
    term.on_blocked = blocked.set
    controller.orders.block(is_blocked=False)
    await trio.testing.wait_all_tasks_blocked()
    assert not blocked.is_set()
    controller.orders.block(is_blocked=True)
    with trio.fail_after(60):
        await blocked.wait()
