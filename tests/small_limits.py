"""Small numbers for what is large in a store of everyday size, so that histories can be short."""

import pytest

import amqpstore.compaction
import amqpstore.index_merge
import amqpstore.index_writer
import amqpstore.maintenance
import amqpstore.segments


def set_small_limits(
    monkeypatch: pytest.MonkeyPatch, *, entries_a_file: int, most_runs: int
) -> None:
    """Index files are full, and merged, after a few entries, and few of them are open at a time;
    runs leave memory after a few; a segment of some messages has several marks, and is read in
    several pieces."""
    monkeypatch.setattr(amqpstore.index_writer, "ENTRIES_A_FILE", entries_a_file)
    monkeypatch.setattr(amqpstore.index_writer, "_MAX_OPEN", 3)
    monkeypatch.setattr(amqpstore.index_merge, "ENTRIES_A_FILE", entries_a_file)
    monkeypatch.setattr(amqpstore.index_merge, "_MAX_FILES", 2)
    monkeypatch.setattr(amqpstore.index_merge, "_LEAST_DEAD", 2)
    monkeypatch.setattr(amqpstore.maintenance, "_MAX_RUNS", most_runs)
    monkeypatch.setattr(amqpstore.segments, "TABLE_STEP_BYTES", 200)
    monkeypatch.setattr(amqpstore.segments, "_READ_AHEAD_BYTES", 400)
    monkeypatch.setattr(amqpstore.compaction, "_PIECE_BYTES", 400)
