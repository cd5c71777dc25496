"""A term that this member leads, as the broker sees it: see `ServingTerm`."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

import trio

from amqpstore import DeposedError, Store
from amqpstore_server.config.config import Config
from amqpstore_server.listening.management_sockets import ManagementSockets
from amqpstore_server.process.stopping import DrainedConnection
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.controller import Controller
from amqpstore_server.terms.replication_figures import ReplicationFigures

_TURN_S = 0.1
_LOOK_S = 0.02
_STEP_DOWN_S = 0.5
"""How long clients may take to answer connection.close."""


def soon(act: Callable[[], None]) -> Callable[[], None]:
    """Return what has something done in this loop, called in any thread; once the loop has ended,
    nothing is done. Call it inside trio.
    """
    token = trio.lowlevel.current_trio_token()

    def ask() -> None:
        # The state machine's threads outlive the loop of a term.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(act)

    return ask


class LeadingTerm:
    """One leadership of this process. Create it inside trio.

    Args: reloaded, is given each new configuration.
    """

    has_followers = True

    def __init__(
        self,
        controller: Controller,
        companion: LeaderCompanion,
        store: Store,
        reloaded: Callable[[Config], None],
    ) -> None:
        self.reloaded = reloaded
        self.when_defined = companion.when_defined
        self._controller = controller
        self._store = store
        self._is_ending = False
        """Whether all that is sent is to close connections."""
        self._changed = trio.Event()
        self.on_blocked: Callable[[], None] = lambda: None
        companion.on_settled = soon(companion.call_settled)
        controller.orders.on_change = soon(self._wake)

    def _wake(self) -> None:
        if self.is_blocked:
            self.on_blocked()
        # A new event takes its place, as `set` is for good; whoever waits has taken the old one.
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the process is to end with it."""
        return self._controller.orders.is_stopping

    @property
    def is_blocked(self) -> bool:
        """Whether publishers have to wait: too few replicas have what was published."""
        return self._controller.orders.is_blocked

    def figures(self) -> ReplicationFigures | None:
        """Return what metrics tell of the followers; None once this member leads no longer."""
        controller = self._controller
        leader, copies = controller.member.leader, controller.copies
        if leader is None:
            return None
        left = list(copies.left_bytes.values())
        return ReplicationFigures(
            leader.term,
            len(leader.members),
            len(leader.waits_for - {*leader.members}),
            len(left),
            copies.sent_bytes,
            sum(left),
            leader.min_in_sync,
            controller.member.waiting,
            controller.member.is_etcd_refused,
            {reason.name.lower(): count for reason, count in leader.drop_counts.items()},
            controller.refused_frames,
            leader.in_reach,
            self.is_blocked,
        )

    def may_send(self) -> bool:
        """Whether no other member can lead yet. A process that was paused finds out here."""
        # A process that was paused (a migrated machine, SIGSTOP) wakes up with deliveries in its
        # buffers while another member may lead: sending them would deliver messages twice.
        # connection.close may always go out.
        return self._is_ending or time.monotonic() < self._controller.serves_until

    def with_passed_on(
        self, plain: Sequence[socket.socket], tls: Sequence[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Add listeners for the clients that followers pass on to those without TLS and with it,
        where there are any.
        """
        listeners = self._controller.proxied_listeners
        with_tls = [*tls, listeners.open("amqps")] if tls else []
        return [*plain, listeners.open("amqp")], with_tls

    def passed_on_requests(self, sockets: ManagementSockets, /) -> ManagementSockets:
        """Return listeners for the requests that followers pass on, where there are any here."""
        listeners = self._controller.proxied_listeners
        return ManagementSockets(
            [listeners.open("http")] if sockets.plain else [],
            [listeners.open("https")] if sockets.tls else [],
        )

    async def defined(self) -> None:
        """Return once all definitions until now are committed."""
        committed = trio.Event()
        self.when_defined(committed.set)
        await committed.wait()

    async def show_progress(self) -> None:
        """Show that the event loop turns, and whether the disk has room; else another member is to
        lead. Never returns.
        """
        controller = self._controller
        try:
            while True:
                # Both are updated from inside the loop: a loop that hangs updates neither, and the
                # ticks of another thread see that.
                controller.turned_at = time.monotonic()
                controller.opening_since = None
                controller.is_disk_low = self._store.space.is_low
                await trio.sleep(_TURN_S)
        finally:
            controller.turned_at = None
            controller.is_disk_low = False

    async def watch(self, watch_committer: Callable[[], Awaitable[None]]) -> None:
        """Run until the disk fails. Raises: DurabilityError."""
        try:
            await watch_committer()
        except DeposedError:
            # Clients are told before everything ends: see `step_down`.
            # Raised here, the nursery would cancel the connections before they have been sent
            # connection.close with a reason.
            await trio.sleep_forever()

    async def step_down(self, connections: Collection[DrainedConnection]) -> None:
        """Close all clients once this member leads no longer.

        Raises: DeposedError; what ends the process.
        """
        deposed = await self._deposed()
        # Before the first close, or `may_send` would hold back the very frame that tells clients
        # to go elsewhere.
        self._is_ending = True
        now = trio.current_time()
        for connection in list(connections):
            connection.close(now)
        with trio.move_on_after(_STEP_DOWN_S):
            while connections:
                await trio.sleep(_LOOK_S)
        raise deposed

    async def _deposed(self) -> DeposedError:
        orders = self._controller.orders
        while True:
            # The event is taken before the orders are looked at: what changes in between sets it.
            changed = self._changed
            if orders.failure is not None:
                raise orders.failure
            if orders.deposed:
                return DeposedError(self._store.directory, orders.deposed)
            await changed.wait()

    async def stop(self) -> None:
        """Let another member lead: `step_down` ends this term once it can. Never returns."""
        # The order to stop is noted first: the order to step down may follow before `stop`
        # returns, and the process would go on as a follower.
        self._controller.orders.is_stopping = True
        self._controller.stop()
        await trio.sleep_forever()
