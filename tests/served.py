"""The real app with the configuration of a test, in a thread of its own, without a process: as
`serve` starts it, with its sockets, its store on disk and its management API.
"""

import contextlib
import json
import signal
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec
import requests
import trio

import amqpstore_server.management.door  # noqa: F401 - on import it takes longer than a start
from amqpstore import Store
from amqpstore_server.administration.admin_socket import admin_socket
from amqpstore_server.app import App
from amqpstore_server.config.config import Config
from amqpstore_server.config_values import store_options
from amqpstore_server.listening.listening import listen
from amqpstore_server.listening.management_sockets import ManagementSockets, url_of
from amqpstore_server.loop.loop_limits import LOOP_LIMITS, LoopLimits
from tests.conformance.wire_client import WireClient
from tests.waiting import wait_until

TIMEOUT_S = 60.0

ResultT = TypeVar("ResultT")


class ServedApp:
    """A broker with a configuration, until the block ends; `url` is where clients connect, `api`
    and `metrics` where requests go.
    """

    def __init__(
        self, directory: str, *, loop_limits: LoopLimits = LOOP_LIMITS, **keys: Any
    ) -> None:
        self._loop_limits = loop_limits
        self.config = Config(data=directory, **{"drain_s": 0, "management_listen": [], **keys})
        self.url = self.api = self.metrics = ""
        self._failure: BaseException | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(TIMEOUT_S)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_exception: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self.send_signal()
        self._thread.join()

    def send_signal(self) -> None:
        """Ask for a stop."""
        self.call(lambda: self._signals.send_nowait(signal.SIGTERM))

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function where the broker runs."""
        return trio.from_thread.run_sync(function, trio_token=self._token)

    def pass_time(self, seconds: float) -> None:
        """Have the connections look at the time as it will be in some seconds."""

        def tick() -> None:
            for connection in list(self.app.connections):
                connection.tick(trio.current_time() + seconds)

        self.call(tick)

    def reload(self, **keys: Any) -> None:
        """Change live keys, as SIGHUP does. Returns when they are in force."""
        self.config = wanted = msgspec.structs.replace(self.config, **keys)
        self.call(self.app.reloader.ask)
        wait_until(lambda: self.app.reloader.config == wanted, "the reload")

    def client(self, channels: int = 1, **options: Any) -> WireClient:
        """A client with open channels."""
        return WireClient.connected(self.url, channels=channels, **options)

    def request(self, method: str, path: str, body: object = None) -> requests.Response:
        """Ask the management API as guest."""
        with requests.Session() as session:
            session.trust_env = False
            session.auth = ("guest", "guest")
            return session.request(
                method, f"{self.api}/api{path}", data=json.dumps(body), timeout=TIMEOUT_S
            )

    def get(self, path: str) -> Any:
        """Return what the management API answers."""
        answer = self.request("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def scrape(self, path: str = "/metrics") -> str:
        """Return the metrics."""
        return requests.get(f"{self.metrics}{quote(path, safe='/?=&')}", timeout=TIMEOUT_S).text

    def _serve(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            if self._is_ready.is_set():
                raise
            self._failure = error
            self._is_ready.set()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._signals, signals = trio.open_memory_channel[int](1)
        with Store.open(self.config.data, options=store_options(self.config)) as self.store:
            self.app = App(
                self.config,
                self.store,
                None,
                None,
                lambda: self.config,
                loop_limits=self._loop_limits,
            )
            address = [("127.0.0.1", 0)]
            listeners = await listen(address)
            self.url = url_of("amqp", listeners[0])
            sockets = ManagementSockets(await listen(address), (), await listen(address))
            self.api, self.metrics = (
                url_of("http", one) for one in (*sockets.plain, *sockets.metrics)
            )
            with admin_socket(self.store.directory) as admin:
                self._is_ready.set()
                await self.app.run(listeners, signals, (), admin, sockets)
