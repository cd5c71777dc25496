"""Tests of what a follower answers about itself, on loopback."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import trio
from prometheus_client.parser import text_string_to_metric_families

from amqpstore_server.listening.listening import listen
from amqpstore_server.management import follower_door
from amqpstore_server.management.follower_door import FollowerDoor
from amqpstore_server.terms.replication_figures import FollowerFigures

PATIENT_S = 60.0
FIGURES = FollowerFigures(
    leader="10.0.0.1:5673",
    takes_clients=True,
    is_streaming=True,
    batch=40,
    lag_batches=2,
    received_bytes=0,
    copy_bytes=0,
    waits=False,
    is_etcd_refused=False,
    is_damaged=False,
    free_bytes=7 << 30,
    least_free_bytes=1 << 27,
    refused_frames=3,
)


class Follower:
    """A follower that is asked."""

    def __init__(self) -> None:
        self.figures = FIGURES
        self.now: Callable[[], FollowerFigures] = lambda: self.figures
        self.port = 0

    async def ask(self, path: str) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        stream = await self.connect()
        client = h11.Connection(h11.CLIENT)
        request = h11.Request(method="GET", target=path, headers=[("Host", "a")])
        await stream.send_all(
            (client.send(request) or b"") + (client.send(h11.EndOfMessage()) or b"")
        )
        status, body = 0, b""
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        await stream.aclose()
        return status, body

    async def reason(self, path: str) -> tuple[int, str]:
        status, body = await self.ask(path)
        found = msgspec.json.decode(body)
        assert found["status"] == ("ok" if status == 200 else "failed")
        return status, found.get("reason", "")

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def answering() -> AsyncGenerator[Follower]:
    follower = Follower()
    (listener,) = await listen([("127.0.0.1", 0)])
    follower.port = listener.getsockname()[1]
    with trio.fail_after(PATIENT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FollowerDoor(lambda: follower.now()).run, [listener])
            yield follower
            nursery.cancel_scope.cancel()


def asked(test: Callable[[Follower], Awaitable[Any]]) -> Callable[[], None]:
    """Make a test that runs with a follower."""

    async def run() -> None:
        async with answering() as follower:
            await test(follower)

    def wrapper() -> None:
        trio.run(run)

    wrapper.__doc__ = test.__doc__
    return wrapper


@asked
async def test_a_follower_has_metrics_of_its_disk_its_memory_and_its_lag(
    follower: Follower,
) -> None:
    for path in ("/metrics", "/metrics/per-object", "/metrics/detailed?family=node_metrics"):
        status, body = await follower.ask(path)
        assert status == 200
        families = text_string_to_metric_families(body.decode())
        found = {one.name: one.value for family in families for one in family.samples}
        assert found["rabbitmq_disk_space_available_bytes"] == 7 << 30
        assert found["rabbitmq_process_resident_memory_bytes"] > 1 << 20
        assert found["amqpstore_replication_lag_batches"] == 2
        assert found["amqpstore_replication_batch"] == 40
        assert found["amqpstore_replication_streaming"] == 1
        assert found["amqpstore_replication_refused_frames_total"] == 3
        # Only a leader has it: an alert asks whether any member leads.
        assert "amqpstore_replication_term" not in found


@asked
async def test_load_balancers_hear_from_a_follower_who_leads(follower: Follower) -> None:
    follows = "this member follows: 10.0.0.1:5673 leads"
    assert await follower.reason("/health/leader") == (503, follows)
    assert await follower.reason("/health/live") == (200, "")
    assert await follower.reason("/health/ready") == (200, "")
    assert await follower.reason("/health/alarms") == (200, "")
    assert await follower.reason("/health/damage") == (200, "")
    follower.figures = FIGURES._replace(leader="", is_damaged=True)
    assert (await follower.ask("/health/live"))[0] == 200
    for path in ("/health/ready", "/health/leader"):
        assert await follower.reason(path) == (503, "nobody leads, as far as this member knows")
    assert (await follower.ask("/health/damage"))[0] == 503
    follower.figures = FIGURES._replace(takes_clients=False)
    assert (await follower.ask("/health/ready"))[0] == 503
    assert (await follower.ask("/api/overview"))[0] == 404


@asked
async def test_silent_connections_keep_nobody_out(follower: Follower) -> None:
    silent = [await follower.connect() for _ in range(follower_door._MAX_CLIENTS)]
    assert (await follower.ask("/health/live"))[0] == 200
    assert await silent[0].receive_some() == b""
    for one in silent:
        await one.aclose()


@asked
async def test_an_answer_that_fails_ends_no_other(follower: Follower) -> None:
    def fail() -> FollowerFigures:
        raise ValueError("broken")

    follower.now = fail
    assert (await follower.ask("/metrics"))[0] == 500
    assert (await follower.ask("/health/live"))[0] == 200
