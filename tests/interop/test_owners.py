"""A broker of a user of its own, on whose store root works with every tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore_tools.__main__ import main
from tests import forked
from tests.broker_process import REPOSITORY, BrokerProcess
from tests.interop.pika_client import PERSISTENT

USER = 12345
SEGMENT_BYTES = 64 << 10
PUBLISHED = 600
WHOLE = [b"%d" % number for number in range(0, PUBLISHED, 6)]
"""The messages in the queue of every store here."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def _can_reach(path: str) -> bool:
    child = os.fork()
    if child == 0:
        forked.become(USER)
        os._exit(0 if os.access(path, os.R_OK | os.X_OK) else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture(scope="module")
def reachable() -> Iterator[str]:
    """A directory that everybody can reach."""
    path = tempfile.mkdtemp(prefix="amqpstore-owners-")
    try:
        os.chmod(path, 0o755)
        for needed in (REPOSITORY, path):
            if not _can_reach(needed):
                pytest.skip(f"another user cannot reach {needed}")
        yield path
    finally:
        shutil.rmtree(path)


def mine(path: str) -> str:
    """A new directory of the broker's user."""
    os.mkdir(path)
    os.chown(path, USER, USER)
    return path


def broker_on(directory: str) -> BrokerProcess:
    environment = {"AMQPSTORE_SEGMENT_BYTES": str(SEGMENT_BYTES)}
    log_path = f"{os.path.dirname(directory)}/log"
    return BrokerProcess(directory, log_path, environment=environment, user=USER)


def with_channel(broker: BrokerProcess, work: Callable[[Any], None]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        work(channel)


def publish(channel: Any) -> None:
    channel.queue_declare("orders", durable=True)
    for number in range(PUBLISHED):
        channel.basic_publish("", "orders", b"%d:" % number + b"x" * 500, PERSISTENT)
    for number in range(PUBLISHED):
        method, _, _ = channel.basic_get("orders")
        if number % 6:
            channel.basic_ack(method.delivery_tag)


def strangers(directory: str) -> list[str]:
    """Return the paths in a directory that do not belong to the broker's user, or that it cannot
    use.
    """
    found = []
    for folder, _, names in os.walk(directory):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            one = os.lstat(path)
            if (one.st_uid, one.st_gid) != (USER, USER) or one.st_mode & 0o600 != 0o600:
                found.append(os.path.relpath(path, directory))
    return found


def served(directory: str) -> list[bytes]:
    """Have the broker's user serve the store, and return what is in the queue, which stays."""
    bodies: list[bytes] = []

    def read(channel: Any) -> None:
        count = channel.queue_declare("orders", passive=True).method.message_count
        bodies.extend(channel.basic_get("orders")[2].partition(b":")[0] for _ in range(count))
        channel.basic_publish("", "fresh", b"", PERSISTENT)

    with broker_on(directory) as broker:
        broker.start()
        with_channel(broker, read)
        assert "cannot be read" not in broker.stderr
        assert broker.terminate() == 0
    return bodies


@pytest.fixture(scope="module")
def original(reachable: str) -> str:
    """The store of a broker that has stopped: most of it is garbage."""
    directory = mine(f"{reachable}/original")
    with broker_on(directory) as broker:
        broker.start()
        with_channel(broker, publish)
        assert broker.terminate() == 0
    assert strangers(directory) == []
    return directory


@pytest.fixture
def reachable_directory(reachable: str) -> str:
    """A directory of root, for one test."""
    path = tempfile.mkdtemp(dir=reachable)
    os.chmod(path, 0o755)
    return path


@pytest.fixture
def store(original: str, reachable_directory: str) -> str:
    """One that the test may change."""
    directory = f"{reachable_directory}/store"
    subprocess.run(["cp", "-a", original, directory], check=True)
    return directory


def test_what_root_changes_in_a_store_its_broker_can_use(store: str, tmp_path: Path) -> None:
    Path(tmp_path, "password").write_text("secret")
    Path(tmp_path, "definitions").write_text(json.dumps({"vhosts": [{"name": "shop"}]}))
    mine(f"{store}/reports")
    exported = str(tmp_path / "exported")
    steps: list[list[str]] = [
        ["check", store],
        ["inspect", store],
        ["users", "add", "anna", "--data", store, "--password-file", str(tmp_path / "password")],
        ["definitions", "import", str(tmp_path / "definitions"), "--data", store],
        ["messages", "copy", "orders", "orders", "--all", "--data", store],
        ["upgrade", store],
        ["export", store, exported],
        ["compact", store],
        ["import", store, exported],
    ]
    for step in steps:
        assert main([*step, "--json"]) == 0, step
        assert strangers(store) == [], step
    assert served(store) == 4 * WHOLE
    assert strangers(store) == []


def test_segments_that_root_compacts_its_broker_can_read(store: str) -> None:
    before = {*os.listdir(f"{store}/segments")}
    assert main(["compact", store, "--json"]) == 0
    assert {*os.listdir(f"{store}/segments")} - before
    assert strangers(store) == []
    assert served(store) == WHOLE


def test_what_root_repairs_its_broker_can_use(store: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    [first, *_] = sorted(Path(store, "segments").iterdir())
    with open(first, "r+b") as file:
        file.seek(30_000)
        file.write(bytes(8))
    os.remove(f"{store}/catalog/data.mdb")
    for step in (["--plan", plan], ["--apply", plan], ["--undo"], ["--apply", plan]):
        assert main(["repair", store, *step, "--json"]) == 0, step
        assert strangers(store) == [], step
    assert set(WHOLE) <= set(served(store))


@pytest.mark.parametrize("is_new", [True, False])
def test_what_root_copies_and_restores_its_broker_can_use(
    store: str, reachable_directory: str, *, is_new: bool
) -> None:
    copy = f"{reachable_directory}/copy"
    assert main(["copy", store, copy, "--json"]) == 0
    assert strangers(copy) == []
    restored = f"{reachable_directory}/restored" if is_new else store
    # A copy from another machine belongs to root here.
    for folder, _, names in os.walk(copy):
        for name in names:
            if os.stat(path := os.path.join(folder, name)).st_nlink == 1:
                os.chown(path, 0, 0)
    assert main(["restore", copy, restored, "--json"]) == 0
    assert strangers(restored) == []
    assert served(restored) == WHOLE


def test_a_linked_file_keeps_its_owner_in_the_backup(store: str, reachable_directory: str) -> None:
    backup = f"{reachable_directory}/backup"
    os.mkdir(backup)
    assert main(["copy", store, backup, "--json"]) == 0
    assert strangers(store) == []
    os.chown(f"{reachable_directory}/backup", USER + 1, USER + 1)
    shutil.rmtree(store)
    os.mkdir(store)
    os.chown(store, USER, USER)
    assert main(["restore", backup, store, "--json"]) == 0
    assert strangers(store) == []
    assert served(store) == WHOLE


def test_a_running_store_is_left_to_its_broker(store: str) -> None:
    with broker_on(store) as broker:
        broker.start()
        assert main(["compact", store, "--json"]) == 3
        assert main(["check", store, "--live", "--json"]) == 0
        assert strangers(store) == []
        assert broker.terminate() == 0
    assert served(store) == WHOLE
