"""SIGTERM: what clients were promised is kept, and what they still do is waited for, but not for
ever.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, serve_command
from tests.conformance import wire_client as wire
from tests.conformance.wire_client import WireClient
from tests.waiting import WAIT_S, wait_until

PERSISTENT = b"\x10\x00\x02"
"""Property flags, and the delivery mode."""

LONG_S = 3600
GOODBYE_S = 60
"""More than clients are given to answer the close, on a busy machine, and less than `LONG_S`."""


@pytest.fixture
def broker(stopped_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that waits very long for its clients."""
    stopped_broker.environment["AMQPSTORE_DRAIN_S"] = str(LONG_S)
    with stopped_broker as broker:
        broker.start()
        yield broker


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return wire.method(1, wire.BASIC_ACK, struct.pack(">QB", tag, multiple))


def connected(broker: BrokerProcess, queue: str = "q") -> WireClient:
    """A client with a channel, and a durable queue."""
    client = WireClient.connected(broker.url, channels=1)
    client.send(wire.queue_declare(1, queue, bits=0b00010))
    client.expect(wire.QUEUE_DECLARE_OK, 1)
    return client


def with_unacked(broker: BrokerProcess, *bodies: bytes) -> WireClient:
    """A client to which these messages were delivered."""
    client = connected(broker)
    for body in bodies:
        client.send(wire.publish(1, "q", body, PERSISTENT))
    client.send(wire.basic_consume(1, "q", "c", no_ack=False))
    client.expect(wire.BASIC_CONSUME_OK, 1)
    for body in bodies:
        client.expect(wire.BASIC_DELIVER, 1)
        assert client.expect_content()[1] == body
    return client


def stop(broker: BrokerProcess) -> None:
    """Send SIGTERM, and return once the broker has noticed."""
    before = broker.stderr.count("event=stopping ")
    os.kill(broker.pid, signal.SIGTERM)
    wait_until(lambda: broker.stderr.count("event=stopping ") > before)


def left(broker: BrokerProcess) -> int:
    """Return how many messages are in the queue after a restart."""
    broker.start()
    with connected(broker) as client:
        return client.ready("q")


def test_signals_that_have_no_meaning_end_nothing(broker: BrokerProcess) -> None:
    with connected(broker) as client:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(broker.pid, number)
        client.expect_alive()


def test_acks_of_what_was_delivered_are_waited_for(broker: BrokerProcess) -> None:
    with with_unacked(broker, b"1", b"2", b"3") as client, with_unacked(broker) as idle:
        stop(broker)
        idle.expect_connection_close(320)
        client.send(ack(1))
        client.send(ack(3, multiple=True))
        assert "shut down" in client.expect_connection_close(320).reply_text
        assert broker.exit_code() == 0
    assert left(broker) == 0


def test_nothing_is_delivered_and_nobody_accepted_meanwhile(broker: BrokerProcess) -> None:
    with with_unacked(broker, b"1") as client:
        stop(broker)
        client.send(wire.publish(1, "q", b"2", PERSISTENT))
        assert client.ready("q") == 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port))
        client.send(ack(1))
        client.expect_connection_close(320)
        assert broker.exit_code() == 0
    assert left(broker) == 1


def test_an_ack_in_a_transaction_is_waited_for_until_the_commit(broker: BrokerProcess) -> None:
    with connected(broker) as client:
        client.send(wire.method(1, wire.TX_SELECT))
        client.expect(wire.TX_SELECT_OK, 1)
        client.send(wire.publish(1, "q", b"1", PERSISTENT), wire.method(1, wire.TX_COMMIT))
        client.expect(wire.TX_COMMIT_OK, 1)
        client.send(wire.basic_consume(1, "q", "c", no_ack=False))
        client.expect(wire.BASIC_CONSUME_OK, 1)
        client.expect(wire.BASIC_DELIVER, 1)
        client.expect_content()
        stop(broker)
        client.send(ack(1), wire.publish(1, "q", b"2", PERSISTENT), wire.publish(1, "q", b"3"))
        client.ready("q")
        client.send(wire.method(1, wire.TX_COMMIT))
        client.expect(wire.TX_COMMIT_OK, 1)
        client.expect_connection_close(320)
        assert broker.exit_code() == 0
    assert left(broker) == 1


