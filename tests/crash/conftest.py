"""Small numbers for what is large in a store of everyday size, so that histories can be short."""

import pytest

import amqpstore.index_merge
import amqpstore.index_writer
import amqpstore.keeper


@pytest.fixture(autouse=True)
def small_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files are full, and merged, and runs leave memory, after a few."""
    monkeypatch.setattr(amqpstore.index_writer, "ENTRIES_A_FILE", 6)
    monkeypatch.setattr(amqpstore.index_merge, "ENTRIES_A_FILE", 6)
    monkeypatch.setattr(amqpstore.index_merge, "_MOST_FILES", 2)
    monkeypatch.setattr(amqpstore.index_merge, "_LEAST_DEAD", 2)
    monkeypatch.setattr(amqpstore.keeper, "_MOST_RUNS", 2)
