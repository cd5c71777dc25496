"""Orders of the state machine to the thread that has the store of a leader."""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.replication.companion import LeaderCompanion


class Orders:
    """The orders of one process. `on_change` is called after each, in any thread."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.is_blocked = False
        """Whether publishers have to wait: too few replicas have what they have published."""
        self.companion: LeaderCompanion | None = None
        """With it the store is to be opened."""
        self.deposed = ""
        """The reason why the leadership of `companion` has ended; empty as long as it has not."""
        self.failure: BaseException | None = None
        """The reason why the process has to end."""
        self.is_stopping = False
        """Whether somebody has asked the process to stop."""

    def lead(self, companion: LeaderCompanion) -> None:
        """Open the store, and serve clients."""
        self.companion = companion
        self.on_change()

    def block(self, *, is_blocked: bool) -> None:
        """Block publishers, or let them go on."""
        self.is_blocked = is_blocked
        self.on_change()

    def depose(self, reason: str) -> None:
        """Close clients, and the store."""
        self.deposed = reason
        self.on_change()

    def fail(self, error: BaseException) -> None:
        """End the process because of an error."""
        # The first one is the cause; what follows are mostly consequences of it.
        self.failure = self.failure or error
        self.on_change()

    # `is_stopping` and `failure` are about the process, and stay.
    def reset(self) -> None:
        """Forget what a leadership that is over was ordered."""
        self.is_blocked = False
        self.companion = None
        self.deposed = ""

    def take(self) -> LeaderCompanion | None:
        """Return the companion of a leadership that has begun, once."""
        # The order is taken once: with it still here, a member that cannot lead would open its
        # store again at once.
        companion, self.companion = self.companion, None
        return companion
