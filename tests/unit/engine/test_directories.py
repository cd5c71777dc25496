"""A store stays in the directory that it was opened in, wherever its process goes."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options, SharedStore, Store
from amqpstore.replica.creating import create_follower
from amqpstore.replica.follower_store import FollowerStore
from amqpstore.replica.membership import Membership
from amqpstore.system.clock import SYSTEM_CLOCK
from amqpstore_tools.archive.committing import Archive
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.spark.reading.options import ReadOptions, TapOptions

OPTIONS = Options(
    segment_bytes=4096, checkpoint_bytes=4096, least_free_bytes=0, reserve_bytes=64 << 10
)
BODIES = [bytes([number]) * 1000 for number in range(40)]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Start in one directory; called, go to another one, with a store of the same name."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    with SharedStore.open("store", options=OPTIONS) as other:
        other.declare("q")
        with other.transaction() as transaction:
            transaction.send("q", [b"another's"])
    monkeypatch.chdir(tmp_path / "here")
    return lambda: monkeypatch.chdir(tmp_path / "there")


def received(directory: str) -> list[bytes]:
    with SharedStore.open(directory, options=OPTIONS) as store:
        report = store.recovery_report
        assert (report.damage, report.lost, report.unknown_files) == ([], [], [])
        with store.transaction() as transaction:
            return [one.body for one in transaction.receive("q", limit=1000)]


def test_a_shared_store_stays_where_it_was_opened(
    elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    with SharedStore.open("store", options=OPTIONS) as store:
        assert store.directory == str(tmp_path / "here" / "store")
        store.declare("q")
        elsewhere()
        for body in BODIES:
            with store.transaction() as transaction:
                transaction.send("q", [body])
    assert received(str(tmp_path / "here" / "store")) == BODIES
    assert received(str(tmp_path / "there" / "store")) == [b"another's"]


def test_a_store_stays_where_it_was_opened(elsewhere: Callable[[], None], tmp_path: Path) -> None:
    store = Store.open(Path("store"), options=OPTIONS)
    queue = store.create_queue({"name": "q"})
    elsewhere()
    trails = store.provenance.client_trails(max_files=1)
    for body in BODIES:
        store.publish([queue], [Message(Envelope("", "q"), body)])
        store.sync()
        store.upkeep.checkpoint()
    store.close()
    assert trails is not None
    assert len(os.listdir(tmp_path / "here" / "store" / "segments")) > 5
    assert received(str(tmp_path / "there" / "store")) == [b"another's"]


def test_a_follower_and_a_reader_stay_where_they_were_opened(
    elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    create_follower("follower", uuid.uuid4(), Membership("0" * 16))
    follower = FollowerStore.open("follower", clock=SYSTEM_CLOCK)
    Store.open("read", options=OPTIONS).close()
    image = StoreImage.open("read")
    archive = Archive("archive")
    elsewhere()
    assert follower.directory == str(tmp_path / "here" / "follower")
    follower.close()
    assert image.directory == str(tmp_path / "here" / "read")
    image.close()
    assert archive.directory == str(tmp_path / "here" / "archive")


@pytest.mark.parametrize("options", [ReadOptions, TapOptions])
def test_a_path_of_spark_is_absolute_and_may_be_a_url(
    options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.of({"path": "store"}).path == str(tmp_path / "store")
    assert options.of({"path": "file:///var/a%20store"}).path == "/var/a store"
    assert options.of({"path": "file:/var/store"}).path == "/var/store"
    assert options.of({"path": "/s", "lease_directory": "l"}).lease_directory == str(tmp_path / "l")
    assert not options.of({"path": "/s"}).lease_directory


@pytest.mark.parametrize(
    "directory", ["", "a\0b", "file:///var/lib/store", "file:store", b"store", None, 3, ["store"]]
)
def test_what_does_not_name_a_directory_is_refused(
    directory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (SharedStore.open, Store.open, FollowerStore.open, StoreImage.open):
        with pytest.raises((TypeError, ValueError), match=r"directory must|expected str, bytes or"):
            opened(directory)
    assert os.listdir(tmp_path) == []


def test_windows_is_told_what_it_lacks() -> None:
    """Windows has no module fcntl."""
    script = "import sys\nsys.modules['fcntl'] = None\nimport amqpstore"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "ImportError: amqpstore keeps its stores on Linux only" in ended.stderr


def test_no_store_is_opened_where_nothing_can_be_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no fdatasync."""
    monkeypatch.delattr(os, "fdatasync")
    for opened in (Store.open, SharedStore.open):
        with pytest.raises(OSError, match=r"Linux only.*has no fdatasync"):
            opened(tmp_path / "store")
    assert os.listdir(tmp_path) == []
