"""A broker serves all the same if its log and ready line are not read, or cannot be written."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pika
import pika.exceptions

from tests.broker_process import EXIT_TIMEOUT_S, REPOSITORY, serve_command
from tests.etcd_process import free_port
from tests.waiting import wait_until

CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
"""Starts a command without any of the standard streams."""


def start(
    directory: Path,
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    through: Sequence[str] = (),
) -> "Broker":
    port = free_port()
    command = serve_command(str(directory / "store"), ["--log-level", "debug"])
    command[command.index("127.0.0.1:0")] = f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [*through, *command],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    return Broker(process, port)


class Broker:
    """A process with a known port, as its ready line may never be seen."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self._parameters = pika.ConnectionParameters("127.0.0.1", port, socket_timeout=20)

    def __enter__(self) -> "Broker":
        wait_until(self._is_up, "the broker")
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()

    def _is_up(self) -> bool:
        try:
            self.connect().close()
        except pika.exceptions.AMQPError:
            return False
        return True

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(self._parameters)

    def serves(self) -> None:
        """Publish with confirms, beside clients that come and go, whose lines fill the log."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            for _ in range(10):
                self.connect().close()
                channel.basic_publish("", "orders", b"one", pika.BasicProperties(delivery_mode=2))
            assert channel.queue_declare("orders", passive=True).method.message_count == 10


def test_a_log_and_a_ready_line_that_nobody_reads(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    os.write(writer, b"x" * 4096)  # not even the first line fits
    os.set_blocking(writer, True)
    with start(tmp_path, stdout=writer, stderr=writer) as broker:
        os.close(writer)
        broker.serves()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(EXIT_TIMEOUT_S) == 0
    os.close(reader)


def test_a_log_and_a_ready_line_on_a_full_disk(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, start(tmp_path, stdout=full, stderr=full) as broker:
        broker.serves()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(EXIT_TIMEOUT_S) == 0


def test_a_broker_that_is_started_without_streams(tmp_path: Path) -> None:
    """The broker's files do not get the descriptors of the missing streams."""
    null = subprocess.DEVNULL
    with start(tmp_path, stdout=null, stderr=null, through=CLOSED) as broker:
        files = Path(f"/proc/{broker.process.pid}/fd")
        assert {os.readlink(files / name) for name in "012"} == {os.devnull}
        broker.serves()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(EXIT_TIMEOUT_S) == 0


def test_an_error_that_nobody_reads_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "stranger").touch()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
    os.set_blocking(writer, True)
    command = serve_command(str(tmp_path / "store"))
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=writer, stderr=writer)
    assert process.wait(EXIT_TIMEOUT_S) == 4
    os.close(reader)
    os.close(writer)
