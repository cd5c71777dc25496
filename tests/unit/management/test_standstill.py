"""Requests to the management API that come while the broker stands still are read in time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from starlette.requests import Request

from amqpstore_server.management import bodies
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.http_server import HttpServer

IDLE_S = 15.0


@pytest.mark.trio
@pytest.mark.parametrize(("pauses", "expected"), [(1, b"all of it"), (2, "request_timeout")])
async def test_a_body_is_read_that_came_while_the_broker_stood_still(
    mock_clock: trio.testing.MockClock, pauses: int, expected: bytes | str
) -> None:
    sending, receiving = trio.open_memory_channel[Any](1)
    request = Request({"type": "http", "method": "PUT", "headers": []}, receiving.receive)
    ended: list[bytes | str] = []

    async def read() -> None:
        try:
            ended.append(await bodies.read_form(request, 1000))
        except HttpError as error:
            ended.append(error.error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        sending.send_nowait({"type": "http.request", "body": b"all ", "more_body": True})
        for _ in range(pauses):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(10 * bodies._READ_S)
        await trio.testing.wait_all_tasks_blocked()
        sending.send_nowait({"type": "http.request", "body": b"of it", "more_body": False})
    assert ended == [expected]


class Server(HttpServer):
    """A server that only notes that it closes the connection."""

    def __init__(self) -> None:
        config = Config()
        config.keep_alive_timeout = IDLE_S
        nothing: Any = None
        super().__init__(nothing, config, WorkerContext(None), nothing, nothing)
        self.is_closed = False

    async def _initiate_server_close(self) -> None:
        self.is_closed = True


@pytest.mark.trio
async def test_a_connection_is_not_closed_as_idle_before_its_request_could_be_read(
    mock_clock: trio.testing.MockClock,
) -> None:
    server = Server()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server._idle_timeout)
        for pause_s, is_closed in ((10 * IDLE_S, False), (IDLE_S, True)):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(pause_s)
            await trio.testing.wait_all_tasks_blocked()
            assert server.is_closed == is_closed


@pytest.mark.trio
async def test_a_connection_that_is_idle_is_closed_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Server()
    await server._idle_timeout()
    assert server.is_closed
    assert trio.current_time() == pytest.approx(IDLE_S)
