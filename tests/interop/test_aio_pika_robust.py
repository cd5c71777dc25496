"""aio-pika's robust connection: what it declared and consumed is there after a reconnect."""

import asyncio
import contextlib

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage

from tests.broker_process import BrokerProcess
from tests.interop.event_loop import asynchronous
from tests.interop.relay import Relay

FAST_S = 0.05


@asynchronous
async def test_a_cut_connection_is_restored_with_its_topology(url: str, name: str) -> None:
    """Exclusive queue, auto-delete exchange, binding, consumer: all went with the connection."""
    with Relay(url) as relay:
        connection = await aio_pika.connect_robust(relay.url, reconnect_interval=FAST_S)
        restored = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_arguments: restored.set())
        async with connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(name, ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue(name, exclusive=True)
            await queue.bind(exchange, "news.#")
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                await message.ack()
                await received.put(message.body)

            await queue.consume(on_message)
            await exchange.publish(Message(b"before"), "news.one")
            assert await received.get() == b"before"
            relay.cut()
            await restored.wait()
            await exchange.publish(Message(b"after"), "news.two")
            assert await received.get() == b"after"
            assert relay.accepted == 2


@asynchronous
async def test_an_iterator_goes_on_after_the_broker_was_killed(
    broker: BrokerProcess, name: str
) -> None:
    """SIGKILL in the middle of consuming: every confirmed message comes, some of them twice."""
    numbers = range(200)
    with Relay(broker.url) as relay:
        connection = await aio_pika.connect_robust(relay.url, reconnect_interval=FAST_S)
        async with connection:
            publishing = await connection.channel()
            await publishing.declare_queue(name, durable=True)
            for number in numbers:
                await publishing.default_exchange.publish(
                    Message(b"%d" % number, delivery_mode=DeliveryMode.PERSISTENT), name
                )
            consuming = await connection.channel()
            await consuming.set_qos(prefetch_count=20)
            queue = await consuming.declare_queue(name, durable=True)
            seen: set[int] = set()
            killed = False
            async with queue.iterator() as messages:
                async for message in messages:
                    seen.add(int(message.body))
                    if len(seen) == 100 and not killed:
                        killed = True
                        broker.kill()
                        broker.start()
                        relay.target(broker.url)
                    # Messages from before the kill cannot be acknowledged any more, and come again:
                    # the client says so with one of many errors, a bare Exception among them.
                    with contextlib.suppress(Exception):
                        await message.ack()
                    if seen == set(numbers):
                        break
            assert killed
