"""`rabbitmqadmin` of the first generation, unchanged, against the management API."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.broker_process import BrokerProcess
from tests.interop.external_client import need
from tests.management_client import managed, management_url

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Generator[Run]:
    script = need("rabbitmqadmin", "it is in Debian's package rabbitmq-server")
    directory = tmp_path_factory.mktemp("rabbitmqadmin")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        port = urlsplit(management_url(broker)).port

        def run_it(*arguments: str) -> str:
            command = [sys.executable, script, "-P", str(port), *arguments]
            environment = {**os.environ, "HOME": str(directory)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        yield run_it


def test_what_it_declares_it_lists_and_deletes(run: Run, tmp_path: Path) -> None:
    """One test, as each start of the script takes a while."""

    def listed(kind: str, *columns: str) -> list[list[str]]:
        rows = run("-f", "tsv", "-q", "list", kind, *columns)
        return [line.split("\t") for line in rows.splitlines()]

    run("declare", "queue", "name=q/1", 'arguments={"x-max-length": 9}')
    run("declare", "exchange", "name=e", "type=topic")
    run("declare", "binding", "source=e", "destination=q/1", "routing_key=a.#")
    run("declare", "vhost", "name=v")
    run("declare", "user", "name=u", "password=p", "tags=monitoring")
    run("declare", "permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*")
    run("declare", "policy", "name=p", "pattern=^q", 'definition={"max-length": 5}', "priority=3")
    assert "published" in run("publish", "exchange=e", "routing_key=a.b", "payload=hello")
    assert "hello" in run("get", "queue=q/1", "ackmode=ack_requeue_false")
    assert ["q/1", "0"] in listed("queues", "name", "messages")
    assert ["e", "q/1", "a.#"] in listed("bindings", "source", "destination", "routing_key")
    assert ["u"] in listed("users", "name")
    assert ["v", "u"] in listed("permissions", "vhost", "user")
    assert ["p", "3"] in listed("policies", "name", "priority")
    for kind in ("nodes", "connections", "channels", "consumers", "exchanges", "vhosts"):
        listed(kind, "name")
    assert "queues" in run("show", "overview")
    file = tmp_path / "definitions.json"
    run("export", str(file))
    assert {queue["name"] for queue in json.loads(file.read_text())["queues"]} == {"q/1"}
    run("purge", "queue", "name=q/1")
    run("delete", "queue", "name=q/1")
    assert ["q/1"] not in listed("queues", "name")
    run("import", str(file))
    assert ["q/1"] in listed("queues", "name")
    run("delete", "policy", "name=p")
    run("delete", "user", "name=u")
    run("delete", "vhost", "name=v")
