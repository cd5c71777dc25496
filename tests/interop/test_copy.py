"""Copies of stores that are in use, each opened and held against what was promised meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore import Envelope, Message, Run, Store
from amqpstore.system.filenames import FIRST_COMPACTED, segment_path
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.drill.copying import link_store
from amqpstore_tools.offline import snapshot
from tests.broker_process import REPOSITORY, BrokerProcess
from tests.interop.test_store_kill9 import CHILD, OPTIONS, Expected
from tests.waiting import wait_until

_WAIT_S = 60.0


def amqpstore(*arguments: str) -> subprocess.Popen[str]:
    """The command, started."""
    return subprocess.Popen(
        [sys.executable, "-m", "amqpstore_tools", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: str, code: int = 0) -> str:
    """The command, to its end. Returns what it printed."""
    with amqpstore(*arguments) as process:
        printed, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == code, printed
    return printed


class Busy:
    """The engine in a process of its own, and what it has tried and made durable so far."""

    def __init__(self, directory: str, program: str, seed: int) -> None:
        # A file, not a pipe: what was printed is seen at once, by no thread that may be late.
        self._printed = Path(f"{directory}.printed")
        with open(self._printed, "w") as printed:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    program,
                    str(seed),
                    "1",
                    directory,
                    json.dumps(OPTIONS[:-1]),
                ],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.DEVNULL,
            )

    @property
    def lines(self) -> int:
        """The number of lines that the process has printed."""
        assert self._process.poll() is None
        return self._printed.read_bytes().count(b"\n")

    def states(self, before: int, after: int) -> list[tuple[list[int], list[int]]]:
        """Return what was in `kept` and `passing` behind each batch that may have been the last
        one.

        Those that were durable by the first `before` lines were; none was begun behind the next
        one of the first `after` lines.
        """
        possible = []
        state = under_way = Expected()
        whole = self._printed.read_text().rpartition("\n")[0].split("\n")
        for place, line in enumerate(whole[: after + 2]):
            if line.startswith("try"):
                under_way = state.after(line)
            elif line.startswith("done"):
                state = under_way
            if place >= before - 1:
                possible += [(one.kept, one.passing) for one in (state, under_way)]
        return possible

    def end(self) -> None:
        self._process.kill()
        self._process.wait(_WAIT_S)


@contextmanager
def busy(directory: str, program: str, seed: int) -> Iterator[Busy]:
    one = Busy(directory, program, seed)
    try:
        yield one
    finally:
        one.end()


def numbers(directory: str) -> dict[str, list[int]]:
    """Return what a copy holds, by queue; nothing of it is torn, damaged or missing."""
    store = Store.open(directory, options=OPTIONS, worker=InlineWorker())
    try:
        report = store.recovery_report
        assert (report.torn_bytes, report.damage, report.lost) == (0, [], [])
        found: dict[str, list[int]] = {}
        for queue in list(store.queues.values()):
            found[str(queue.definition)] = values = []
            while queue.ready_count:
                taken = store.take(queue, 1000)
                assert isinstance(taken, Run)
                values += [int(message.body.split()[0]) for message in taken.messages or []]
        return found
    finally:
        store.abandon()


def test_copies_of_a_store_that_is_compacted_all_the_time(data_directory: str) -> None:
    """Each copy has exactly what was in the queues behind some batch of that time."""
    compacted = 0
    earlier: str | None = None
    with busy(data_directory, CHILD, seed=7) as process:
        wait_until(lambda: os.path.exists(segment_path(data_directory, FIRST_COMPACTED)))
        for number in range(60):
            if number >= 12 and compacted:
                break
            target = f"{data_directory}.copy{number}"
            before = process.lines
            options = CopyOptions(
                links=number % 3 != 2, against=earlier if number % 3 == 1 else None
            )
            copy_store(data_directory, target, options)
            after = process.lines
            names = os.listdir(f"{target}/segments")
            compacted += any(int(name[:10]) >= FIRST_COMPACTED for name in names)
            # A copy that was opened cannot be the base of the next one, so a link to it is opened.
            link_store(target, f"{target}.opened")
            contents = numbers(f"{target}.opened")
            assert (contents["kept"], contents["passing"]) in process.states(before, after)
            if earlier:
                shutil.rmtree(earlier)
            earlier = target
    assert compacted


CHURN = """
import json, sys
from amqpstore import Envelope, Message, Options, Store
options = Options(*json.loads(sys.argv[4]))
store = Store.open(sys.argv[3], options=options)
kept, moved = store.create_queue("kept"), store.create_queue("moved")
envelope = Envelope("", "q", b"\\x10\\x00\\x02")
number = 1
while True:
    queue = store.create_queue(str(number))
    store.publish([queue, kept], [Message(envelope, b"%d " % number + bytes(500))])
    store.sync()
    run = store.withdrawals.withdraw(queue, 1)
    with store.transaction() as transaction:
        transaction.ack(queue, run)
        transaction.publish([moved], run.messages)
    store.sync()
    store.delete_queue(queue)
    for queue in (kept, moved):
        while queue.ready_count > 50:
            store.take(queue, 1, acked=True)
    number += 1
    print("done", flush=True)
