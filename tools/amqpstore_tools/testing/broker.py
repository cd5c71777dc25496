"""The broker in a thread of a test's process: real sockets, a disk in memory, virtual time.

It is the same code as `amqpstore serve`, with another disk and another clock. Clients connect
through the loopback interface, with any library, in real time; the broker's own time stands still
until `advance` moves it.
"""

from __future__ import annotations

import functools
import hashlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import msgspec
import trio
import trio.testing

from amqpstore import DurabilityError, Options, ReadLaterError, Run, Store
from amqpstore.errors import PicklableError
from amqpstore.format.limits import LIMITS
from amqpstore.recovery.recovered import RecoveryReport
from amqpstore_server.administration.definitions import Definitions, Permission, User, load
from amqpstore_server.app import App
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.config.config import Config
from amqpstore_server.listening.listening import listen
from amqpstore_server.logins.users import DEFAULT_PASSWORD, DEFAULT_USER
from amqpstore_tools.simulation import stores
from amqpstore_tools.testing.clock import VirtualClock
from amqpstore_tools.testing.disk import Disk
from amqpstore_tools.testing.log import BrokerLog

_DIRECTORY = "/store"
_HOST = "127.0.0.1"
_BUSY_LOOK_S = 0.001
_SETTLE_S = 30.0
_READ_AT_ONCE = 1000

# By time, checkpoints would come at another point whenever a test lets time pass.
_OPTIONS = Options(
    checkpoint_ms=1 << 60,
    least_free_bytes=0,
    reserve_bytes=0,
    # No segment is filled ahead of use: that would take the most of a small disk.
    limits=LIMITS._replace(fill_from_bytes=1 << 60),
)

ResultT = TypeVar("ResultT")


