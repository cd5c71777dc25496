"""The time for which a broker serves clients: for a single node until it is asked to stop; for a
leader of a group only as long as it leads, and together with its followers.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from amqpstore_server.config.config import Config
from amqpstore_server.listening.management_sockets import ManagementSockets
from amqpstore_server.process.stopping import DrainedConnection

if TYPE_CHECKING:
    from amqpstore_server.terms.replication_figures import ReplicationFigures


class ServingTerm(Protocol):
    """The time in which a broker serves: what waits for others than its own disk, and what ends the
    time.
    """

    on_blocked: Callable[[], None]
    """Called, in trio's thread, after `is_blocked` has become true."""

    @property
    def has_followers(self) -> bool:
        """Whether what is written may have to wait for others."""

    @property
    def is_stopping(self) -> bool:
        """Whether the process was asked to stop before clients were served."""

    @property
    def is_blocked(self) -> bool:
        """Whether publishers have to wait: too few replicas have what was published."""

    def figures(self) -> ReplicationFigures | None:
        """Return what metrics tell of the followers; None where nothing is to tell."""

    def may_send(self) -> bool:
        """Whether no other member can serve clients yet."""

    def when_defined(self, callback: Callable[[], None], /) -> None:
        """Call back once all definitions until now are committed; at once if they are."""

    def with_passed_on(
        self, plain: Sequence[socket.socket], tls: Sequence[socket.socket]
    ) -> tuple[Sequence[socket.socket], Sequence[socket.socket]]:
        """Add listeners for the clients that followers pass on to those without TLS and with it."""

    def passed_on_requests(self, sockets: ManagementSockets, /) -> ManagementSockets:
        """Return listeners for the requests that followers pass on, where there are any here."""

    def reloaded(self, config: Config) -> None:
        """Take over a new configuration; its live keys are in force from now on."""

    async def defined(self) -> None:
        """Return once all definitions until now are committed."""

    async def show_progress(self) -> None:
        """Show whoever decides who leads that the event loop turns, as long as it does."""

    async def watch(self, watch_committer: Callable[[], Awaitable[None]]) -> None:
        """Run until the disk fails. Raises: DurabilityError."""

    async def step_down(self, connections: Collection[DrainedConnection]) -> None:
        """Close all clients once this broker may serve no longer. Raises: what ends the time."""

    async def stop(self) -> None:
        """End the time because an operator wants it. Returns if all else is to be ended by whoever
        has called this.
        """


class SingleNode:
    """The time of a broker without replicas: see `ServingTerm`."""

    has_followers = False
    is_stopping = False
    is_blocked = False

    def __init__(self) -> None:
        self.on_blocked: Callable[[], None] = lambda: None

    def figures(self) -> None:
        return

    def may_send(self) -> bool:
        return True

    def when_defined(self, callback: Callable[[], None], /) -> None:
        callback()

    def with_passed_on(
        self, plain: Sequence[socket.socket], tls: Sequence[socket.socket]
    ) -> tuple[Sequence[socket.socket], Sequence[socket.socket]]:
        return plain, tls

    def passed_on_requests(self, _sockets: ManagementSockets, /) -> ManagementSockets:
        return ManagementSockets()

    def reloaded(self, config: Config) -> None:
        pass

    async def defined(self) -> None:
        pass

    async def show_progress(self) -> None:
        pass

    async def watch(self, watch_committer: Callable[[], Awaitable[None]]) -> None:
        await watch_committer()

    async def step_down(self, connections: Collection[DrainedConnection]) -> None:
        pass

    async def stop(self) -> None:
        pass
