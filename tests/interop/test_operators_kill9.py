"""`kill -9` while a virtual host or a user is deleted, or definitions are imported.

Afterwards, and after the next start, a deletion is done or has not begun, and an import can be
repeated: nothing is left that belongs to nothing.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore_tools.offline.catalog import current_catalog
from tests.broker_process import BrokerProcess
from tests.waiting import wait_until

QUEUES = 60
MANY_QUEUES = 1500
"""Enough queues to be deleted in fifteen steps."""

MIDDLES = 2
TURNS = 12
"""At most `TURNS` kills are tried until `MIDDLES` of them have come between two of the steps."""

COMMAND_S = 60


def amqpstore(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "amqpstore_tools", *arguments]


def definitions(vhost: str, user: str, queues: int = QUEUES) -> dict[str, Any]:
    """A virtual host with queues, an exchange, bindings and a policy, and a user of it."""
    return {
        "users": [{"name": user, "password_hash": "", "tags": ["monitoring"]}],
        "vhosts": [{"name": vhost}],
        "permissions": [
            {"user": one, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            for one in (user, "guest")
        ],
        "topic_permissions": [
            {"user": user, "vhost": vhost, "exchange": "e", "write": "^a", "read": ".*"}
        ],
        "policies": [
            {
                "name": "short",
                "vhost": vhost,
                "pattern": "^q",
                "apply-to": "queues",
                "priority": 0,
                "definition": {"max-length": 1000},
            }
        ],
        "exchanges": [
            {
                "name": "e",
                "vhost": vhost,
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "queues": [
            {
                "name": f"q{number}",
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": {},
            }
            for number in range(queues)
        ],
        "bindings": [
            {
                "source": "e",
                "vhost": vhost,
                "destination": f"q{number}",
                "destination_type": "queue",
                "routing_key": "#",
                "arguments": {},
            }
            for number in range(queues)
        ],
    }


def of_vhost(found: dict[str, Any], vhost: str) -> dict[str, list[Any]]:
    """Return the rows of a virtual host in a file of definitions."""
    return {
        kind: [row for row in rows if vhost in (row.get("vhost"), row.get("name"))]
        for kind, rows in found.items()
        if kind != "users" and isinstance(rows, list)
    }


class Killed:
    """A broker that is killed while an operator's command is at work."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self.data = str(tmp_path / "store")
        self.broker = BrokerProcess(self.data, f"{self.data}.log")
        self.random = random.Random(seed)
        self._file = tmp_path / "definitions.json"
        self._took_s: dict[str, float] = {}

    def runs(self, *arguments: str) -> None:
        command = amqpstore(*arguments, "--data", self.data)
        subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)

    def imports(self, content: dict[str, Any]) -> tuple[str, ...]:
        self._file.write_text(json.dumps(content))
        return "definitions", "import", str(self._file)

    def exported(self) -> dict[str, Any]:
        """Export the definitions of the running broker."""
        file = f"{self.data}.exported"
        self.runs("definitions", "export", file)
        found: dict[str, Any] = json.loads(Path(file).read_text())
        return found

    def kill_during(
        self, *arguments: str, has_begun: Callable[[], bool], within_s: float = 0.05
    ) -> int:
        """Run a command, and kill the broker at a random moment once it has begun to work. Returns
        how many queues were in the store then.
        """
        command = amqpstore(*arguments, "--data", self.data)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            wait_until(lambda: has_begun() or process.poll() is not None, "it has begun")
            time.sleep(self.random.random() * within_s)  # any moment: nothing waits for it
            self.broker.kill()
            process.communicate(timeout=COMMAND_S)
        with current_catalog(self.data) as catalog:
            left = sum(1 for _ in catalog.rows("queues"))
        self.broker.start()
        return left

    def check(self) -> None:
        """Stop the broker, and check the store."""
        assert self.broker.terminate() == 0
        subprocess.run(amqpstore("check", self.data), check=True, timeout=COMMAND_S)
        self.broker.start()


def fill(broker: BrokerProcess, vhost: str) -> None:
    """Publish a message to each queue of a virtual host, and have it confirmed."""
    url = broker.url.replace("%2F", vhost)
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("e", "a", b"kept", pika.BasicProperties(delivery_mode=2))


