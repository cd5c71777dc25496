"""The verbs for operators, on a running broker and a stopped one."""

import base64
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore_tools.__main__ import main
from amqpstore_tools.administration.client import asked
from tests import waiting
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import wait_until

Told = tuple[int, Any, str]
"""The exit code, stdout as JSON if it is that, and stderr."""

SALT = b"salt"
HASH = base64.b64encode(SALT + hashlib.sha256(SALT + b"secret").digest()).decode()


class Operator:
    """An operator who types commands."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.data = str(directory / "data")
        self._capsys = capsys

    def types(self, *arguments: str, data: str = "", password: str = "") -> Told:
        if password:
            file = self.directory / "password"
            file.write_text(password + "\n")
            arguments = (*arguments, "--password-file", str(file))
        code = main([*arguments, "--json", "--data", data or self.data])
        out, err = self._capsys.readouterr()
        return code, json.loads(out) if out else None, err

    def broker(self, *arguments: str) -> BrokerProcess:
        return BrokerProcess(self.data, str(self.directory / "log"), arguments)


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def connect(
    broker: BrokerProcess, user: str, password: str, vhost: str = "/"
) -> pika.BlockingConnection:
    login = pika.PlainCredentials(user, password)
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, vhost, login)
    return pika.BlockingConnection(parameters)


def end_of(connection: pika.BlockingConnection) -> tuple[int, str]:
    """Wait for the broker to close a connection; its reply code and why."""
    try:
        while True:
            connection.process_data_events(1)
    except pika.exceptions.ConnectionClosedByBroker as error:
        return error.reply_code, error.reply_text.removeprefix("CONNECTION_FORCED - ")


def test_users_of_a_running_broker_from_their_first_login_to_their_last(
    operator: Operator,
) -> None:
    with operator.broker() as broker:
        broker.environment["AMQPSTORE_LOG_LEVEL"] = "debug"
        broker.start()
        add = ("users", "add", "anna", "--tag", "management")
        assert operator.types(*add, password="unlikely one")[0] == 0
        code, _, err = operator.types("users", "add", "anna", password="unlikely two")
        assert (code, err) == (5, "amqpstore users add: user 'anna' exists already\n")
        # A user without permissions does not get in.
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
            connect(broker, "anna", "unlikely one")
        permissions = ("--configure", ".*", "--write", ".*", "--read", ".*")
        assert operator.types("permissions", "set", "anna", *permissions)[0] == 0
        with connect(broker, "anna", "unlikely one") as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            cancelled: list[object] = []
            channel.add_on_cancel_callback(cancelled.append)
            channel.basic_consume("q", lambda *_: None)
            # A revoked right reaches the consumer, and the publisher.
            nothing = ("--configure", "", "--write", "", "--read", "")
            assert operator.types("permissions", "set", "anna", *nothing)[0] == 0
            wait_until(channel, lambda: bool(cancelled))
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                channel.basic_publish("", "q", b"x")
                channel.queue_declare("q", passive=True)
            code, listed, _ = operator.types("connections", "list", "--user", "anna")
            assert (code, [one["user"] for one in listed["connections"]]) == (0, ["anna"])
            name = listed["connections"][0]["name"]
            close = ("connections", "close")
            assert operator.types(*close)[0] == 2
            assert operator.types(*close, "nobody")[0] == 1
            closed = {"done": "1 connection closed"}
            assert operator.types(*close, name, "--reason", "an upgrade")[:2] == (0, closed)
            assert end_of(connection) == (320, "an upgrade")
        with connect(broker, "anna", "unlikely one") as connection:
            assert operator.types("users", "change", "anna", password="unlikely three")[0] == 0
            assert end_of(connection) == (320, "the password of user 'anna' was changed")
        with connect(broker, "anna", "unlikely three") as connection:
            assert operator.types("users", "delete", "anna")[0] == 0
            assert end_of(connection) == (320, "user 'anna' was deleted")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, "anna", "unlikely three")
        assert operator.types("users", "delete", "anna")[0] == 1
        # Passwords are never logged, whatever the level, and whichever login is refused.
        assert "unlikely" not in broker.stderr
        assert "argon2id" not in broker.stderr


def test_a_vhost_is_deleted_under_its_clients_and_a_kill_leaves_the_rest_to_the_next_start(
    operator: Operator,
) -> None:
    with operator.broker() as broker:
        broker.start()
        assert operator.types("vhosts", "add", "shop", "--owner", "guest")[0] == 0
        with connect(broker, "guest", "guest", "shop") as connection:
            channel = connection.channel()
            for number in range(30):
                channel.queue_declare(f"q{number}", durable=True)
            assert operator.types("vhosts", "delete", "shop")[0] == 0
            assert end_of(connection) == (320, "vhost 'shop' was deleted")
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
            connect(broker, "guest", "guest", "shop")
        broker.kill()
        code, found, _ = operator.types("vhosts", "list")
        assert code == 0
        assert [row["name"] for row in found["vhosts"]] == ["/"]


def test_the_same_commands_on_a_stopped_broker(operator: Operator) -> None:
    with operator.broker() as broker:
        broker.start()
        broker.terminate()
        assert not os.path.exists(f"{operator.data}/admin.sock")
        assert operator.types("users", "add", "anna", password="one")[0] == 0
        assert operator.types("policies", "set", "short", "^q", '{"max-length": 1}')[0] == 0
        assert operator.types("policies", "set", "bad", "^q", '{"max-length": -1}')[0] == 5
        code, told, _ = operator.types("policies", "set", "z", "^s", '{"ha-mode": "all"}')
        assert (code, told["done"]) == (0, "policy z in vhost / set")
        (note,) = told["notes"]
        assert note.startswith("policy key 'ha-mode' has no effect: there are no mirrored queues")
        assert operator.types("users", "delete", "guest")[0] == 0
        assert operator.types("users", "delete", "anna")[0] == 5
        assert operator.types("users", "list", data=str(operator.directory))[0] == 4
        broker.start()
        code, found, _ = operator.types("policies", "list")
        assert (code, found["policies"][0]["definition"]) == (0, {"max-length": 1})
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, "guest", "guest")


ASKED_OF_NOTHING = (
    "exchanges explain none key",
    "exchanges explain amq.topic key --vhost none",
    "permissions list --user none",
    "permissions list --vhost none",
    "policies list --vhost none",
    "policies list --operator --vhost none",
    "policies clear none",
    "users delete none",
    "users set-limits none {}",
    "vhosts delete none",
    "vhosts set-limits none {}",
    "messages browse none",
    "messages undo-purge none",
    "definitions export /dev/null --vhost none",
    "connections list --user none",
    "connections list --vhost none",
    "connections close none",
    "connections close --user none",
    "connections close --vhost none",
)


def test_what_is_not_there_is_not_an_empty_list(operator: Operator) -> None:
    """A script that mistypes a name would take it for one that has nothing."""

    def ask_all() -> None:
        for line in ASKED_OF_NOTHING:
            code, found, err = operator.types(*line.split())
            assert (code, found["kind"]) == (1, "NotFoundError"), line
            assert "none'" in err, line
        for line in ("exchanges explain amq.topic k", "permissions list --user guest"):
            assert operator.types(*line.split())[0] == 0
        assert operator.types("exchanges", "explain", "", "k")[0] == 0
        assert operator.types("connections", "close", "--user", "guest")[0] == 0

    with operator.broker() as broker:
        broker.start()
        ask_all()
        broker.terminate()
    ask_all()


def test_what_is_exported_can_be_imported(operator: Operator) -> None:
    exported = operator.directory / "all.json"
    with operator.broker() as broker:
        broker.start()
        operator.types("users", "add", "anna", "--tag", "monitoring", password="one")
        operator.types("permissions", "set-topic", "guest", "e", "--write", "^a", "--read", "^a")
        assert operator.types("users", "set-limits", "anna", '{"max-channels": 7}')[0] == 0
        assert operator.types("users", "set-limits", "anna", '{"max-chanels": 7}')[0] == 5
        assert operator.types("users", "set-limits", "anna", '{"max-channels": "x"}')[0] == 5
        assert operator.types("vhosts", "set-limits", "/", '{"max-queues": 99}')[0] == 0
        operator.types("policies", "set", "limit", ".*", '{"expires": 9999999}', "--operator")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
            channel.queue_declare("mine", exclusive=True)
            channel.queue_declare("passing")
            channel.exchange_declare("e", "topic", durable=True)
            channel.queue_bind("q", "e", "a.#", {"n": 1})
            channel.exchange_bind("e", "amq.fanout")
            assert operator.types("definitions", "export", str(exported))[0] == 0
            of_one = operator.directory / "one.json"
            assert operator.types("definitions", "export", str(of_one), "--vhost", "/")[0] == 0
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    content = json.loads(exported.read_text())
    durable = {queue["name"]: queue["durable"] for queue in content["queues"]}
    assert durable == {"q": True, "passing": False}
    assert content["users"][0]["limits"] == {"max-channels": 7}
    assert {"max-queues": 99} in [one["value"] for one in content["parameters"]]
    assert len(content["bindings"]) == 2
    other = Operator(operator.directory, operator._capsys)
    other.data = str(operator.directory / "other")
    with other.broker() as broker:
        broker.start()
        assert other.types("definitions", "import", str(exported))[1] == {
            "input": str(exported),
            "left_out": [],
            "notes": [],
        }
        again = operator.directory / "again.json"
        assert other.types("definitions", "export", str(again))[0] == 0
        assert json.loads(again.read_text()) == content
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
            connect(broker, "anna", "one")  # the password is right, there is no permission
        # The definitions of one virtual host can be imported into another one.
        assert other.types("vhosts", "add", "shop")[0] == 0
        assert other.types("definitions", "import", str(of_one), "--vhost", "shop")[0] == 0
        assert other.types("definitions", "export", str(again), "--vhost", "shop")[0] == 0
        assert json.loads(again.read_text()) == json.loads(of_one.read_text())
        assert other.types("definitions", "import", str(of_one), "--vhost", "none")[0] == 1
        # What is refused is named, and the rest comes in.
        partly = operator.directory / "partly.json"
        queues = [
            {"vhost": "shop", "name": "lost", "arguments": {"x-max-lenght": 5}},
            {"vhost": "shop", "name": "came", "arguments": {"x-queue-version": 2}, "node": "n"},
        ]
        partly.write_text(json.dumps({"queues": queues, "vhosts": [{"name": 7}]}))
        code, answer = other.types("definitions", "import", str(partly))[:2]
        assert code == 1
        assert ["'x-max-length' meant" in one for one in answer["left_out"]] == [False, True]
        assert len(answer["notes"]) == 2
        assert "field 'node' of queue 'came' has no effect: nothing reads it" in answer["notes"]
        assert other.types("definitions", "export", str(again), "--vhost", "shop")[0] == 0
        names = [queue["name"] for queue in json.loads(again.read_text())["queues"]]
        assert "came" in names
        assert "lost" not in names


def test_a_hash_of_rabbitmq_is_replaced_at_the_first_right_login(operator: Operator) -> None:
    file = operator.directory / "rabbit.json"
    everything = {"user": "anna", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    user = {"name": "anna", "password_hash": HASH, "tags": "monitoring"}
    file.write_text(json.dumps({"users": [user], "permissions": [everything]}))
    config = operator.directory / "broker.toml"
    config.write_text(f"definitions = {str(file)!r}\n")

    def kept() -> Any:
        return operator.types("users", "list")[1]["users"][0]

    with operator.broker("--config", str(config)) as broker:
        broker.start()
        assert kept()["password"] == "rabbit_password_hashing_sha256"
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, "anna", "wrong")
        assert kept()["password"] == "rabbit_password_hashing_sha256"
        connect(broker, "anna", "secret").close()
        assert (kept()["tags"], kept()["password"]) == (["monitoring"], "argon2")
        # The same file again changes nothing, and ends no connection.
        broker.kill()
        broker.start()
        with connect(broker, "anna", "secret") as connection:
            assert operator.types("definitions", "import", str(file))[0] == 0
            connection.channel().close()
        assert kept()["password"] == "argon2"


def test_the_admin_socket_is_for_its_user_alone_and_survives_a_kill(operator: Operator) -> None:
    with operator.broker() as broker:
        broker.start()
        path = f"{operator.data}/admin.sock"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        broker.kill()
        assert os.path.exists(path)
        broker.start()
        assert operator.types("users", "list")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_kernel_says_who_connects_whatever_the_mode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The broker still refuses other users if the modes of the socket and of its directory were
    changed.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        os.chmod(directory, 0o755)
        operator = Operator(Path(directory), capsys)
        with operator.broker() as broker:
            broker.start()
            path = f"{operator.data}/admin.sock"
            os.chmod(operator.data, 0o755)
            os.chmod(path, 0o666)
            program = (
                "import os, socket; client = socket.socket(socket.AF_UNIX);"
                "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
                f"client.connect({path!r});"
                """client.sendall(b'\\0\\0\\0\\x14{"do": "users list"}');"""
                "print(client.recv(9999))"
            )
            asked = subprocess.run(
                [sys.executable, "-I", "-c", program],
                capture_output=True,
                text=True,
                check=False,
            )
            # Closed at once, or before the request was sent.
            assert asked.stdout in ("b''\n", ""), asked.stdout
            waiting.wait_until(lambda: "uid=65534" in broker.stderr)
            assert operator.types("users", "list")[0] == 0


ODD = (
    b"",
    b"\0\0",
    b"\xff\xff\xff\xff" + b"x" * 100,
    b"\0\0\0\5hello",
    b"\0\0\0\2[]",
    b'\0\0\0\x0e{"do": "none"}',
    b"\0\0\x10\0" + b"[" * 4096,
)


def test_odd_requests_do_no_harm(operator: Operator) -> None:
    with operator.broker() as broker:
        broker.start()
        for sent in ODD:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(f"{operator.data}/admin.sock")
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                try:
                    answer = client.recv(1 << 16)
                except ConnectionResetError:
                    continue  # it was closed with something unread
                assert b"result" not in answer
        assert operator.types("users", "list")[0] == 0
        assert "Traceback" not in broker.stderr


def test_a_route_is_explained_by_a_running_broker(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    with operator.broker() as broker:
        broker.start()
        with connect(broker, "guest", "guest") as connection:
            channel = connection.channel()
            channel.queue_declare("orders", arguments={"x-dead-letter-exchange": "morgue"})
            channel.queue_bind("orders", "amq.headers", arguments={"x-match": "all", "eu": True})
            asked = "exchanges", "explain", "amq.headers", "k", "--headers"
            code, explanation, _ = operator.types(*asked, '{"eu": true}')
            assert code == 0
            assert [queue["name"] for queue in explanation["queues"]] == ["orders"]
            code, explanation, _ = operator.types(*asked, '{"eu": 1}')
            assert (code, explanation["queues"]) == (0, [])
            code, _, err = operator.types(*asked, "{}", "--properties", '{"colour": 1}')
            assert code == 5
            assert "no property 'colour'" in err
            assert operator.types("exchanges", "explain", "", "k", "--vhost", "none")[0] == 1
            assert main([*asked, '{"eu": true}', "--data", operator.data]) == 0
            shown = capsys.readouterr().out
            assert "x-match all: 1 of 1 headers match: 'eu'" in shown
            assert "morgue" in shown
            assert channel.queue_declare("orders", passive=True).method.message_count == 0


def test_the_data_directory_is_that_of_the_configuration(
    operator: Operator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with operator.broker() as broker:
        broker.start()
        monkeypatch.setenv("AMQPSTORE_DATA", operator.data)
        assert main(["vhosts", "list", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["vhosts"][0]["name"] == "/"
    monkeypatch.delenv("AMQPSTORE_DATA")
    file = tmp_path / "amqpstore.toml"
    file.write_text(f"data = '{operator.data}'\n")
    monkeypatch.setenv("AMQPSTORE_CONFIG", str(file))
    assert main(["users", "list", "--json"]) == 0
    file.write_text("data = 5\n")
    assert main(["users", "list"]) == 2
    assert "name the data directory with --data" in capsys.readouterr().err


def test_a_running_broker_tells_where_a_message_came_from(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    with operator.broker() as broker:
        broker.start()
        with connect(broker, "guest", "guest") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("morgue", durable=True)
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"}
            channel.queue_declare("orders", durable=True, arguments=dead)
            persistent = pika.BasicProperties(delivery_mode=2, message_id="m1")
            channel.basic_publish("", "orders", b"letter", persistent)
            method, _, _ = channel.basic_get("orders")
            channel.basic_reject(getattr(method, "delivery_tag", 0), requeue=False)

            def letters() -> bool:
                declared = channel.queue_declare("morgue", durable=True, passive=True)
                return bool(declared.method.message_count)

            wait_until(channel, letters)
        request = {"do": "messages provenance", "vhost": "/", "queue": "orders", "position": 1}
        answer = asked(operator.data, request)
        assert [trail["became"] for trail in answer["trail"]] == [[2], []]
        assert answer["trail"][1]["deaths"][0]["queue"] == "orders"
        by_id = asked(operator.data, {"do": "messages provenance-of-id", "id": 2})
        assert [place["queue"] for place in by_id["trail"][0]["now_in"]] == ["morgue"]
        live = ["inspect", operator.data, "--live", "message", "--queue", "morgue"]
        assert main([*live, "--position", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["provenance"]["trail"][0]["id"] == 2
        broker.kill()
    stopped = ["inspect", operator.data, "message", "1"]
    assert main([*stopped, "--json"]) == 0
    provenance = json.loads(capsys.readouterr().out)["provenance"]
    whats = [(step["what"], step["queue"]) for step in provenance["trail"][0]["steps"]]
    assert whats[0] == ("enqueued", "orders")
    assert whats[-1] == ("left", "orders")
    assert main(stopped) == 0
    shown = capsys.readouterr().out
    assert "message 1 became message 2" in shown
    assert "died in orders: rejected" in shown
    assert main([*stopped, "--queue", "orders", "--position", "1"]) == 2
    assert "takes an ID, or --queue and --position" in capsys.readouterr().err
