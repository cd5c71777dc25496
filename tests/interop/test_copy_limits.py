"""Limits of the cost of copying a store, and followers whose disk is full: real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore_tools.__main__ import main
from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.interop.relay import Relay
from tests.interop.test_replication import PERSISTENT, numbers, publish
from tests.interop.test_whole_copy import (
    LARGE,
    grow,
    is_receiving,
    large,
    store_large,
    whole_files,
)
from tests.small_disk import fill, small_disk

pytestmark = pytest.mark.long

MIB = 1 << 20
MOST_BYTES = 48 * MIB
"""Memory that a copy may take on each side."""


def at(bytes_per_s: int) -> Callable[[bytes], bytes]:
    """Return a function that passes bytes on as a link with this bandwidth does."""

    def pass_on(piece: bytes) -> bytes:
        time.sleep(len(piece) / bytes_per_s)
        return piece

    return pass_on


def test_a_copy_costs_little_memory_and_no_client_waits_for_it(tmp_path: Path) -> None:
    """The link is slower than both disks: a side that did not wait for it would keep everything in
    memory.
    """
    with GroupProcesses(str(tmp_path), 2) as group:
        first, second = group.members
        with Relay(f"amqp://{first.address}", at(32 * MIB)) as relay:
            first.settings["AMQPSTORE_CLUSTER_ADVERTISE"] = f"127.0.0.1:{relay.port}"
            grow(group)
            store_large(first)
            store_large(first)
            connection = first.connect()
            channel = connection.channel()
            channel.confirm_delivery()
            second.start()
            group.wait(lambda: is_receiving(second))
            before = {one: one.memory_bytes for one in group.members}
            most = dict(before)
            confirmed = 0
            while is_receiving(second):
                channel.basic_publish("", "orders", b"%d" % (40 + confirmed), PERSISTENT)
                confirmed += 1
                most = {one: max(bytes_, one.memory_bytes) for one, bytes_ in most.items()}
            group.wait_until_in_sync(2)
            connection.close()
        grown = [most[one] - before[one] for one in group.members]
        assert max(grown) < MOST_BYTES, grown
        assert confirmed > LARGE, grown
        first.kill()
        assert group.wait_for_leader(but=first) is second
        assert sorted(numbers(second)) == list(range(40 + confirmed))
        stored_bytes = sum(
            path.stat().st_size for path in (Path(second.directory) / "segments").iterdir()
        )
        assert stored_bytes > 3 * LARGE * MIB


def checked(member: MemberProcess, capsys: pytest.CaptureFixture[str]) -> None:
    member.kill()
    assert main(["check", member.directory]) == 0, capsys.readouterr().out


def test_a_follower_whose_disk_is_full_goes_on_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        small_disk(str(tmp_path / "member-2"), 300) as disk,
        GroupProcesses(str(tmp_path), 2) as group,
    ):
        first, second = group.members
        for member in group.members:
            member.settings["AMQPSTORE_SEGMENT_BYTES"] = str(MIB)
        group.start()
        publish(first, 0, 10)
        filler = f"{disk}/filler"
        fill(filler, MIB)
        store_large(first)
        # The leader confirms alone by then.
        publish(first, 10, 10)
        assert group.view().in_sync == (first.id,)
        group.wait(lambda: "Free some space" in second.log())
        assert second.is_running
        os.remove(filler)
        group.wait_until_in_sync(2)
        first.kill()
        assert group.wait_for_leader(but=first) is second
        assert sorted(numbers(second)) == list(range(20))
        assert sorted(large(second)) == list(range(LARGE))
        checked(second, capsys)


def test_a_copy_for_which_there_is_no_room_goes_on_when_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is too small from the beginning, and gets full in between."""
    with (
        small_disk(str(tmp_path / "member-2"), 400) as disk,
        GroupProcesses(str(tmp_path), 2) as group,
    ):
        first, second = group.members
        with Relay(f"amqp://{first.address}", at(16 * MIB)) as relay:
            first.settings["AMQPSTORE_CLUSTER_ADVERTISE"] = f"127.0.0.1:{relay.port}"
            grow(group)
            filler = f"{disk}/filler"
            fill(filler, 100 * MIB)
            second.start()
            group.wait(lambda: "Free some space" in second.log())
            assert not is_receiving(second)
            os.remove(filler)
            group.wait(lambda: len(whole_files(second)) > 5)
            count = second.log().count("Free some space")
            fill(filler, 16 * MIB)
            group.wait(lambda: second.log().count("Free some space") > count)
            before = whole_files(second)
            assert len(before) > 5
            assert second.is_running
            os.remove(filler)
            group.wait_until_in_sync(2)
        place = Path(second.directory) / "segments"
        assert before == {name: (place / name).stat().st_ino for name in before}
        first.kill()
        assert group.wait_for_leader(but=first) is second
        assert sorted(numbers(second)) == list(range(40))
        assert sorted(large(second)) == list(range(LARGE))
        checked(second, capsys)