def messages_of(broker: BrokerProcess, vhost: str, queues: int) -> list[int]:
    """Return how many messages each of the queues has."""
    url = broker.url.replace("%2F", vhost)
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        return [
            channel.queue_declare(f"q{number}", passive=True).method.message_count
            for number in range(queues)
        ]


@pytest.mark.long
@pytest.mark.rounds(2)
def test_a_kill_during_the_deletion_of_a_virtual_host(tmp_path: Path, seed: int) -> None:
    """Killed between two steps of the deletion, it goes on at the next start."""
    killed = Killed(tmp_path, seed)
    in_the_middle, within_s = 0, 0.05
    with killed.broker as broker:
        broker.start()
        for turn in range(TURNS):
            vhost = f"v{turn}"
            killed.runs(*killed.imports(definitions(vhost, "anna", MANY_QUEUES)))
            fill(broker, vhost)
            whole = of_vhost(killed.exported(), vhost)
            asked = broker.stderr.count("vhost deleted")
            left = killed.kill_during(
                *("vhosts", "delete", vhost),
                has_begun=partial(begun, broker, asked),
                within_s=within_s,
            )
            names = [row["name"] for row in killed.exported()["vhosts"]]
            if vhost in names:
                assert left == MANY_QUEUES
                assert of_vhost(killed.exported(), vhost) == whole
                assert messages_of(broker, vhost, MANY_QUEUES) == [1] * MANY_QUEUES
                killed.runs("vhosts", "delete", vhost)
            else:
                assert not any(of_vhost(killed.exported(), vhost).values())
                # One of the same name has nothing of it.
                killed.runs("vhosts", "add", vhost, "--owner", "guest")
                url = broker.url.replace("%2F", vhost)
                with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                    declared = connection.channel().queue_declare("q0", durable=True)
                    assert declared.method.message_count == 0
                    connection.channel().queue_delete("q0")
            killed.check()
            in_the_middle += 0 < left < MANY_QUEUES
            if in_the_middle == MIDDLES:
                return
            if not left:  # too late
                within_s /= 2
    pytest.fail(f"{in_the_middle} of {TURNS} kills were in the middle")


def begun(broker: BrokerProcess, asked: int) -> bool:
    return broker.stderr.count("vhost deleted") > asked


@pytest.mark.long
@pytest.mark.rounds(4)
def test_a_kill_during_the_deletion_of_a_user(tmp_path: Path, seed: int) -> None:
    killed = Killed(tmp_path, seed)
    with killed.broker as broker:
        broker.start()
        for turn in range(2):
            user = f"u{turn}"
            killed.runs(*killed.imports(definitions("shop", user)))
            killed.kill_during("users", "delete", user, has_begun=partial(random_moment, killed))
            found = killed.exported()
            is_there = user in [row["name"] for row in found["users"]]
            for kind in ("permissions", "topic_permissions"):
                assert (user in [row["user"] for row in found[kind]]) == is_there, kind
            killed.check()


def random_moment(killed: Killed) -> bool:
    """A moment before the command has asked for anything, or while it does, or afterwards."""
    time.sleep(killed.random.random() * 0.5)
    return True


@pytest.mark.long
@pytest.mark.rounds(4)
def test_a_kill_during_an_import(tmp_path: Path, seed: int) -> None:
    killed = Killed(tmp_path, seed)
    with killed.broker as broker:
        broker.start()
        for turn in range(2):
            vhost = f"v{turn}"
            content = definitions(vhost, f"u{turn}")
            command = killed.imports(content)
            killed.kill_during(*command, has_begun=partial(random_moment, killed))
            found = of_vhost(killed.exported(), vhost)
            queues = {row["name"] for row in found["queues"]}
            assert {row["destination"] for row in found["bindings"]} <= queues
            if found["queues"] or found["permissions"] or found["policies"]:
                assert found["vhosts"]
            killed.check()
            killed.runs(*command)
            whole = of_vhost(killed.exported(), vhost)
            for kind in ("queues", "bindings", "permissions", "policies", "topic_permissions"):
                assert len(whole[kind]) == len(content[kind]), kind
            killed.check()
