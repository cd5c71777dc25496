"""The log, followed: over segments that come and go, and around what is no batch."""

import os
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options
from amqpstore.system.filenames import segment_path
from amqpstore_tools.inspect.follow import follow
from tests.unit.offline.stores import SMALL, create, open_store, publish, take

Facts = dict[str, Any]


class EnoughError(Exception):
    """Raised when what a test waits for was shown."""


def shown(directory: str, until: int, most: int | None = None) -> list[Facts]:
    """Return the first `until` transactions and other events that `follow` shows."""
    found: list[Facts] = []

    def show(facts: Facts) -> None:
        found.append(facts)
        if len(found) == until:
            raise EnoughError

    with pytest.raises(EnoughError):
        follow(directory, show, most)
    return found


def test_the_past_is_that_of_the_last_segment(data_directory: str) -> None:
    with open_store(data_directory) as store:
        publish(store, create(store, "orders"), 5)
    found = shown(data_directory, 3, most=3)
    assert [one["lsn"] for one in found] == [3, 4, 5]
    assert {one["operations"][0]["queue"] for one in found} == {"orders"}


def test_what_comes_while_it_is_followed(data_directory: str) -> None:
    store = open_store(data_directory)
    orders = create(store, "orders")
    publish(store, orders, 1)
    events: list[Facts] = []

    def show(facts: Facts) -> None:
        events.append(facts)
        if len(events) == 1:
            # Several segments at once, of which the first ones go before they were looked at.
            publish(store, orders, 60)
            for run in take(store, orders, 40):
                store.ack(orders, run)
            store.sync()
            store.upkeep.checkpoint()
        if (
            events[-1]["event"] == "transaction"
            and events[-1]["operations"][-1]["first_sequence"] == 61
        ):
            raise EnoughError

    with pytest.raises(EnoughError):
        follow(data_directory, show, None)
    lsns = [one["lsn"] for one in events if one["event"] == "transaction"]
    assert lsns == sorted(lsns)
    assert any(one["event"] == "skipped" for one in events)
    store.close()


def test_damage_is_shown_and_the_log_goes_on(data_directory: str) -> None:
    with open_store(data_directory, SMALL._replace(segment_bytes=1 << 20)) as store:
        publish(store, create(store, "orders"), 5)
    path = segment_path(data_directory, 1)
    with open(path, "r+b") as file:
        file.seek(400)
        file.write(b"\xff" * 20)
    found = shown(data_directory, 5)
    assert [one["event"] for one in found].count("gap") == 1
    gap = next(one for one in found if one["event"] == "gap")
    assert gap["offset"] <= 400 < gap["offset"] + gap["bytes"]


def test_a_torn_tail_is_left_out_when_the_log_goes_on(data_directory: str) -> None:
    store = open_store(data_directory)
    publish(store, create(store, "orders"), 3)
    store.abandon()
    path = segment_path(data_directory, 1)
    os.truncate(path, os.path.getsize(path) - 10)
    events: list[Facts] = []

    def show(facts: Facts) -> None:
        events.append(facts)
        if len(events) == 2:
            with open_store(data_directory, Options(reserve_bytes=0)) as store:
                store.publish(list(store.queues.values()), [Message(Envelope("", "q"), b"x")])
        if len(events) == 4:
            raise EnoughError

    with pytest.raises(EnoughError):
        follow(data_directory, show, None)
    assert [one["event"] for one in events] == [
        "transaction",
        "transaction",
        "left out",
        "transaction",
    ]
    assert events[2]["segment"] == 1
    assert events[3]["segment"] == 2


def test_a_store_without_a_segment_is_waited_for(data_directory: str) -> None:
    store = open_store(data_directory)
    orders = create(store, "orders")
    found: list[Facts] = []
    polls = 0

    def later() -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            publish(store, orders, 1)

    def show(facts: Facts) -> None:
        found.append(facts)
        raise EnoughError

    with pytest.raises(EnoughError):
        follow(data_directory, show, None, wait=later)
    assert found[0]["lsn"] == 1
    store.close()
