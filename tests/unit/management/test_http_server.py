"""The connection of a client of the management API, from its first byte to its end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from amqpstore_server.management.http_server import HttpServer


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Names:
    """A connection that has only its addresses."""

    family = 2

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 2


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.trio
@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("asks", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\xff\xff\r\n\r\n"])
async def test_nothing_stays_of_a_connection_that_has_ended(asks: bytes) -> None:
    client, accepted = trio.testing.memory_stream_pair()
    accepted.socket = Names()  # type: ignore[attr-defined]
    app: Any = answer
    server = HttpServer(
        *(wrap_app(app, 0, "asgi"), Config(), WorkerContext(None), ConnectionState({}), accepted)
    )
    gone = weakref.ref(accepted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        del server, accepted
        if asks:
            await client.send_all(asks)
            assert await client.receive_some()
        await client.aclose()
    assert gone() is None
