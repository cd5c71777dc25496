"""amqpstorm, rabbitpy and aioamqp, which few maintain and many still run.

They count frame-max as the size of a payload, and aioamqp says AMQP 0-9 in its protocol header.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aioamqp
import amqpstorm
import pytest
import rabbitpy

from tests.broker_process import REPOSITORY
from tests.interop.pika_client import WAIT_S

SIZES = (0, 1, 131_064, 131_065, 131_072, 131_073, 400_000)
"""Around the frame-max that the server offers, with and without what is around a payload."""

# What types they have are not those that programs use.
Channel = Any
storm_client: Any = amqpstorm


def body(size: int) -> bytes:
    return (b"0123456789" * (size // 10 + 1))[:size]


@pytest.fixture
def storm(url: str) -> Any:
    parts = urlsplit(url)
    return storm_client.Connection(
        parts.hostname, "guest", "guest", port=parts.port, timeout=WAIT_S
    )


def test_amqpstorm_bodies_of_every_size(storm: Any, name: str) -> None:
    with storm as connection, connection.channel() as channel:
        channel.confirm_deliveries()
        channel.queue.declare(name, exclusive=True)
        for size in SIZES:
            assert channel.basic.publish(body(size), name) is True
        for size in SIZES:
            message = channel.basic.get(name, auto_decode=False)
            assert message.body == body(size)
            message.ack()


def test_amqpstorm_consumes_and_gives_back(storm: Any, name: str) -> None:
    with storm as connection, connection.channel() as channel:
        channel.queue.declare(name, exclusive=True)
        for number in range(3):
            channel.basic.publish(f"{number}", name)
        channel.basic.qos(1)
        channel.basic.consume(queue=name)
        seen = []
        for message in channel.build_inbound_messages(break_on_empty=True):
            seen.append((message.body, message.redelivered))
            if len(seen) == 1:
                message.reject(requeue=True)
            else:
                message.ack()
        assert seen == [("0", False), ("0", True), ("1", False), ("2", False)]


def test_amqpstorm_hears_why_a_channel_ends(storm: Any, name: str) -> None:
    with storm as connection, connection.channel() as channel:
        with pytest.raises(storm_client.AMQPChannelError, match="NOT_FOUND") as raised:
            channel.queue.declare(name, passive=True)
        assert raised.value.error_code == 404
        channel.open()
        channel.queue.declare(name, exclusive=True)
        with pytest.raises(storm_client.AMQPChannelError) as raised:
            channel.queue.declare(name, exclusive=False)
        assert raised.value.error_code == 405


def test_rabbitpy_bodies_of_every_size(url: str, name: str) -> None:
    client: Any = rabbitpy
    with client.Connection(url) as connection, connection.channel() as channel:
        channel.enable_publisher_confirms()
        queue = client.Queue(channel, name)
        queue.exclusive = True
        queue.declare()
        for size in SIZES:
            assert client.Message(channel, body(size), {"message_id": str(size)}).publish("", name)
        assert len(queue) == len(SIZES)
        for size in SIZES:
            message = queue.get()
            assert (message.body, message.properties["message_id"]) == (body(size), str(size))
            message.ack()


def with_aioamqp(url: str, program: Callable[[Channel], Awaitable[None]]) -> None:
    """Run a program on a channel of a connection of its own."""

    async def run() -> None:
        parts = urlsplit(url)
        transport, protocol = await aioamqp.connect(parts.hostname, parts.port)
        try:
            await asyncio.wait_for(program(await protocol.channel()), WAIT_S)
        finally:
            await protocol.close()
            transport.close()

    asyncio.run(run())


def test_aioamqp_bodies_of_every_size(url: str, name: str) -> None:
    async def program(channel: Channel) -> None:
        received: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()

        async def on_message(channel: Channel, content: bytes, envelope: Any, _: Any) -> None:
            await received.put((envelope, content))
            await channel.basic_client_ack(envelope.delivery_tag)

        await channel.confirm_select()
        await channel.queue_declare(name, exclusive=True)
        await channel.basic_consume(on_message, queue_name=name)
        for size in SIZES:
            await channel.publish(body(size), "", name)
        for size in SIZES:
            envelope, content = await received.get()
            assert content == body(size)
            assert envelope.routing_key == name

    with_aioamqp(url, program)


def test_aioamqp_hears_why_a_channel_ends(url: str, name: str) -> None:
    async def program(channel: Channel) -> None:
        with pytest.raises(aioamqp.exceptions.ChannelClosed) as raised:
            await channel.queue_declare(name, passive=True)
        assert raised.value.code == 404

    with_aioamqp(url, program)


@pytest.mark.long
def test_amqpstorms_own_suite(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.interop.amqpstorm_suite", url]
    environment = {**os.environ, "PYTHONPATH": REPOSITORY}
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
    assert " passed" in finished.stdout
