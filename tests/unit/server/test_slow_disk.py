"""A disk whose syncs take long: publishers wait, what waits for the disk is bounded, consumers go
on, and nothing is lost."""

import threading
from pathlib import Path

import pytest

from amqpstore.system.files import OsFile
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.sockets import Sockets
from tests.conformance import wire_client
from tests.conformance.wire_client import WireClient
from tests.served import ServedApp

LIMITS = LOOP_LIMITS._replace(max_pending_bytes=1 << 20)
READ_BYTES = 256 << 10
"""The most that is read of a connection in one go."""

PUBLISHERS = 3
MESSAGES = 100
BODY = bytes(60_000)

PREFETCH = 25
HEARTBEAT_S = 60

MAX_SYNCS = 100
"""A consumer that is starved would need more."""

PERSISTENT = b"\x10\0\2"
TIMEOUT_S = 60.0


class SlowDisk:
    """Files whose syncs end one by one, when the test says so, or at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_slow = False
        self._syncs = threading.Semaphore(0)
        sync = OsFile.datasync

        def datasync(file: OsFile) -> None:
            if self.is_slow:
                assert self._syncs.acquire(timeout=TIMEOUT_S)
            sync(file)

        patch.setattr(OsFile, "datasync", datasync)

    def end_sync(self) -> None:
        """Let one sync end, this one or the next."""
        self._syncs.release()

    def recover(self) -> None:
        """Let all of them end."""
        self.is_slow = False
        self._syncs.release(1000)


class FullLog:
    """A log with so much that waits for the disk that the broker stops reading from clients."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._seen = threading.Semaphore(0)
        wait = LoopRounds.wait_for_room

        async def wait_for_room(rounds: LoopRounds) -> None:
            self._seen.release()
            await wait(rounds)

        patch.setattr(LoopRounds, "wait_for_room", wait_for_room)

    def expect(self, clients: int) -> None:
        """Return once that many clients are held back."""
        for _ in range(clients):
            assert self._seen.acquire(timeout=TIMEOUT_S)


class Publisher:
    """Publishes to a queue without waiting for confirms, until it is told to stop."""

    def __init__(self, url: str, queue: str) -> None:
        self.published = 0
        self.client = WireClient.connected(url, channels=1, heartbeat_s=HEARTBEAT_S)
        self.client.socket.settimeout(TIMEOUT_S)
        self.client.send(wire_client.confirm_select(1))
        self.client.expect(wire_client.CONFIRM_SELECT_OK, 1)
        self._queue = queue
        self._is_stopping = False
        self._thread = threading.Thread(target=self._publish)

    def start(self) -> None:
        self._thread.start()

    def _publish(self) -> None:
        while not self._is_stopping:
            self.client.send(wire_client.publish(1, self._queue, BODY, PERSISTENT))
            self.published += 1

    def stop(self) -> None:
        """Return once the last message is confirmed."""
        self._is_stopping = True
        self._thread.join()
        tag = 0
        while tag < self.published:
            confirm = self.client.expect(wire_client.BASIC_ACK, 1)
            tag = int.from_bytes(confirm.arguments[:8], "big")
        self.client.socket.close()


def declare(client: WireClient, queue: str) -> int:
    """Declare a durable queue, and return how many messages are ready in it."""
    client.send(wire_client.queue_declare(1, queue, bits=0b010))
    arguments = client.expect(wire_client.QUEUE_DECLARE_OK, 1).arguments
    return int.from_bytes(arguments[-8:-4], "big")


def consume(client: WireClient, queue: str) -> None:
    """Start a consumer with a prefetch."""
    client.send(wire_client.method(1, wire_client.BASIC_QOS, bytes(4) + b"\0%c\0" % PREFETCH))
    client.expect(wire_client.BASIC_QOS_OK, 1)
    client.send(wire_client.basic_consume(1, queue, "tag", no_ack=False))
    client.expect(wire_client.BASIC_CONSUME_OK, 1)