"""


@pytest.mark.parametrize("slow", [False, True])
def test_copies_while_queues_come_and_go(
    data_directory: str, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """The catalog and the log are of one instant: no message is on neither side of a move.

    `slow`: the store goes on between the look at the catalog and that at the log.
    """
    with busy(data_directory, CHURN, seed=7) as one:
        wait_until(lambda: one.lines > 100)
        for number in range(5 if slow else 20):
            target = f"{data_directory}.copy{number}"
            if slow:
                look = slowed(snapshot.Snapshot._pin, one, times=3)
                monkeypatch.setattr(snapshot.Snapshot, "_pin", look)
            copy_store(data_directory, target, CopyOptions(verify="none", manifest=False))
            found = numbers(target)
            kept, moved = found.pop("kept"), found.pop("moved")
            waiting = [value for values in found.values() for value in values]
            assert len(found) <= 1
            assert sorted(moved + waiting)[-40:] == kept[-40:]


def slowed(look: Callable[[Any], Any], one: Busy, times: int) -> Callable[[Any], Any]:
    """Return `look` slowed down: its first calls return only after the store has done something
    more.
    """
    left = times

    def slow(source: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            before = one.lines
            wait_until(lambda: one.lines > before + 2)
        return look(source)

    return slow


def test_a_running_broker_is_copied_restored_and_compacted(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    data = broker.data_directory
    copy, place = str(tmp_path / "copy"), str(tmp_path / "place")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        properties = pika.BasicProperties(delivery_mode=2)
        for number in range(50):
            channel.basic_publish("", "orders", b"%d" % number, properties)
        assert "a copy of the running store" in run("copy", data, copy)
        channel.queue_purge("orders")
    for verb in (["restore", copy, data], ["compact", data]):
        assert f"{data} is in use by another process" in run(*verb, code=3)
    assert "restored store" in run("restore", copy, place)
    with BrokerProcess(place, f"{place}.log") as restored:
        restored.start()
        assert count_of(restored) == 50
        assert restored.terminate() == 0
    assert broker.terminate() == 0
    printed = run("restore", copy, data)
    assert "the previous store is kept" in printed
    broker.start()
    assert count_of(broker) == 50


def count_of(broker: BrokerProcess) -> int:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        return channel.queue_declare("orders", passive=True).method.message_count


@pytest.mark.parametrize("verb", ["copy", "restore", "compact"])
def test_a_verb_that_is_killed_leaves_the_old_or_the_new(
    data_directory: str, tmp_path: Path, verb: str
) -> None:
    make(data_directory, 4000)
    expected = numbers(data_directory)
    copy, place = str(tmp_path / "copy"), str(tmp_path / "place")
    run("copy", data_directory, copy, "--no-links")
    other = str(tmp_path / "other")
    make(other, 10)
    shutil.copytree(other, place)
    rng = random.Random(verb)
    outcomes: dict[str, int] = {}
    for attempt in range(6):
        arguments, begun = {
            "copy": (["copy", data_directory, str(tmp_path / "killed"), "--no-links"], "killed"),
            "restore": (["restore", copy, place], "place.restoring"),
            "compact": (["compact", data_directory, "--segment-bytes", "20000"], "store/lock"),
        }[verb]
        if verb == "compact":
            os.unlink(f"{data_directory}/lock")
        # The first is let go to its end.
        after_s = rng.uniform(0, 0.2) if attempt else _WAIT_S
        kill_when_begun(arguments, str(tmp_path / begun), after_s)
        outcome = look(verb, data_directory, tmp_path, expected)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if verb == "restore" and outcome == "new":
            shutil.rmtree(place)
            shutil.copytree(other, place)
        if verb == "compact":
            make(data_directory, 40, first=expected["kept"][-1] + 1)
            expected = numbers(data_directory)
    assert outcomes.pop("new", 0)
    outcomes.pop("old", 0)
    assert not outcomes


def kill_when_begun(arguments: list[str], begun: str, after_s: float) -> None:
    """Start a verb, and kill it `after_s` after a path exists."""
    with amqpstore(*arguments) as process:
        wait_until(lambda: os.path.exists(begun) or process.poll() is not None)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.send_signal(signal.SIGKILL)
        printed, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode in (0, -signal.SIGKILL), printed


def look(verb: str, data: str, tmp_path: Path, expected: dict[str, list[int]]) -> str:
    """Tell whether a killed verb left the old or the new; anything else fails."""
    if verb == "compact":
        assert numbers(data) == expected
        return "new"
    if verb == "restore":
        found = numbers(str(tmp_path / "place"))
        assert found in (expected, {"kept": list(range(10)), "passing": list(range(0, 10, 2))})
        return "new" if found == expected else "old"
    killed = tmp_path / "killed"
    if not (killed / "STORE").exists():
        return "old"
    assert numbers(str(killed)) == expected
    shutil.rmtree(killed)
    return "new"


def make(directory: str, count: int, first: int = 0) -> None:
    """A store with messages in two queues, of which every other one is acked in one of them."""

    options = OPTIONS._replace(segment_bytes=20_000, checkpoint_ms=1 << 60, checkpoint_messages=900)
    with Store.open(directory, options=options, worker=InlineWorker()) as store:
        by_name = {queue.definition: queue for queue in store.queues.values()}
        queues = [by_name.get(name) or store.create_queue(name) for name in ("kept", "passing")]
        envelope = Envelope("", "q", b"\x10\x00\x02")
        for number in range(first, first + count):
            messages = [Message(envelope, b"%d " % number + bytes(100))]
            store.publish(queues if number % 2 == 0 else queues[:1], messages)
            if number % 50 == 0:
                store.sync()
