"""A definitions file at start and on SIGHUP: users, permissions, policies, topology."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.broker_process import BrokerProcess, BrokerStartError
from tests.interop.pika_client import wait_until

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def hashed(password: str) -> str:
    """Return the hash of a password as RabbitMQ writes it."""
    salt = os.urandom(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def definitions() -> dict[str, Any]:
    return {
        "users": [
            {"name": "anna", "password_hash": hashed("secret"), "tags": []},
            {"name": "bert", "password": "other", "tags": ""},
        ],
        "vhosts": [{"name": "/"}, {"name": "shop"}],
        "permissions": [
            {"user": "anna", "vhost": "shop", **ALL},
            {"user": "bert", "vhost": "shop", "configure": "", "write": "", "read": "^orders$"},
        ],
        "policies": [
            {
                "vhost": "shop",
                "name": "short",
                "pattern": "^orders$",
                "apply-to": "queues",
                "priority": 1,
                "definition": {"max-length": 2},
            }
        ],
        "queues": [
            {
                "vhost": "shop",
                "name": "orders",
                "durable": True,
                "auto_delete": False,
                "arguments": {},
            }
        ],
        "exchanges": [
            {
                "vhost": "shop",
                "name": "sales",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "bindings": [
            {
                "vhost": "shop",
                "source": "sales",
                "destination": "orders",
                "destination_type": "queue",
                "routing_key": "order.#",
                "arguments": {},
            }
        ],
    }


class Served:
    """A broker whose definitions are in a file."""

    def __init__(self, tmp_path: Path) -> None:
        self.file = tmp_path / "definitions.json"
        config = tmp_path / "amqpstore.toml"
        config.write_text(f"definitions = {str(self.file)!r}\n")
        self.broker = BrokerProcess(
            str(tmp_path / "data"), str(tmp_path / "log"), ["--config", str(config)]
        )

    def write(self, content: object) -> None:
        self.file.write_text(json.dumps(content))

    def connect(self, user: str, password: str, vhost: str = "shop") -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.broker.port,
                vhost,
                pika.PlainCredentials(user, password),
            )
        )


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def ready(channel: pika.adapters.blocking_connection.BlockingChannel) -> int:
    return int(channel.queue_declare("orders", passive=True).method.message_count)


def test_users_permissions_policies_and_topology_are_there_at_the_start(served: Served) -> None:
    served.write(definitions())
    with served.broker as broker:
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(3):
                channel.basic_publish("sales", f"order.{number}", b"%d" % number, mandatory=True)
            assert ready(channel) == 2
        with served.connect("bert", "other") as connection:
            assert connection.channel().basic_get("orders", auto_ack=True)[2] == b"1"
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                connection.channel().queue_declare("mine")


def test_a_user_without_permissions_cannot_open_the_virtual_host(served: Served) -> None:
    served.write(definitions())
    with served.broker as broker:
        broker.start()
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
            served.connect("anna", "secret", "/")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            served.connect("anna", "wrong")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            served.connect("guest", "guest")


def test_policies_follow_the_file_on_sighup_and_stay_after_a_kill(served: Served) -> None:
    content = definitions()
    served.write(content)
    with served.broker as broker:
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            content["policies"][0]["definition"] = {"max-length": 5}
            served.write(content)
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(channel, lambda: "definitions read" in broker.stderr)
            for _ in range(7):
                channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2))
            assert ready(channel) == 5
        broker.kill()
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            assert ready(channel) == 5
            channel.basic_publish("", "orders", b"x")
            assert ready(channel) == 5
            content["policies"] = []
            served.write(content)
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(channel, lambda: broker.stderr.count("definitions read") == 2)
            channel.basic_publish("", "orders", b"x")
            assert ready(channel) == 6


def test_definitions_that_are_wrong_stop_the_start_and_are_not_reloaded(served: Served) -> None:
    served.write({"vhosts": 1})
    with served.broker as broker:
        with pytest.raises(BrokerStartError) as raised:
            broker.start()
        assert raised.value.exit_code == 2
        assert "$.vhosts" in broker.stderr
        served.write(definitions())
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel = connection.channel()
            served.write({"policies": 7})
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(channel, lambda: "definitions not loaded" in broker.stderr)
            assert ready(channel) == 0


def test_an_impersonator_publishes_in_the_name_of_others(served: Served) -> None:
    """E17: a user may do so with the tag, and not any more once it is gone."""
    content = definitions()
    content["users"][0]["tags"] = ["impersonator"]
    served.write(content)
    foreign = pika.BasicProperties(user_id="somebody")
    with served.broker as broker:
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel = connection.channel()
            channel.basic_publish("", "orders", b"x", foreign)
            _, properties, _ = channel.basic_get("orders", auto_ack=True)
            assert properties is not None
            assert properties.user_id == "somebody"
            content["users"][0]["tags"] = []
            served.write(content)
            reload(served, channel)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
                channel.basic_publish("", "orders", b"x", foreign)
                channel.basic_get("orders")


def reload(served: Served, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    """Have the broker read its file again."""
    before = served.broker.stderr.count("definitions read")
    os.kill(served.broker.pid, signal.SIGHUP)
    wait_until(channel, lambda: served.broker.stderr.count("definitions read") > before)


def test_a_sighup_takes_permissions_from_open_connections(served: Served) -> None:
    content = definitions()
    content["topic_permissions"] = []
    served.write(content)
    with served.broker as broker:
        broker.start()
        with served.connect("anna", "secret") as connection:
            channel, other = connection.channel(), connection.channel()
            channel.basic_publish("sales", "order.1", b"x")
            other.queue_purge("orders")
            cancelled: list[object] = []
            channel.add_on_cancel_callback(cancelled.append)
            channel.basic_consume("orders", lambda *_: None)
            # Topic permissions alone say nothing of the others, which stay.
            limit = {
                "user": "anna",
                "vhost": "shop",
                "exchange": "sales",
                "write": "^a",
                "read": "",
            }
            served.write({"topic_permissions": [limit]})
            reload(served, channel)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                other.basic_publish("sales", "order.1", b"x")
                other.queue_declare("orders", passive=True)
            assert not cancelled
            content["permissions"][0].update(configure="", write="", read="")
            served.write(content)
            reload(served, channel)
            wait_until(channel, lambda: bool(cancelled))
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                connection.channel().queue_purge("orders")
        with (
            served.connect("anna", "secret") as connection,
            pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"),
        ):
            connection.channel().basic_get("orders")


def test_no_file_ends_a_running_broker(served: Served) -> None:
    """More files of this kind are in the unit tests of importing."""
    served.write(definitions())
    with served.broker as broker:
        broker.start()
        with served.connect("anna", "secret") as connection:
            for number, content in enumerate(
                (
                    {"users": [{"name": "u" * 600, "password_hash": ""}]},
                    {"vhosts": [{"name": "v" * 600}]},
                    {"policies": [{**definitions()["policies"][0], "name": "p" * 600}]},
                    {"policies": [{**definitions()["policies"][0], "priority": 1 << 70}]},
                    "a file",
                ),
                1,
            ):
                served.write(content)
                os.kill(broker.pid, signal.SIGHUP)
                channel = connection.channel()
                wait_until(
                    channel,
                    lambda: (
                        broker.stderr.count("definition left out")
                        + broker.stderr.count("definitions not loaded")
                        >= number  # noqa: B023
                    ),
                )
                assert ready(channel) == 0
        assert "Traceback" not in broker.stderr


def test_a_sighup_of_a_broker_without_definitions(tmp_path: Path) -> None:
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        os.kill(broker.pid, signal.SIGHUP)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            wait_until(connection.channel(), lambda: "configuration reloaded" in broker.stderr)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_while_it_starts(served: Served, number: signal.Signals) -> None:
    """The signal comes where a test can stop the start: in `App`, which is made before any port is
    open. SIGHUP is ignored there, and SIGTERM ends the process, which has nothing left to do.
    """
    program = f"""
import os, signal, sys
from amqpstore_server import app
from amqpstore_tools.__main__ import main
made = app.App.__init__
def make(self, *arguments):
    os.kill(os.getpid(), signal.{number.name})
    made(self, *arguments)
app.App.__init__ = make
sys.argv[1:] = ["serve", "--data", {str(served.file.parent / "own")!r}, "--listen", "127.0.0.1:0"]
sys.exit(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if number is signal.SIGTERM:
            assert process.wait(20) == 0
            return
        assert b" ready: " in process.stdout.readline()
        assert process.poll() is None
        process.terminate()
        assert process.wait(20) == 0


def test_no_port_is_open_while_a_start_takes_long(served: Served) -> None:
    """A client that waits for a port would go on too early."""
    program = f"""
import socket, sys
from amqpstore_server import app
from amqpstore_tools.__main__ import main
opened = []
create = app.listen
async def listen(*arguments):
    opened.extend(found := await create(*arguments))
    return found
made = app.App.__init__
def make(self, *arguments):
    made(self, *arguments)
    sys.exit(len(opened))
app.listen, app.App.__init__ = listen, make
sys.argv[1:] = ["serve", "--data", {str(served.file.parent / "late")!r}, "--listen", "127.0.0.1:0"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
