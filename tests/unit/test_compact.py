"""Compaction to the end: what is live stays, what is not goes, and done twice it does nothing."""

import os

import pytest

from amqpstore import Envelope, Message
from amqpstore_tools.verbs.compact import _compact
from tests.unit.copying.stores import OPTIONS, bodies, make_store, open_store, queue_of


@pytest.mark.parametrize("kept", ["one in five", "all but one", "all", "the last", "every other"])
def test_what_is_live_is_all_that_stays(data_directory: str, kept: str) -> None:
    make_store(data_directory, batches=60)
    with open_store(data_directory) as store:
        orders = queue_of(store, "orders")
        # Another queue holds some of them too.
        store.publish([queue_of(store, "audit"), orders], [Message(Envelope("", "o"), b"both")])
        total = orders.ready_count
        store.stored.paging.read_index(orders)
        sequences = [run.first_sequence + n for run in orders.ready for n in range(run.count)]
        live = {
            "one in five": range(0, total, 5),
            "all but one": [place for place in range(total) if place != 100],
            "all": range(total),
            "the last": [total - 1],
            "every other": range(0, total, 2),
        }[kept]
        for place, sequence in enumerate(sequences):
            if place not in live:
                store.take(orders, 1, acked=True, first_sequence=sequence)
    expected = bodies(data_directory)
    size = sum(len(body) for body in set(expected["orders"]))
    result = _compact(data_directory, OPTIONS.segment_bytes)
    assert bodies(data_directory) == expected
    assert result["damage"] == []
    assert result["bytes_after"] <= result["bytes_before"]
    # Around a message there are some 45 bytes; the last segment is left alone.
    live_bytes = size + 60 * len(expected["orders"])
    assert result["bytes_after"] <= 1.3 * live_bytes + 2 * OPTIONS.segment_bytes
    again = _compact(data_directory, OPTIONS.segment_bytes)
    assert again["segments_after"] <= again["segments_before"]
    assert bodies(data_directory) == expected
    names = os.listdir(f"{data_directory}/segments")
    third = _compact(data_directory, OPTIONS.segment_bytes)
    assert third["bytes_before"] == third["bytes_after"]
    assert os.listdir(f"{data_directory}/segments") == names


def test_damage_goes_to_quarantine(data_directory: str) -> None:
    make_store(data_directory, batches=60)
    with open_store(data_directory) as store:
        orders = queue_of(store, "orders")
        store.stored.paging.read_index(orders)
        for sequence in range(1, 300, 2):
            store.take(orders, 1, acked=True, first_sequence=sequence)
    before = bodies(data_directory)["orders"]
    path = f"{data_directory}/segments/0000000003.segment"
    with open(path, "r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff")
    result = _compact(data_directory, OPTIONS.segment_bytes)
    assert [one[0] for one in result["damage"]] == [path]
    assert os.listdir(f"{data_directory}/quarantine") == ["0000000003.segment"]
    with open_store(data_directory) as store:
        assert queue_of(store, "orders").ready_count == len(before)