def test_what_was_read_of_a_publisher_is_confirmed(broker: BrokerProcess) -> None:
    """All that is in the queue afterwards was confirmed: a publisher that sends the rest again
    sends nothing twice.
    """
    with connected(broker) as client:
        client.send(wire.confirm_select(1))
        client.expect(wire.CONFIRM_SELECT_OK, 1)
        client.socket.setblocking(False)
        message = wire.publish(1, "q", b"x" * 1000, PERSISTENT) * 50
        unsent = message
        is_signalled = False
        received = b""
        deadline = time.monotonic() + 60
        while not received or wire.method(0, wire.CONNECTION_CLOSE)[7:11] not in received:
            assert time.monotonic() < deadline
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[client.socket.send(unsent) :] or message
            with contextlib.suppress(BlockingIOError):
                received += client.socket.recv(1 << 16)
                if not is_signalled and confirmed_count(received) > 1000:
                    is_signalled = True
                    os.kill(broker.pid, signal.SIGTERM)
        client.socket.setblocking(True)
        client.send_to_closing_peer(wire.method(0, wire.CONNECTION_CLOSE_OK))
    assert broker.exit_code() == 0
    assert left(broker) == confirmed_count(received) > 1000


def confirmed_count(octets: bytes) -> int:
    """The highest tag that basic.ack frames on channel 1 name; each is for all before it."""
    at = highest = 0
    while at + 8 <= len(octets):
        _, channel, size = struct.unpack_from(">BHI", octets, at)
        if channel == 1 and octets[at + 7 : at + 11] == struct.pack(">HH", *wire.BASIC_ACK):
            (tag,) = struct.unpack_from(">Q", octets, at + 11)
            highest = max(highest, tag)
        at += 8 + size
    return highest


def test_the_goodbye_of_a_blocked_publisher_is_read(stopped_broker: BrokerProcess) -> None:
    """The client's goodbye comes behind publishes that are discarded: they were held, and not
    confirmed.
    """
    stopped_broker.environment["AMQPSTORE_MEMORY_WATERMARK"] = "1048576"
    with stopped_broker as broker:
        broker.start()
        with WireClient.connected(
            broker.url, channels=1, capabilities=("connection.blocked",)
        ) as client:
            client.send(wire.queue_declare(1, "q", bits=0b00010))
            client.expect(wire.QUEUE_DECLARE_OK, 1)
            wait_until(lambda: "memory is short" in broker.stderr)
            message = wire.publish(1, "q", b"1", PERSISTENT)
            client.send(message)
            client.expect(wire.CONNECTION_BLOCKED, 0)
            client.send(message * 1000)
            os.kill(broker.pid, signal.SIGTERM)
            client.expect_connection_close(320)
        assert broker.exit_code() == 0
        assert "did not answer the close" not in broker.stderr
        del broker.environment["AMQPSTORE_MEMORY_WATERMARK"]
        assert left(broker) == 0


def test_the_deadline_ends_the_wait_for_acks_and_for_answers(
    stopped_broker: BrokerProcess,
) -> None:
    stopped_broker.environment["AMQPSTORE_DRAIN_S"] = "1"
    with stopped_broker as broker:
        broker.start()
        # It neither acks nor answers the close.
        with with_unacked(broker, b"1", b"2"), WireClient(broker.url):
            began = time.monotonic()
            assert broker.terminate() == 0
            assert 1 <= time.monotonic() - began < 1 + GOODBYE_S
        assert "connections before they are quiet" in broker.stderr
        assert "did not answer the close" in broker.stderr
        broker.start()
        with with_unacked(broker) as client:
            # They were requeued, and are flagged.
            for body in (b"1", b"2"):
                arguments = client.expect(wire.BASIC_DELIVER, 1).arguments
                assert arguments[2 + 8] == 1
                assert client.expect_content()[1] == body


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_wait(broker: BrokerProcess, second: signal.Signals) -> None:
    with with_unacked(broker, b"1"):
        stop(broker)
        os.kill(broker.pid, signal.SIGHUP)
        began = time.monotonic()
        assert broker.terminate(second) == 0
        assert time.monotonic() - began < GOODBYE_S
    assert "stopping at once" in broker.stderr
    assert left(broker) == 1


