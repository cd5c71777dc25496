"""A shortage of memory blocks publishers only, and it ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.attack.attacker import MIB, forget_peak, half_a_body, peak_bytes, push, resident_bytes
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    CONNECTION_BLOCKED,
    CONNECTION_UNBLOCKED,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_consume,
    body,
    header,
    method,
    publish_method,
)
from tests.waiting import wait_until

PERSISTENT = b"\x10\x00\x02"
BLOCKED = ("connection.blocked",)


@contextlib.contextmanager
def configured(tmp_path: Path, text: str) -> Iterator[tuple[BrokerProcess, Path]]:
    config = tmp_path / "amqpstore.toml"
    config.write_text(text)
    store = str(tmp_path / "store")
    with BrokerProcess(store, f"{store}.log", ["--config", str(config)]) as process:
        process.start()
        yield process, config
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


def test_publishers_are_blocked_and_told_and_nobody_else(tmp_path: Path) -> None:
    with configured(tmp_path, "memory_watermark = 0.6\n") as (broker, config):
        consumer = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = consumer.channel()
        channel.queue_declare("q")
        publisher = WireClient.connected(broker.url, channels=1, capabilities=BLOCKED)
        publisher.send(publish_method(1, "q"), header(1, 1), body(1, b"1"))
        assert publisher.ready("q") == 1
        config.write_text("memory_watermark = 1048576\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "memory is short" in broker.stderr, "the alarm is raised")
        publisher.send(publish_method(1, "q"), header(1, 1), body(1, b"2"))
        reason = publisher.expect(CONNECTION_BLOCKED, 0).arguments
        assert reason == bytes([len(b"low on memory")]) + b"low on memory"
        publisher.send(publish_method(1, "q"), header(1, 1), body(1, b"3"))
        # A consumer, its acks, a declare, a purge and a login.
        got = [channel.basic_get("q")[2], channel.basic_get("q")[2]]
        assert got[0] == b"1"
        channel.basic_ack(0, multiple=True)
        channel.queue_declare("another")
        channel.queue_purge("another")
        with WireClient.connected(broker.url, channels=1) as other:
            other.declare_queue("mine")
            other.expect_alive()
        # Who cannot be told waits as well, and is not disconnected.
        silent = WireClient.connected(broker.url, channels=1)
        silent.send(publish_method(1, "q"), header(1, 1), body(1, b"4"))
        config.write_text("memory_watermark = 0.6\n")
        os.kill(broker.pid, signal.SIGHUP)
        publisher.expect(CONNECTION_UNBLOCKED, 0)
        publisher.ready("q")
        silent.ready("q")
        wait_until(
            lambda: (
                channel.queue_declare("q", passive=True).method.message_count
                + sum(one is not None for one in got)
                == 4
            ),
            "all messages are there",
        )
        wait_until(lambda: "memory is no longer short" in broker.stderr, broker.log_tail)
        assert broker.stderr.count("memory is short") == 1
        for client in (publisher, silent):
            client.abort()
        consumer.close()


def test_a_worker_that_has_published_drains_its_queue(tmp_path: Path) -> None:
    """The worker consumes on the connection that it publishes on; what it publishes during the
    alarm is read after it.
    """
    with configured(tmp_path, "memory_watermark = 0.6\n") as (broker, config):
        worker = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = worker.channel()
        for queue in ("work", "results"):
            channel.queue_declare(queue)
        for number in range(20):
            channel.basic_publish("", "work", f"{number}".encode())
        wait_until(lambda: _ready(channel, "work") == 20, "the work is there")
        config.write_text("memory_watermark = 1048576\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "memory is short" in broker.stderr, "the alarm is raised")
        channel.basic_qos(prefetch_count=1)
        for got, _, task in channel.consume("work", inactivity_timeout=60):
            assert got is not None, "nothing comes any more"
            assert task is not None
            channel.basic_publish("", "results", task)
            channel.basic_ack(got.delivery_tag or 0)
            if task == b"19":
                break
        channel.cancel()
        assert _ready(channel, "work") == 0
        assert _ready(channel, "results") == 0
        # One that leaves has published as well.
        leaving = WireClient.connected(broker.url, channels=1)
        leaving.send(publish_method(1, "results"), header(1, 1), body(1, b"x"))
        leaving.abort()
        config.write_text("memory_watermark = 0.6\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: _ready(channel, "results") == 21, "all that was held is there")
        worker.close()


def _ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_halves_of_bodies_do_not_keep_the_alarm_raised(tmp_path: Path) -> None:
    """The senders of these bodies are blocked, so only the broker can end the shortage."""
    watermark = 96 * MIB
    with configured(tmp_path, f"memory_watermark = {watermark}\n") as (broker, _):
        with WireClient.connected(broker.url):
            pass  # the check of a password takes 64 MiB for a moment
        before = forget_peak(broker)
        holders = [WireClient.connected(broker.url, channels=1) for _ in range(12)]
        for holder in holders:
            push(holder, half_a_body(1, 100 * MIB, 8 * MIB, 100_000))
        wait_until(lambda: "connections is" in broker.stderr, "the largest are closed")
        publisher = WireClient.connected(broker.url, channels=1)
        publisher.declare_queue("q")
        publisher.send(publish_method(1, "q"), header(1, 1), body(1, b"1"))
        wait_until(lambda: publisher.ready("q") == 1, "the alarm is over")
        assert peak_bytes(broker) - before < 2 * watermark
        for client in (publisher, *holders):
            client.abort()
        wait_until(lambda: resident_bytes(broker) < before + 48 * MIB, "memory is given back")


def full_speed(broker: BrokerProcess, seconds: float) -> list[int]:
    """Publish as fast as the broker takes it, with a consumer that is slow. Returns samples of the
    resident memory from the second half of the time. The first half is longer on a slow machine: it
    goes on until half of the queue's limit was sent, as no more than that is in memory.
    """
    limit = 256 * MIB
    with (
        WireClient.connected(broker.url, channels=1) as publisher,
        WireClient.connected(broker.url, channels=1) as consumer,
    ):
        publisher.send(_bounded_queue("q", limit))
        publisher.expect(QUEUE_DECLARE_OK, 1)
        consumer.send(method(1, (60, 10), b"\0\0\0\0\0\x0a\0"))
        consumer.expect((60, 11), 1)
        consumer.send(basic_consume(1, "q", "slow", no_ack=True))
        consumer.expect(BASIC_CONSUME_OK, 1)
        half_s = seconds / 2
        is_over = threading.Event()
        message = publish_method(1, "q") + header(1, 10_000, PERSISTENT) + body(1, bytes(10_000))
        batch = message * 100
        sent_bytes = 0

        def batches() -> Iterator[bytes]:
            nonlocal sent_bytes
            while not is_over.is_set():
                yield batch
                sent_bytes += len(batch)

        thread = threading.Thread(target=push, args=(publisher, batches(), 60.0))
        thread.start()
        full_at = time.monotonic() + half_s
        while time.monotonic() < full_at or sent_bytes < limit // 2:
            consumer.socket.recv(4096)
            thread.join(0.02)
        samples = []
        ends_at = time.monotonic() + half_s
        while time.monotonic() < ends_at:
            consumer.socket.recv(4096)
            samples.append(resident_bytes(broker))
            thread.join(0.02)
        is_over.set()
        thread.join()
        consumer.abort()
        publisher.expect_alive()
    return samples


def _bounded_queue(name: str, max_length_bytes: int) -> bytes:
    """A durable queue, of which the oldest messages are dropped: the disk is not what is tested."""
    key = b"\x12x-max-length-bytes" + b"l" + max_length_bytes.to_bytes(8, "big")
    arguments = b"\0\0" + bytes([len(name)]) + name.encode() + b"\x02"
    return method(1, (50, 10), arguments + len(key).to_bytes(4, "big") + key)


@pytest.mark.parametrize("seconds", [6, pytest.param(600, marks=pytest.mark.long)])
def test_a_publisher_at_full_speed_leaves_memory_flat(tmp_path: Path, seconds: int) -> None:
    with configured(tmp_path, "memory_bytes = 33554432\n") as (broker, _):
        with WireClient.connected(broker.url):
            pass
        before = forget_peak(broker)
        samples = full_speed(broker, seconds)
        assert peak_bytes(broker) - before < 320 * MIB
        third = len(samples) // 3
        assert max(samples[-third:]) - max(samples[:third]) < 64 * MIB, samples[:: third or 1]
