"""SIGHUP: the configuration of a running broker changes, or with a wrong file nothing does."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.interop import pika_client
from tests.interop.pika_client import connect
from tests.waiting import wait_until

START = "heartbeat_s = 41\nmax_message_bytes = 1000\n"


class Configured:
    """A broker with a configuration file."""

    def __init__(self, tmp_path: Path) -> None:
        self.file = tmp_path / "amqpstore.toml"
        self.file.write_text(START)
        self.broker = BrokerProcess(
            str(tmp_path / "data"), str(tmp_path / "log"), ["--config", str(self.file)]
        )

    def reload(self, said: str) -> str:
        """Send SIGHUP. Returns the log from then on, once it has what is expected."""
        before = len(self.broker.stderr)
        os.kill(self.broker.pid, signal.SIGHUP)
        wait_until(lambda: said in self.broker.stderr[before:])
        return self.broker.stderr[before:]

    def heartbeat_s(self) -> int:
        """Return the heartbeat that a new client is offered."""
        offered: list[int] = []

        def choose(_connection: object, value: int) -> int:
            offered.append(value)
            return value

        parameters = pika.URLParameters(self.broker.url)
        parameters.heartbeat = choose
        pika.BlockingConnection(parameters).close()
        return offered[0]


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Configured]:
    made = Configured(tmp_path)
    with made.broker as broker:
        broker.start()
        yield made


def test_live_keys_change_and_the_others_are_named(configured: Configured) -> None:
    assert configured.heartbeat_s() == 41
    with connect(configured.broker.url) as connection:
        before = connection.channel()
        configured.file.write_text(
            'heartbeat_s = 43\nmax_message_bytes = 10\nsegment_bytes = 65536\nlog_level = "debug"\n'
        )
        log = configured.reload('event="configuration reloaded"')
        assert "key=heartbeat_s from=41 to=43" in log
        assert "needs a restart" in log
        assert "key=segment_bytes from=16777216 to=65536" in log
        assert configured.heartbeat_s() == 43
        with connect(configured.broker.url) as other:
            channel = other.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="311"):
                channel.basic_publish("", "none", b"x" * 11)
                channel.queue_declare("q", exclusive=True)
        # Those that are connected keep their limits.
        before.basic_publish("", "none", b"x" * 11)
        before.queue_declare("q", exclusive=True)
    configured.file.write_text('log_level = "warning"\nsegment_bytes = 65536\n')
    configured.reload("needs a restart")
    log = configured.reload("needs a restart")
    assert "level=info" not in log


def test_free_disk_space_is_a_live_limit(configured: Configured) -> None:
    with connect(configured.broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        blocked: list[object] = []
        connection.add_on_connection_blocked_callback(lambda *_: blocked.append(1))
        unblocked: list[object] = []
        connection.add_on_connection_unblocked_callback(lambda *_: unblocked.append(1))
        configured.file.write_text(f"least_free_bytes = {1 << 60}\n")
        configured.reload('event="configuration reloaded"')
        connection.channel().basic_publish("", "nowhere", b"x")
        pika_client.wait_until(channel, lambda: bool(blocked))
        configured.file.write_text("least_free_bytes = 0\n")
        configured.reload('event="configuration reloaded"')
        pika_client.wait_until(channel, lambda: bool(unblocked))
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))


def test_a_variable_still_precedes_the_file(tmp_path: Path) -> None:
    made = Configured(tmp_path)
    made.broker.environment |= {"AMQPSTORE_HEARTBEAT_S": "7", "AMQPSTORE_HARTBEAT_S": "8"}
    with made.broker as broker:
        broker.start()
        made.file.write_text("heartbeat_s = 43\nmax_message_bytes = 10\n")
        assert "heartbeat_s" not in made.reload('event="configuration reloaded"')
        assert made.heartbeat_s() == 7
        assert 'event="unknown environment variable" variable=AMQPSTORE_HARTBEAT_S' in broker.stderr


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fifo", "regular file"),
        ("directory", "regular file"),
        ("gone", "No such file"),
        ("huge", "more than 1024 KiB"),
        ("binary", "is not TOML"),
        ("key", "hartbeat_s is not a key; did you mean heartbeat_s?"),
        ("value", "must be an integer from 1048576 on"),
        ("definitions", "definitions not loaded"),
        ("definitions fifo", "definitions not loaded"),
    ],
)
def test_a_wrong_file_changes_nothing(configured: Configured, kind: str, reason: str) -> None:
    """A wrong file changes nothing even where most of it is right."""
    file, right = configured.file, 'heartbeat_s = 43\nlog_level = "error"\n'
    other = file.parent / "definitions.json"
    file.unlink()
    match kind:
        case "fifo":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case "huge":
            file.write_text(right + "#" * (1 << 20))
        case "binary":
            file.write_bytes(right.encode() + b'product = "\xff\xfe"')
        case "key":
            file.write_text(right + "hartbeat_s = 5")
        case "value":
            file.write_text(right + "memory_bytes = 5")
        case "definitions":
            other.write_text('{"users": 5}')
            file.write_text(right + f"definitions = '{other}'")
        case "definitions fifo":
            os.mkfifo(other)
            file.write_text(right + f"definitions = '{other}'")
    log = configured.reload(reason)
    assert "Traceback" not in log
    assert configured.heartbeat_s() == 41
    assert "level=info" in configured.broker.stderr[-500:]
    if file.is_dir():
        file.rmdir()
    file.unlink(missing_ok=True)
    file.write_text("heartbeat_s = 43\n")
    configured.reload('event="configuration reloaded"')
    assert configured.heartbeat_s() == 43
