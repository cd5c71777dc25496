"""The space in a store, as `amqpstore inspect` says it, is compared with a count by hand."""

import json
import random
from pathlib import Path
from typing import Any

from amqpstore import Envelope, Message
from amqpstore.log.batch import record_bytes
from tests.unit.offline.stores import Command, copied, create, open_store, take


def overview(command: Command, directory: str) -> dict[str, Any]:
    found = command("inspect", directory, "--json")
    assert found.code == 0, found.err
    content: dict[str, Any] = json.loads(found.out)
    return content


def usage(command: Command, directory: str) -> dict[str, Any]:
    found: dict[str, Any] = overview(command, directory)["usage"]
    return found


def test_against_a_count_by_hand(data_directory: str, command: Command) -> None:
    draw = random.Random(7)
    envelope = Envelope("", "q", bytes.fromhex("100002"))
    sizes: dict[str, list[int]] = {}
    by_id: dict[int, int] = {}
    with open_store(data_directory) as store:
        queues = [create(store, f"q{number:02}") for number in range(15)]
        for number in range(200):
            message = Message(envelope, bytes(int(draw.paretovariate(0.6) * 10) % 100_000))
            some = draw.sample(queues, draw.choice([1, 1, 1, 3]))
            store.publish(some, [message])
            by_id[number + 1] = record_bytes(message)
            for queue in some:
                definition: Any = queue.definition
                sizes.setdefault(definition["name"], []).append(record_bytes(message))
            if number % 50 == 0:
                store.sync()
                store.upkeep.checkpoint()
        take(store, queues[0], 2)
        store.sync()
    whole = overview(command, data_directory)
    usage = whole["usage"]
    assert usage["messages"] == sum(map(len, sizes.values()))
    assert usage["message_bytes"] == sum(map(sum, sizes.values()))
    assert usage["delivered"] == 2
    by_name = {queue["name"]: queue for queue in whole["queues"]}
    assert {name: queue["bytes"] for name, queue in by_name.items()} == {
        name: sum(some) for name, some in sizes.items()
    }
    started_ms = {segment["created_ms"] for segment in whole["segments"]}
    assert {queue["oldest_ms"] for queue in by_name.values()} <= started_ms
    assert [one["bytes"] for one in usage["largest_messages"]] == sorted(
        by_id.values(), reverse=True
    )[:10]
    for row in usage["largest_messages"]:
        assert row["bytes"] == by_id[row["id"]]
    before = 0
    every = [size for some in sizes.values() for size in some]
    for row in usage["messages_by_size"]:
        to = row["to_bytes"] or 1 << 60
        assert row["messages"] == sum(before < size <= to for size in every)
        before = to
    assert usage["segment_bytes"] == usage["live_bytes"] + usage["garbage_bytes"]
    assert sum(one["live_bytes"] for one in usage["live_by_age"]) == usage["live_bytes"]
    text = command("inspect", data_directory)
    assert text.code == 0
    assert "The largest messages" in text.out
    assert all(len(line) <= 80 for line in text.out.replace(data_directory, "DIR").splitlines())


def test_a_message_in_several_queues_is_listed_once(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        queues = [create(store, name) for name in ("a", "b", "c")]
        store.publish(queues, [Message(Envelope("", "q"), b"x" * 5000)])
        store.publish(queues[:1], [Message(Envelope("", "q"), b"x")])
        store.sync()
    first, second = usage(command, data_directory)["largest_messages"]
    assert (first["queues"], second["queues"]) == (3, 1)
    assert "a and 2 more" in command("inspect", data_directory).out


def test_an_empty_store(data_directory: str, command: Command) -> None:
    open_store(data_directory).close()
    found = usage(command, data_directory)
    assert (found["messages"], found["segment_bytes"]) == (0, 0)
    assert (found["largest_messages"], found["live_bytes"]) == ([], 0)
    assert "no checkpoint" in command("inspect", data_directory).out


def test_the_golden_stores(tmp_path: Path, command: Command) -> None:
    for name, count in (("golden", 99), ("torn", 12), ("damaged", 15)):
        assert usage(command, copied(name, tmp_path))["messages"] == count
