"""The door of a follower: its own metrics and health, on the addresses in `metrics_listen`.

A follower has no users and no messages that it could be asked for, so there is no login and no API
here: those are the leader's, to which requests are passed on.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import trio
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amqpstore_server.management.http_server import HttpServer, server_config
from amqpstore_server.metrics import rabbitmq, replicas
from amqpstore_server.metrics.exposition import MetricsFormat
from amqpstore_server.terms.replication_figures import FollowerFigures

_log = logging.getLogger(__name__)

_MAX_CLIENTS = 64
"""More than scrape one broker; the oldest connection is closed for the newest."""
_ACCEPT_AGAIN_S = 1.0
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


async def answer(
    listeners: Sequence[socket.socket], figures: Callable[[], FollowerFigures]
) -> None:
    """Answer about a follower. Args: see `FollowerDoor`."""
    await FollowerDoor(figures).run(listeners)


class FollowerDoor:
    """Answers about one follower. Args: figures, returns them; it is called in threads, as a disk
    that is asked may hang.
    """

    def __init__(self, figures: Callable[[], FollowerFigures]) -> None:
        self._figures = figures
        self._began_s = time.monotonic()
        metrics = ("/metrics", "/metrics/per-object", "/metrics/detailed")
        app: Any = Starlette(
            routes=[
                *(Route(path, self._get_metrics) for path in metrics),
                Route("/health/live", self._get_live),
                Route("/health/ready", self._get_ready),
                Route("/health/alarms", self._get_alarms),
                Route("/health/damage", self._get_damage),
                Route("/health/leader", self._get_leader),
            ]
        )
        self._app = wrap_app(app, 0, "asgi")
        self._config = server_config(_log)
        self._worker = WorkerContext(None)
        self._clients: dict[trio.CancelScope, None] = {}
        """In the order in which they came."""

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Answer on listening sockets, which are closed in the end, until cancelled."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: socket.socket, clients: trio.Nursery) -> None:
        with trio.socket.from_stdlib_socket(listener) as accepting:
            while True:
                try:
                    client, _ = await accepting.accept()
                except OSError as error:
                    # Usually too many open files: wait for some to be closed.
                    _log.error("cannot accept", extra={"reason": str(error)})
                    await trio.sleep(_ACCEPT_AGAIN_S)
                    continue
                if len(self._clients) >= _MAX_CLIENTS:
                    oldest = next(iter(self._clients))
                    del self._clients[oldest]
                    oldest.cancel()
                scope = trio.CancelScope()
                self._clients[scope] = None
                clients.start_soon(self._serve, client, scope)

    async def _serve(self, client: trio.socket.SocketType, scope: trio.CancelScope) -> None:
        try:
            with client, scope:
                state: Any = ConnectionState({})
                stream: Any = trio.SocketStream(client)
                await HttpServer(self._app, self._config, self._worker, state, stream).run()
        except* _GONE:
            pass  # the client has gone
        except* Exception:  # noqa: BLE001
            # One client must not end the follower.
            _log.exception("an answer about this follower failed")
        finally:
            self._clients.pop(scope, None)

    async def _now(self) -> FollowerFigures:
        return await trio.to_thread.run_sync(self._figures, abandon_on_cancel=True)

    async def _get_metrics(self, request: Request) -> Response:
        written = MetricsFormat(request.headers.get("accept", ""))
        figures = await self._now()
        families = chain(
            rabbitmq.of_follower(figures, self._began_s), replicas.of_follower(figures)
        )
        text = b"".join(map(written.family, families)) + written.end
        return Response(text, headers={"content-type": written.content_type})

    async def _get_live(self, _request: Request) -> Response:
        return _told("")

    async def _get_ready(self, _request: Request) -> Response:
        figures = await self._now()
        if not figures.takes_clients:
            return _told("this member follows, and passes no clients on")
        return _told("" if figures.leader else _NOBODY_LEADS)

    async def _get_alarms(self, _request: Request) -> Response:
        # A follower blocks no publisher: the leader says whether they wait.
        return _told("", alarms=[])

    async def _get_damage(self, _request: Request) -> Response:
        figures = await self._now()
        return _told("damage was found: run `amqpstore check`" if figures.is_damaged else "")

    async def _get_leader(self, _request: Request) -> Response:
        figures = await self._now()
        leads = f"this member follows: {figures.leader} leads"
        return _told(leads if figures.leader else _NOBODY_LEADS)


_NOBODY_LEADS = "nobody leads, as far as this member knows"


def _told(trouble: str, **more: object) -> Response:
    if trouble:
        return JSONResponse({"status": "failed", "reason": trouble, **more}, 503)
    return JSONResponse({"status": "ok", **more})