class BrokerFailedError(PicklableError):
    """The broker ended by itself, or logged an internal error, which is in the message."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}; its log:\n{log}")


class MemoryBroker:
    """A broker that runs until `crash` or `close`. Clients connect to `url`.

    `disk` is its disk: set `disk.capacity_bytes` to fill it; publishers are blocked while less than
    a tenth of it is free. Time is virtual: it starts at the real
    time and then stands still. Clients count as alive however far it moves; clients that connect
    during `advance` may be disconnected as too slow.
    Args: settings, as in the configuration file: `definitions`, `heartbeat_s` and so on; settings
    of the disk have no effect.
    Raises: msgspec.ValidationError, DefinitionsError.
    """

    def __init__(self, **settings: Any) -> None:
        # Time stands still unless a test moves it: no client may have to wait before it connects.
        self._config = msgspec.convert({"accepts_per_s": 0, "drain_s": 0, **settings}, Config)
        self._definitions = _definitions(self._config.definitions)
        self._clock = VirtualClock(time.time_ns() // 1_000_000)
        self._log = BrokerLog(lambda: self._clock.elapsed_s)
        self._seed: int | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.survived = ""
        """A description of what survived the last crash although it was not synced."""
        self.disk = Disk()
        # Bound but not listened on: while the broker is down no other process gets its port.
        self._bound = socket.socket()
        try:
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bound.bind((_HOST, 0))
            self.port: int = self._bound.getsockname()[1]
            self._log.open()
            self._start()
        except BaseException:
            self._log.close()
            self._bound.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL for clients: the user `guest` in the virtual host `/`."""
        return f"amqp://guest:guest@{_HOST}:{self.port}/%2F"

    @property
    def log(self) -> str:
        """The broker's log since the beginning, the last 1000 lines."""
        return str(self._log)

    @property
    def is_running(self) -> bool:
        """Whether clients can connect."""
        return self._thread is not None and self._thread.is_alive() and self.disk.is_on

    @property
    def now(self) -> float:
        """The virtual time, in seconds since 1970."""
        return self._clock.now_ms / 1000

    @property
    def recovery_report(self) -> RecoveryReport:
        """The report of the last start on what it found on the disk."""
        return self._store.recovery_report

    # Power.

    def crash(self, seed: int | None = None) -> None:
        """Cut the power: connections are lost at once, and unsynced data is gone.

        Args: seed, which selects unsynced data that survives all the same, as on a real disk: see
        `survived` after `reopen`.
        Raises: BrokerFailedError, when it ended by itself before.
        """
        self._check_running()
        self._seed = seed
        self.disk.switch_off()
        self._join()

    def crash_at_next_sync(self, seed: int | None = None) -> None:
        """Cut the power right before the next time that something becomes durable.

        So a client that waits for it, for a confirm or a commit, loses the connection instead.
        Args: seed, as for `crash`: the write that was not synced may have survived or not.
        """
        self._check_running()
        self._seed = seed
        self.disk.fail_at_next_sync()

    def reopen(self) -> None:
        """Start again with what the crash left on the disk, at the same URL.

        Raises: RuntimeError, when the power has not failed; BrokerFailedError.
        """
        if self.disk.is_on:
            self._check_running()
            raise RuntimeError("the broker is running: crash it first")
        self._join()
        self.disk, self.survived = self.disk.after_power_cut(self._seed)
        self._start()

    def close(self) -> None:
        """End it, as a crash would. Raises: BrokerFailedError, for any internal error that it
        had.
        """
        self.disk.switch_off()
        self._join()
        self._bound.close()
        self._log.close()
        self._check_failure()

    # Time.

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, and return when everything due in it is done, on disk too.

        Timers run in order, each at its time. While the power is off, time passes as well.
        Raises: BrokerFailedError.
        """
        if seconds < 0:
            raise ValueError(f"time moves forward, by 0 seconds or more, not {seconds}")
        until_ms = self._clock.now_ms + round(seconds * 1000)
        if self.disk.is_on:
            self._call(self._advance, until_ms)
        else:
            self._join()
            self._clock.advance_to(until_ms)

    # Inspection. Everything that clients have sent by then is included.

    def messages(self, queue: str, vhost: str = DEFAULT_VHOST) -> int:
        """Return how many messages wait in a queue, after consumers have taken theirs.

        Raises: NotFoundError, of `amqpstore_server.broker.errors`, if there is no such queue.
        """
        return self._look(lambda: self._app.broker.vhost(vhost).queue(queue).ready_count)

    def bodies(self, queue: str, vhost: str = DEFAULT_VHOST) -> list[bytes]:
        """Return the bodies of waiting messages, in the order of delivery; they stay in the queue.

        Raises: NotFoundError.
        """
        return self._look(lambda: self._bodies(queue, vhost))

    def queues(self, vhost: str = DEFAULT_VHOST) -> list[str]:
        """Return the names of all queues, sorted."""
        return self._look(lambda: sorted(self._app.broker.vhost(vhost).queues))

    # Its thread.

    def _start(self) -> None:
        """Raises: BrokerFailedError."""
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name=f"amqp broker {self.port}", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException as error:
            self._join()
            raise BrokerFailedError(f"the broker did not start: {error}", self.log) from error

    def _run(self, started: Future[None]) -> None:
        """Run the thread."""
        self._log.follow(threading.get_ident())
        store = None
        try:
            store = self._store = self._open_store()
            trio.run(self._serve, started, clock=self._clock)
        except BaseException as error:  # noqa: BLE001 (it is the test's thread that has to know)
            if self.disk.is_on:
                self._failure = error
            if not started.done():
                started.set_exception(error)
        finally:
            if store is not None:
                store.abandon()

    def _open_store(self) -> Store:
        return stores.open_store(
            _DIRECTORY,
            self.disk,
            _OPTIONS._replace(least_free_bytes=self.disk.blocked_below_bytes // 2),
            clock=self._clock,
        )

    async def _serve(self, started: Future[None]) -> None:
        listeners = await listen([(_HOST, self.port)])
        try:
            app = self._app = App(self._config, self._store, self._definitions)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        # A login that was correct once is remembered, and needs no thread.
        app.users.upgrades = False  # a hash more than most tests have time for
        app.users.check(DEFAULT_USER, DEFAULT_PASSWORD)
        self._token = trio.lowlevel.current_trio_token()
        nobody, signals = trio.open_memory_channel[int](0)
        try:
            with nobody, trio.CancelScope() as scope:
                self.disk.on_power_cut = functools.partial(self._power_cut, scope)
                self.disk.on_capacity = self._capacity_changed
                self.disk.on_space = self._space_changed
                self._look_at_disk()
                started.set_result(None)
                await app.run(listeners, signals)
        finally:
            with suppress(DurabilityError):
                app.committer.stop()

    # No tick looks at the disk, as time stands still.

    def _capacity_changed(self) -> None:
        if self.is_running:
            self._look(self._look_at_disk)

    def _space_changed(self) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._look_at_disk)

    def _look_at_disk(self) -> None:
        self._store.space.require(self.disk.blocked_below_bytes // 2)
        self._app.ticks.look_at_alarms()

    def _power_cut(self, scope: trio.CancelScope) -> None:
        self._log.is_muted = True
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(scope.cancel)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # What is done in it.

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function in the thread. Raises: BrokerFailedError, when it ended before that or
        meanwhile.
        """
        self._check_running()
        try:
            return trio.from_thread.run(function, *arguments, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            self._join()
            self._check_running()

    def _look(self, look: Callable[[], ResultT]) -> ResultT:
        async def settled() -> ResultT:
            await self._settle()
            return look()

        result: ResultT = self._call(settled)
        return result

    async def _advance(self, until_ms: int) -> None:
        """Move from one due time to the next, as nothing happens in between."""
        clock = self._clock
        await self._settle()
        while clock.now_ms < until_ms:
            wait_ms = self._app.services.ms_to_next_timer()
            clock.advance_to(until_ms if wait_ms is None else min(clock.now_ms + wait_ms, until_ms))
            now = trio.current_time()
            for connection in list(self._app.connections):
                # Clients live in real time, and cannot send heartbeats in virtual time.
                connection.amqp.receive(b"", now)
            await self._settle()

    async def _settle(self) -> None:
        """Return when nothing is left to do: everything was read, handed out, written and sent.

        Acks that nothing else accompanies wait for their sync; that does not count.
        """
        give_up_at = time.monotonic() + _SETTLE_S
        cushion_s = 0.0
        while True:
            await trio.testing.wait_all_tasks_blocked(cushion_s)
            if self._store.log.is_idle and not any(
                connection.amqp.is_authenticating for connection in self._app.connections
            ):
                return
            if time.monotonic() > give_up_at:
                raise BrokerFailedError(f"the broker is still busy after {_SETTLE_S} s", self.log)
            # Another thread is working, and wakes this one up.
            cushion_s = _BUSY_LOOK_S

    def _bodies(self, name: str, vhost: str) -> list[bytes]:
        bodies = []
        for level in self._app.broker.vhost(vhost).queue(name).priorities:
            runs = []
            while (run := self._store.withdrawals.withdraw(level, _READ_AT_ONCE)) is not None:
                if isinstance(run, ReadLaterError):
                    break
                if isinstance(run, Run):
                    runs.append(run)
                    bodies += [message.body for message in run.messages or ()]
            for run in runs:
                self._store.withdrawals.put_back(level, run)
        return bodies

    # Errors.

    def _check_running(self) -> None:
        """Raises: BrokerFailedError; RuntimeError, when it was crashed or closed."""
        if self.is_running:
            return
        if not self.disk.is_on:
            raise RuntimeError("the power of the broker is off: reopen it first")
        self._join()
        self._check_failure()
        raise RuntimeError("the broker is not running")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise BrokerFailedError(f"the broker failed: {self._failure!r}", self.log) from (
                self._failure
            )
        if self._log.has_failed:
            raise BrokerFailedError("the broker had an internal error", self.log)


def _definitions(path: str) -> Definitions:
    """Return the definitions in the file, if any; and the user `guest`, if it has no users."""
    definitions = load(path) if path else Definitions()
    if not definitions.users:
        # Hashing the password of a new store's `guest` takes longer than most tests.
        salt = bytes(4)
        digest = hashlib.sha256(salt + DEFAULT_PASSWORD).digest()
        definitions.users = [User(name=DEFAULT_USER, password_hash=salt + digest)]
        permission = Permission(user=DEFAULT_USER, vhost=DEFAULT_VHOST, **ALL)
        definitions.permissions = [*definitions.permissions, permission]
    return definitions
