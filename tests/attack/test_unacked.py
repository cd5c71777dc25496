"""Messages that a consumer without a prefetch limit takes and does not ack are bounded in memory,
and whole.
"""

import hashlib
from collections.abc import Generator
from typing import Literal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.attack.attacker import MIB, forget_peak, peak_bytes
from tests.broker_process import BrokerProcess
from tests.waiting import wait_until

MEMORY_BYTES = 8 * MIB
COUNT, SIZE = 600, 256 << 10
"""150 MiB of bodies."""

BOUND = 100 * MIB
"""The budget, what is on its way to the disk, and the allocator: less than the bodies take."""

BATCH = 20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    config = f"{directory}.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(f"memory_bytes = {MEMORY_BYTES}\n")
    with BrokerProcess(directory, f"{directory}.log", ["--config", config]) as process:
        process.start()
        yield process
        assert "Traceback" not in process.stderr, process.log_tail()
        assert process.terminate() == 0, process.log_tail()


def body_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest() * (SIZE // 32)


def fill(channel: BlockingChannel, mode: Literal[1, 2]) -> None:
    """Declare and fill a new queue "q", whose dead letters go to "dead"."""
    for queue in ("q", "dead"):
        channel.queue_delete(queue)
    durable = mode == 2
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("dead", durable=durable)
    channel.queue_declare("q", durable=durable, arguments=dead)
    channel.confirm_delivery()
    for number in range(COUNT):
        channel.basic_publish("", "q", body_of(number), pika.BasicProperties(delivery_mode=mode))


def take_all(channel: BlockingChannel) -> list[int]:
    """Consume all that is in the queue, and ack nothing. Returns the tags, in order."""
    tags = []
    for number in range(COUNT):
        method, _, body = next(channel.consume("q"))
        assert body == body_of(number)
        tags.append(method.delivery_tag or 0)
    return tags


def check_all(channel: BlockingChannel, queue: str, *, redelivered: bool) -> None:
    """Consume, and ack, the bodies of all messages, in their order."""
    channel.basic_qos(prefetch_count=BATCH)
    for number in range(COUNT):
        method, _, body = next(channel.consume(queue))
        assert body == body_of(number)
        assert method.redelivered is redelivered
        channel.basic_ack(method.delivery_tag or 0)
    channel.cancel()


@pytest.mark.parametrize(
    ("way", "mode"),
    [("close", 2), ("reject", 2), ("recover", 2), ("ack", 2), ("close", 1), ("reject", 1)],
)
def test_what_is_unacked(small: BrokerProcess, way: str, mode: Literal[1, 2]) -> None:
    parameters = pika.URLParameters(small.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        fill(channel, mode)
        before = forget_peak(small)
        tags = take_all(channel)
        assert peak_bytes(small) - before < BOUND
        if way == "ack":
            channel.basic_ack(tags[-1], multiple=True)
        elif way == "reject":
            channel.basic_nack(tags[-1], multiple=True, requeue=False)
        elif way == "recover":
            channel.basic_recover(requeue=True)
        assert channel.queue_declare("q", passive=True).method.consumer_count == 1
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        queue, left = {"ack": ("q", 0), "reject": ("dead", COUNT)}.get(way, ("q", COUNT))

        def is_there() -> bool:
            return channel.queue_declare(queue, passive=True).method.message_count == left

        wait_until(is_there, f"{left} messages in {queue}")
        if left:
            check_all(channel, queue, redelivered=way != "reject")
    assert peak_bytes(small) - before < BOUND
