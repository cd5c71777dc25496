"""The tasks of one client: each does something that rounds cannot wait for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from amqpstore_server.loop.sockets import Sockets

Task = Callable[[], Awaitable[None]]


class ClientTasks:
    """Starts tasks of one client, from when it is accepted until its end."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._nursery: trio.Nursery | None = None
        """The nursery of the tasks, between `begin` and `end`."""
        self._unstarted: list[Task] = []
        """Tasks that were asked for before `begin`."""
        self.is_ending = False

    def begin(self, nursery: trio.Nursery) -> None:
        """Run tasks in a nursery, from now on."""
        self._nursery = nursery
        for task in self._unstarted:
            nursery.start_soon(task)
        self._unstarted.clear()

    def start(self, task: Task) -> None:
        """Start a task, unless this is the end."""
        if self.is_ending:
            return
        if self._nursery is None:
            self._unstarted.append(task)
        else:
            self._nursery.start_soon(task)
        self._sockets.let_others_run()

    def end(self) -> None:
        """Start no more tasks. To be called before the nursery ends: while it does it takes none,
        but others have their turn.
        """
        self._nursery = None
        self.is_ending = True
