"""aio-pika: publishing, consuming, remote calls, topologies with delays, transactions."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    MessageProcessError,
    ProbableAuthenticationError,
    PublishError,
    QueueEmpty,
)
from aio_pika.patterns import RPC, Master, NackMessage

from tests.interop.event_loop import WAIT_S, asynchronous, eventually


@asynccontextmanager
async def open_channel(
    url: str, publisher_confirms: bool = True, on_return_raises: bool = False
) -> AsyncGenerator[AbstractChannel]:
    """A channel of a connection of its own."""
    async with (
        await aio_pika.connect(url) as connection,
        await connection.channel(
            publisher_confirms=publisher_confirms, on_return_raises=on_return_raises
        ) as channel,
    ):
        yield channel


async def count(channel: AbstractChannel, queue: str) -> int:
    """Return how many messages are ready."""
    declared = await channel.declare_queue(queue, passive=True)
    return int(declared.declaration_result.message_count or 0)


async def bodies(queue: AbstractQueue) -> list[bytes]:
    """Take everything out of the queue."""
    taken = []
    while message := await queue.get(no_ack=True, fail=False):
        taken.append(message.body)
    return taken


@asynchronous
async def test_a_wrong_password_is_refused(url: str) -> None:
    with pytest.raises(ProbableAuthenticationError):
        await aio_pika.connect(url.replace("guest:guest", "guest:wrong"))


@asynchronous
async def test_hundreds_of_publishes_are_confirmed_at_once(url: str, name: str) -> None:
    """Each waits for its own confirm, all of them at the same time."""
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True)
        confirmations = await asyncio.gather(
            *(
                channel.default_exchange.publish(
                    Message(b"%d" % number, delivery_mode=DeliveryMode.PERSISTENT), name
                )
                for number in range(300)
            )
        )
        assert {type(confirmation).__name__ for confirmation in confirmations} == {"Ack"}
        assert await bodies(queue) == [b"%d" % number for number in range(300)]


@asynchronous
async def test_an_unroutable_message_is_returned(url: str, name: str) -> None:
    async with open_channel(url, on_return_raises=True) as channel:
        with pytest.raises(PublishError, match="NO_ROUTE"):
            await channel.default_exchange.publish(Message(b"nobody"), name)


@asynchronous
async def test_a_negative_confirm_is_a_delivery_error(url: str, name: str) -> None:
    limits: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True, arguments=limits)
        await channel.default_exchange.publish(Message(b"first"), name)
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(Message(b"second"), name)
        assert await bodies(queue) == [b"first"]


@asynchronous
async def test_an_iterator_consumes_in_order_within_its_prefetch(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(name, exclusive=True)
        for number in range(100):
            await channel.default_exchange.publish(Message(b"%d" % number), name)
        received = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    received.append(message.body)
                if len(received) == 100:
                    break
        assert received == [b"%d" % number for number in range(100)]
        with pytest.raises(QueueEmpty):
            await queue.get()


@asynchronous
async def test_a_message_whose_processing_fails_comes_again(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True)
        await channel.default_exchange.publish(Message(b"hard"), name)
        message = await queue.get()
        with pytest.raises(RuntimeError, match="not today"):
            async with message.process(requeue=True):
                raise RuntimeError("not today")
        again = await queue.get()
        assert (again.body, again.redelivered) == (b"hard", True)
        await again.ack()


@asynchronous
async def test_a_cancelled_task_gives_its_message_back(url: str, name: str) -> None:
    """asyncio's cancellation in the middle of the processing requeues the message."""
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True)
        await channel.default_exchange.publish(Message(b"interrupted"), name)
        started = asyncio.Event()

        async def work() -> None:
            async with (await queue.get()).process(requeue=True):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await queue.get()
        assert (again.body, again.redelivered) == (b"interrupted", True)
        await again.ack()


@asynchronous
async def test_a_cancelled_consumer_gets_nothing_more(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name)
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: AbstractIncomingMessage) -> None:
            await message.ack()
            await received.put(message.body)

        tag = await queue.consume(on_message)
        await channel.default_exchange.publish(Message(b"before"), name)
        assert await received.get() == b"before"
        await queue.cancel(tag)
        await channel.default_exchange.publish(Message(b"after"), name)
        assert await bodies(queue) == [b"after"]
        assert received.empty()
        await queue.delete()


@asynchronous
async def test_a_consumer_is_told_that_its_queue_was_deleted(url: str, name: str) -> None:
    async with open_channel(url) as channel, open_channel(url) as other:
        queue = await channel.declare_queue(name)
        underlay = await channel.get_underlay_channel()
        cancelled = asyncio.Event()

        async def on_cancel(_frame: object) -> None:
            cancelled.set()

        underlay.on_consumer_cancel_callbacks.add(on_cancel)
        await queue.consume(asyncio.Queue[AbstractIncomingMessage]().put)
        await other.queue_delete(name)
        await cancelled.wait()
        assert not channel.is_closed