def test_publishers_wait_for_a_slow_disk_and_consumers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, full = SlowDisk(monkeypatch), FullLog(monkeypatch)
    directory = str(tmp_path / "store")
    with ServedApp(directory, loop_limits=LIMITS) as broker:
        with WireClient.connected(broker.url, channels=1) as client:
            declare(client, "new")
            declare(client, "old")
            for _ in range(MESSAGES):
                client.send(wire_client.publish(1, "old", b"small", PERSISTENT))
            while declare(client, "old") < MESSAGES:
                pass
        with WireClient.connected(broker.url, channels=1) as consumer:
            consume(consumer, "old")
            publishers = [Publisher(broker.url, "new") for _ in range(PUBLISHERS)]
            disk.is_slow = True
            for publisher in publishers:
                publisher.start()
            full.expect(PUBLISHERS)
            assert broker.store.log.pending_bytes >= LIMITS.max_pending_bytes
            # Acks have to be read before more than the prefetch is sent.
            syncs = 0
            for tag in range(1, MESSAGES + 1):
                while not consumer.has_frame(0.1):
                    disk.end_sync()
                    syncs += 1
                    assert syncs < MAX_SYNCS
                    assert (
                        broker.store.log.pending_bytes < LIMITS.max_pending_bytes + 2 * READ_BYTES
                    )
                consumer.expect(wire_client.BASIC_DELIVER, 1)
                consumer.expect_content(1)
                ack = tag.to_bytes(8, "big") + b"\0"
                consumer.send(wire_client.method(1, wire_client.BASIC_ACK, ack))
            disk.recover()
            for publisher in publishers:
                publisher.stop()
            consumer.send(wire_client.connection_close())
            consumer.expect_close_ok()
    with ServedApp(directory) as broker, WireClient.connected(broker.url, channels=1) as client:
        assert declare(client, "old") == 0
        assert declare(client, "new") == sum(publisher.published for publisher in publishers)


def test_only_those_who_publish_wait_for_a_disk_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sync ends, and consumers, heartbeats and logins go on as if nothing was wrong."""
    disk, full = SlowDisk(monkeypatch), FullLog(monkeypatch)
    rounds = count_rounds(monkeypatch)
    with ServedApp(str(tmp_path / "store"), loop_limits=LIMITS) as broker:
        with WireClient.connected(broker.url, channels=1) as client:
            declare(client, "new")
            declare(client, "old")
            for _ in range(MESSAGES):
                client.send(wire_client.publish(1, "old", b"small", PERSISTENT))
            while declare(client, "old") < MESSAGES:
                pass
        publishers = [Publisher(broker.url, "new") for _ in range(PUBLISHERS)]
        disk.is_slow = True
        for publisher in publishers:
            publisher.start()
        full.expect(PUBLISHERS)
        assert broker.store.log.pending_bytes >= LIMITS.max_pending_bytes
        # Their heartbeats are not read, and so not missed.
        broker.pass_time(3 * HEARTBEAT_S)
        assert len(broker.app.connections) == PUBLISHERS
        rounds.clear()
        with WireClient.connected(broker.url, channels=1, heartbeat_s=HEARTBEAT_S) as consumer:
            consume(consumer, "old")
            for tag in range(1, MESSAGES + 1):
                consumer.expect(wire_client.BASIC_DELIVER, 1)
                consumer.expect_content(1)
                ack = tag.to_bytes(8, "big") + b"\0"
                consumer.send(wire_client.method(1, wire_client.BASIC_ACK, ack))
            assert declare(consumer, "old") == 0
        # A loop that spins would have thousands.
        assert len(rounds) < 10 * MESSAGES
        pending = broker.store.log.pending_bytes
        assert pending < LIMITS.max_pending_bytes + PUBLISHERS * 2 * READ_BYTES
        disk.recover()
        for publisher in publishers:
            publisher.stop()
        with WireClient.connected(broker.url, channels=1) as client:
            assert declare(client, "new") == sum(publisher.published for publisher in publishers)


def count_rounds(patch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of the times at which the broker reads from its clients."""
    rounds: list[float] = []
    read = Sockets.read

    def read_noted(sockets: Sockets, now: float) -> None:
        rounds.append(now)
        read(sockets, now)

    patch.setattr(Sockets, "read", read_noted)
    return rounds


def test_a_stop_waits_for_the_disk_with_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with (
        ServedApp(str(tmp_path / "store"), drain_s=3600) as broker,
        WireClient.connected(broker.url, channels=1) as client,
    ):
        declare(client, "q")
        client.send(wire_client.confirm_select(1))
        client.expect(wire_client.CONFIRM_SELECT_OK, 1)
        disk.is_slow = True
        for _ in range(MESSAGES):
            client.send(wire_client.publish(1, "q", b"small", PERSISTENT))
        while declare(client, "q") < MESSAGES:
            pass
        broker.send_signal()
        assert not client.has_frame(0.2)
        disk.recover()
        tag = 0
        while tag < MESSAGES:
            tag = int.from_bytes(client.expect(wire_client.BASIC_ACK, 1).arguments[:8], "big")
        client.expect_connection_close(320)