# The service manager.


class Manager:
    """The socket of a service manager. A thread reads it all the time: it holds few messages, and
    what finds it full is lost.
    """

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._told: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while message := self._socket.recv(4096):
            self._told.put(message)

    def next(self) -> bytes:
        """Return what it is told next."""
        return self._told.get(timeout=WAIT_S)

    def told(self) -> dict[str, str]:
        """Return the next message to the service manager, except signs of life."""
        while (message := self.next()) == b"WATCHDOG=1":
            pass
        return dict(line.split("=", 1) for line in message.decode().splitlines())

    def rest(self) -> list[bytes]:
        """Return all other messages to the service manager, which gets none from then on."""
        self._socket.shutdown(socket.SHUT_RD)  # behind all that was sent
        self._thread.join()
        return [self._told.get() for _ in range(self._told.qsize())]

    def close(self) -> None:
        self.rest()
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


def test_the_service_manager_is_told_of_start_reload_and_stop(
    stopped_broker: BrokerProcess, manager: Manager
) -> None:
    stopped_broker.environment["NOTIFY_SOCKET"] = manager.address
    with stopped_broker as broker:
        broker.start()
        ready = manager.told()
        assert ready["READY"] == "1"
        assert f":{broker.port}" in ready["STATUS"]
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        os.kill(broker.pid, signal.SIGHUP)
        reloading = manager.told()
        assert reloading["RELOADING"] == "1"
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert before_us <= int(reloading["MONOTONIC_USEC"]) <= now_us
        assert manager.told() == {"READY": "1", "STATUS": "configuration reloaded"}
        assert broker.terminate() == 0
        stopping = manager.told()
        assert stopping["STOPPING"] == "1"
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 5_000_000


def test_signs_of_life_come_as_often_as_they_are_expected(
    stopped_broker: BrokerProcess, manager: Manager
) -> None:
    stopped_broker.environment |= {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "90000"}
    with stopped_broker as broker:
        broker.start()
        for _ in range(5):
            while manager.next() != b"WATCHDOG=1":
                pass
        broker.terminate()
        stopped_broker.environment["WATCHDOG_PID"] = "1"
        broker.start()
        while "READY" not in manager.told():
            pass
        broker.terminate()
        assert "STOPPING" in manager.told()
        assert b"WATCHDOG=1" not in manager.rest()


@pytest.mark.parametrize("address", ["/nowhere/notify", "@amqpstore-nobody-listens", "relative"])
def test_a_service_manager_that_does_not_listen_is_no_obstacle(
    stopped_broker: BrokerProcess, address: str
) -> None:
    stopped_broker.environment["NOTIFY_SOCKET"] = address
    with stopped_broker as broker:
        broker.start()
        assert broker.terminate() == 0
    assert "Traceback" not in broker.stderr


def test_the_first_process_of_a_container_can_be_stopped_while_it_starts(
    tmp_path: Path,
) -> None:
    """The kernel keeps signals from it that it has no handler for."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    # Hashing the passwords takes longer than the test.
    users = [{"name": f"user{number}", "password": "secret"} for number in range(10_000)]
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps({"users": users}))
    command = [*unshare, "--kill-child", *serve_command(str(tmp_path / "data"))]
    environment = {**os.environ, "AMQPSTORE_DEFINITIONS": str(definitions)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            assert b"event=configuration" in process.stderr.readline()
            wait_until(lambda: (tmp_path / "data" / "STORE").exists())
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