@asynchronous
async def test_soft_errors_are_exceptions_of_their_own(url: str, name: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        with pytest.raises(ChannelNotFoundEntity):
            await channel.declare_queue(name, passive=True)
        channel = await connection.channel()
        await channel.declare_queue(name, exclusive=True)
        with pytest.raises(ChannelPreconditionFailed):
            await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 1})
        await (await connection.channel()).declare_queue("", exclusive=True)


@asynchronous
async def test_remote_calls_by_the_rpc_pattern(url: str, name: str) -> None:
    """Results and exceptions come back through the caller's result queue."""

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def fail(*, why: str) -> None:
        raise LookupError(why)

    async with open_channel(url) as serving, open_channel(url) as calling:
        server = await RPC.create(serving)
        await server.register(f"{name}.multiply", multiply, auto_delete=True)
        await server.register(f"{name}.fail", fail, auto_delete=True)
        client = await RPC.create(calling)
        results = await asyncio.gather(
            *(client.call(f"{name}.multiply", {"x": x, "y": x}) for x in range(20))
        )
        assert results == [x * x for x in range(20)]
        with pytest.raises(LookupError, match="nowhere"):
            await client.call(f"{name}.fail", {"why": "nowhere"})
        with pytest.raises(MessageProcessError, match="returned"):
            await client.call(f"{name}.missing", {})
        await client.close()
        await server.close()


@asynchronous
async def test_a_remote_call_that_nobody_takes_expires(url: str, name: str) -> None:
    """The request dies in the queue and comes back over a headers exchange as a time-out."""
    async with open_channel(url) as channel:
        client = await RPC.create(channel)
        arguments: Any = {"x-dead-letter-exchange": RPC.DLX_NAME}
        await channel.declare_queue(name, exclusive=True, arguments=arguments)
        with pytest.raises(asyncio.TimeoutError):
            await client.call(name, {}, expiration=1)
        await client.close()


@asynchronous
async def test_direct_reply_to(url: str, name: str) -> None:
    """Answers without a queue: the reply-to that the server sees is a name made for the caller."""
    async with open_channel(url) as calling, open_channel(url) as serving:
        requests = await serving.declare_queue(name, exclusive=True)

        async def serve(message: AbstractIncomingMessage) -> None:
            async with message.process():
                assert message.reply_to is not None
                assert message.reply_to.startswith("amq.rabbitmq.reply-to.")
                await serving.default_exchange.publish(
                    Message(message.body * 2, correlation_id=message.correlation_id),
                    message.reply_to,
                )

        await requests.consume(serve)
        replies = await calling.get_queue("amq.rabbitmq.reply-to", ensure=False)
        received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await replies.consume(received.put, no_ack=True)
        for number in range(5):
            request = Message(
                b"%d" % number, reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
            )
            await calling.default_exchange.publish(request, name)
        answers = [await received.get() for _ in range(5)]
        assert [(a.correlation_id, a.body) for a in answers] == [
            (str(number), b"%d" % number * 2) for number in range(5)
        ]


@asynchronous
async def test_workers_share_the_tasks_of_a_master(url: str, name: str) -> None:
    """A task is done by one worker; the one that rejects it leaves it to another try."""
    async with open_channel(url) as channel:
        await channel.set_qos(prefetch_count=1)
        done: asyncio.Queue[int] = asyncio.Queue()
        refused: set[int] = set()

        async def work(*, number: int) -> None:
            if number % 5 == 0 and number not in refused:
                refused.add(number)
                raise NackMessage(requeue=True)
            await done.put(number)

        master = Master(channel)
        workers = [await master.create_worker(name, work, auto_delete=True) for _ in range(3)]
        for number in range(20):
            await master.create_task(name, {"number": number})
        assert sorted([await done.get() for _ in range(20)]) == list(range(20))
        assert refused == {0, 5, 10, 15}
        for worker in workers:
            await worker.close()


@asynchronous
async def test_a_message_waits_in_a_delay_queue_and_then_goes_to_work(url: str, name: str) -> None:
    """x-message-ttl and a dead-letter exchange: the classic retry topology, twice around."""
    async with open_channel(url) as channel:
        work_exchange = await channel.declare_exchange(
            f"{name}.work", ExchangeType.DIRECT, auto_delete=True
        )
        retry_exchange = await channel.declare_exchange(
            f"{name}.retry", ExchangeType.FANOUT, auto_delete=True
        )
        work = await channel.declare_queue(
            f"{name}.work", exclusive=True, arguments={"x-dead-letter-exchange": f"{name}.retry"}
        )
        delay = await channel.declare_queue(
            f"{name}.delay",
            exclusive=True,
            arguments={"x-message-ttl": 50, "x-dead-letter-exchange": f"{name}.work"},
        )
        await work.bind(work_exchange, "job")
        await delay.bind(retry_exchange)
        await work_exchange.publish(Message(b"try", headers={"mine": "kept"}), "job")
        deaths: Any = None
        async with asyncio.timeout(WAIT_S), work.iterator() as messages:
            async for message in messages:
                deaths = message.headers.get("x-death")
                if deaths and deaths[0]["count"] == 2:
                    await message.ack()
                    break
                await message.reject(requeue=False)
        assert message.headers["mine"] == "kept"
        assert message.headers["x-first-death-queue"] == f"{name}.work"
        assert message.headers["x-first-death-reason"] == "rejected"
        assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
            (f"{name}.delay", "expired", 2),
            (f"{name}.work", "rejected", 2),
        ]
        assert [death["exchange"] for death in deaths] == [f"{name}.retry", f"{name}.work"]
        assert [death["routing-keys"] for death in deaths] == [["job"], ["job"]]
        assert deaths[0]["time"].year >= 2024


