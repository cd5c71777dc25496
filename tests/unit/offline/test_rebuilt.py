"""Ranges of sequences against a plain set; and what is counted once although two files have it."""

import os
import shutil

from hypothesis import given
from hypothesis import strategies as st

from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.rebuilt import Spans
from tests.unit.offline.stores import create, open_store, publish, take

ranges = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=8)


@given(ranges, st.sets(st.integers(1, 100), min_size=1))
def test_ranges_against_a_set(parts: list[tuple[int, int]], wanted: set[int]) -> None:
    spans = Spans()
    model: set[int] = set()
    for first, count in parts:
        spans.add(first, first + count)
        model.update(range(first, first + count))
    spans.sort()
    sequences = sorted(wanted)
    assert list(spans.flags(sequences)) == [sequence in model for sequence in sequences]


def test_what_the_log_and_an_index_file_have_counts_once(data_directory: str) -> None:
    store = open_store(data_directory)
    orders = create(store, "orders")
    for _ in range(3):
        # Each checkpoint puts into an index file what the log still has too.
        publish(store, orders, 10)
        store.checkpoint()
    for run in take(store, orders, 4):
        store.ack(orders, run)
    store.sync()
    store.abandon()
    shutil.rmtree(os.path.join(data_directory, "catalog"))
    with StoreImage.open(data_directory) as image:
        [queue] = image.queues
        assert [entry.sequence for entry in queue.entries()] == list(range(5, 31))
        assert image.catalog_reason == "the file is missing"
