"""Small numbers for what is large in a store of everyday size, so that histories can be short."""

from amqpstore.format.limits import StoreLimits


def small_limits(*, entries_a_file: int, max_runs: int) -> StoreLimits:
    """Index files are full, and merged, after a few entries, and few of them are open at a time;
    runs leave memory after a few, and are split early; a segment of some messages has several
    marks, and is read in several pieces, as is a message of some hundred bytes, and filled ahead of
    use a few times."""
    return StoreLimits(
        entries_a_file=entries_a_file,
        max_open_index_files=3,
        max_small_files=2,
        min_acked=2,
        max_runs=max_runs,
        joined_bytes=600,
        split_messages=3,
        fill_from_bytes=100,
        max_fill_bytes=600,
        table_step_bytes=200,
        read_ahead_bytes=400,
        read_chunk_bytes=200,
        compaction_piece_bytes=400,
    )