@asynchronous
async def test_the_oldest_beyond_the_length_limit_are_dead_lettered(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        spilled = await channel.declare_queue(f"{name}.spilled", exclusive=True)
        limits: Any = {
            "x-max-length": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": spilled.name,
        }
        queue = await channel.declare_queue(name, exclusive=True, arguments=limits)
        for number in range(5):
            await channel.default_exchange.publish(Message(b"%d" % number), name)

        async def all_spilled() -> bool:
            return await count(channel, spilled.name) == 3

        await eventually(all_spilled, "three were dead-lettered")
        first = await spilled.get(no_ack=True)
        assert first.body == b"0"
        assert first.headers["x-first-death-reason"] == "maxlen"
        assert await bodies(queue) == [b"3", b"4"]


@asynchronous
async def test_higher_priorities_come_first(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True, arguments={"x-max-priority": 5})
        for number, priority in enumerate([0, 3, 5, 3, None, 200]):
            await channel.default_exchange.publish(Message(b"%d" % number, priority=priority), name)
        assert await bodies(queue) == [b"2", b"5", b"1", b"3", b"0", b"4"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@asynchronous
async def test_a_transaction_is_all_or_nothing(url: str, name: str, commit: bool) -> None:
    """Publishes to two queues and the acknowledgement of a third one's message."""
    async with open_channel(url) as outside:
        source = await outside.declare_queue(f"{name}.source")
        targets = [await outside.declare_queue(f"{name}.{part}") for part in ("one", "two")]
        await outside.default_exchange.publish(Message(b"work"), source.name)
        async with open_channel(url, publisher_confirms=False) as channel:
            transaction = channel.transaction()
            await transaction.select()
            message = await (await channel.get_queue(source.name)).get()
            for target in targets:
                await channel.default_exchange.publish(Message(b"done"), target.name)
            await message.ack()
            assert [await count(channel, target.name) for target in targets] == [0, 0]
            await (transaction.commit() if commit else transaction.rollback())
        # What was not acknowledged after all was requeued when the connection closed.

        async def settled() -> bool:
            return await count(outside, source.name) == (0 if commit else 1)

        await eventually(settled, "the source has what is left")
        for target in targets:
            assert await bodies(target) == ([b"done"] if commit else [])
        for queue in (source, *targets):
            await queue.delete(if_empty=False)


@asynchronous
async def test_a_transaction_block_rolls_back_on_an_exception(url: str, name: str) -> None:
    async with open_channel(url, publisher_confirms=False) as channel:
        queue = await channel.declare_queue(name, exclusive=True)
        with pytest.raises(RuntimeError, match="no"):
            async with channel.transaction():
                await channel.default_exchange.publish(Message(b"undone"), name)
                raise RuntimeError("no")
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"done"), name)
        assert await bodies(queue) == [b"done"]


@asynchronous
async def test_headers_of_every_type_come_back(url: str, name: str) -> None:
    headers: Any = {
        "text": "grüße",
        "octets": bytearray(b"\x00\xff"),
        "flag": True,
        "number": -(2**40),
        "double": 2.5,
        "nothing": None,
        "list": [1, "two", [3.0], {"four": 4}],
        "table": {"deep": {"deeper": False}},
    }
    async with open_channel(url) as channel:
        queue = await channel.declare_queue(name, exclusive=True)
        await channel.default_exchange.publish(Message(b"labelled", headers=headers), name)
        message = await queue.get(no_ack=True)
        assert message.headers == headers


@asynchronous
async def test_exchanges_bound_to_exchanges(url: str, name: str) -> None:
    async with open_channel(url) as channel:
        source = await channel.declare_exchange(
            f"{name}.source", ExchangeType.TOPIC, auto_delete=True
        )
        inner = await channel.declare_exchange(
            f"{name}.inner", ExchangeType.FANOUT, auto_delete=True, internal=True
        )
        queue = await channel.declare_queue(name, exclusive=True)
        await queue.bind(inner)
        await inner.bind(source, "logs.*.error")
        await source.publish(Message(b"yes"), "logs.disk.error")
        await source.publish(Message(b"no"), "logs.disk.info", mandatory=False)
        assert await bodies(queue) == [b"yes"]
        await inner.unbind(source, "logs.*.error")
