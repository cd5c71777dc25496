"""Index files: blocks that are read back, bits that are packed, and what a reader refuses."""

import os
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore import DamageError, UnreadableFileError
from amqpstore.catalog.shapes import misshapen
from amqpstore.checkpoints.checkpoint_state import highest_counts
from amqpstore.format.compression import compress_columns, decompress_columns
from amqpstore.format.index import (
    BLOCK,
    COLUMNS,
    Bits,
    Entries,
    IndexReader,
    IndexState,
    decode_block,
    encode_block,
    entries_of,
    live_runs,
    no_entries,
    total_of,
    unknown_sizes,
)
from amqpstore.format.records import HEADER, Kind, Record, encode_record, record_at
from amqpstore.format.runs import Run
from amqpstore.system.filenames import index_path
from amqpstore.system.files import OsFiles

SEED = 4711
QUEUE = 9
NUMBER = 3


def entries(first: int, count: int, *, first_id: int = 100, expires_ms: int = 0) -> Entries:
    """Return entries with contiguous sequences and ids, of sizes 1, 2, 3, ..."""
    run = Run(first, count, first_id=first_id, expires_ms=expires_ms)
    return entries_of(run, array("I", range(1, count + 1)), array("I", range(count)))


def payload_of(block: bytes) -> bytes:
    found = record_at(block, 0, NUMBER, SEED)
    assert isinstance(found, Record)
    assert (found.kind, found.end) == (Kind.INDEX, len(block))
    return block[found.payload_offset :]


columns = st.lists(
    st.tuples(
        st.integers(1, 2**64 - 1),
        st.integers(1, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=20,
)


@given(columns, st.integers(1, 2**64 - 1))
def test_a_block_is_read_back_as_it_was_written(rows: list[tuple[int, ...]], queue_id: int) -> None:
    sequences, ids, *others = zip(*rows, strict=True)
    ascending = sorted(sequences), sorted(ids)
    written = Entries(*map(array, COLUMNS, [*ascending, *others]))
    block = encode_block(queue_id, NUMBER, written, SEED)
    assert decode_block(payload_of(block)) == (queue_id, written)


def test_a_block_of_version_1_does_not_say_how_large_bodies_are() -> None:
    payload = payload_of(encode_block(QUEUE, NUMBER, entries(1, 4), SEED))
    columns = decompress_columns(payload[BLOCK.size :], 38 * 4)[: 34 * 4]
    found = decode_block(payload[: BLOCK.size] + compress_columns(columns))
    assert found == (QUEUE, entries(1, 4)._replace(body_sizes=unknown_sizes(4)))
    assert total_of(found[1].body_sizes) is None


@pytest.mark.parametrize("change", [-1, 1, 8])
def test_a_block_of_another_length_than_its_count_says_is_refused(change: int) -> None:
    payload = payload_of(encode_block(QUEUE, NUMBER, entries(1, 4), SEED))
    altered = payload[:change] if change < 0 else payload + bytes(change)
    with pytest.raises(ValueError):
        decode_block(altered)


def test_a_block_of_fewer_columns_than_its_count_says_is_refused() -> None:
    payload = payload_of(encode_block(QUEUE, NUMBER, entries(1, 4), SEED))
    other = BLOCK.pack(QUEUE, 5) + payload[BLOCK.size :]
    with pytest.raises(ValueError, match="columns"):
        decode_block(other)


def test_a_block_says_of_which_file_it_is() -> None:
    block = encode_block(QUEUE, NUMBER, entries(1, 4), SEED)
    assert not isinstance(record_at(block, 0, NUMBER + 1, SEED), Record)
    assert not isinstance(record_at(block, 0, NUMBER, SEED + 1), Record)


def test_parts_joined_are_what_they_were_parts_of() -> None:
    whole = entries(5, 10)
    joined = no_entries()
    for start in range(0, 10, 3):
        joined.extend(whole.slice(start, start + 3))
    assert joined == whole


@given(st.lists(st.booleans(), max_size=70))
def test_bits_are_read_back_as_they_were_packed(flags: list[bool]) -> None:
    packed = Bits(flags).packed()
    assert len(packed) == ((len(flags) + 7) // 8 if any(flags) else 0)
    assert list(Bits.of(packed, len(flags))) == flags
    for place, flag in enumerate(flags):
        if flag:
            assert packed[place // 8] >> place % 8 & 1


@st.composite
def states(draw: st.DrawFn) -> tuple[Entries, IndexState]:
    """Entries of some runs, some acked, some delivered."""
    written = no_entries()
    sequence, message_id = 1, 1
    for gap, count, id_gap, expires in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2), st.integers(1, 5), st.integers(0, 2), st.sampled_from([0, 7])
            ),
            min_size=1,
            max_size=6,
        )
    ):
        sequence += gap
        message_id += id_gap
        written.extend(entries(sequence, count, first_id=message_id, expires_ms=expires))
        sequence += count
        message_id += count
    count = len(written.ids)
    acked = Bits(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    live = [place for place in range(count) if not acked[place]]
    delivered = draw(st.dictionaries(st.sampled_from(live), st.integers(1, 3))) if live else {}
    bounds = sorted(draw(st.sets(st.integers(0, sequence + 1), max_size=6)))
    state = IndexState(
        *(NUMBER, 1, count, written.sequences[0], sequence),
        *(acked.packed(), acked.count(1), delivered),
        postponed_deliveries=[
            (first, end, draw(st.integers(1, 3))) for first, end in pairwise(bounds)
        ],
    )
    return written, state


@given(states(), st.integers(0, 40), st.integers(0, 40))
def test_the_live_runs_are_what_is_live_entry_by_entry(
    indexed: tuple[Entries, IndexState], first: int, length: int
) -> None:
    written, state = indexed
    acked = Bits.of(state.acked, state.entries)

    def times(place: int, sequence: int) -> int:
        postponed = (
            times for first, end, times in state.postponed_deliveries if first <= sequence < end
        )
        return max(state.delivered.get(place, 0), *postponed, 0)

    expected = [
        (sequence, written.ids[place], written.expires_ms[place], times(place, sequence))
        for place, sequence in enumerate(written.sequences)
        if first <= sequence < first + length and not acked[place]
    ]
    runs = live_runs(written, state, first, first + length)
    assert [
        (run.first_sequence + place, run.first_id + place, run.expires_ms, run.delivery_count)
        for run in runs
        for place in range(run.count)
    ] == expected
    assert all(run.messages is None for run in runs)


def test_entries_that_follow_each_other_are_one_run() -> None:
    written = entries(1, 1000)
    whole = IndexState(NUMBER, 1, 1000, 1, 1001)
    assert [run.count for run in live_runs(written, whole, 0, 2000)] == [1000]
    acked = Bits(1000)
    acked[500] = 1
    holed = whole._replace(acked=acked.packed(), acked_count=1)
    assert [run.count for run in live_runs(written, holed, 0, 2000)] == [500, 499]


class IndexFile:
    """An index file of two blocks."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = index_path(directory, QUEUE, NUMBER)
        os.mkdir(os.path.dirname(self.path))
        blocks = [entries(1, 4), entries(7, 3, first_id=200)]
        self.content = b"".join(encode_block(QUEUE, NUMBER, block, SEED) for block in blocks)
        self.write(self.content)
        self.state = IndexState(NUMBER, len(self.content), 7, 1, 10)

    def write(self, content: bytes) -> None:
        Path(self.path).write_bytes(content)

    def read(self, queue_id: int = QUEUE, state: IndexState | None = None) -> Entries:
        reader = IndexReader(OsFiles(), self.directory, SEED)
        return reader.entries(queue_id, state or self.state)


@pytest.fixture
def file(tmp_path: Path) -> IndexFile:
    return IndexFile(str(tmp_path))


def test_the_blocks_of_a_file_are_read_as_one(file: IndexFile) -> None:
    found = file.read()
    assert found.sequences.tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert found.ids.tolist() == [100, 101, 102, 103, 200, 201, 202]
    assert found.sizes.tolist() == [1, 2, 3, 4, 1, 2, 3]


def test_what_is_behind_the_committed_end_is_not_read(file: IndexFile) -> None:
    file.write(file.content + b"torn")
    assert len(file.read().ids) == 7
    first = len(encode_block(QUEUE, NUMBER, entries(1, 4), SEED))
    state = file.state._replace(end_bytes=first, entries=4, end=5)
    assert len(file.read(state=state).ids) == 4


def test_every_flipped_bit_is_refused(file: IndexFile) -> None:
    for offset in range(len(file.content)):
        altered = bytearray(file.content)
        altered[offset] ^= 0x10
        file.write(bytes(altered))
        with pytest.raises(DamageError):
            file.read()


def test_a_file_cut_anywhere_is_refused(file: IndexFile) -> None:
    for size in range(len(file.content)):
        file.write(file.content[:size])
        with pytest.raises(DamageError):
            file.read()


def test_a_file_of_another_queue_is_refused(file: IndexFile) -> None:
    os.rename(file.path, index_path(file.directory, QUEUE + 1, NUMBER))
    with pytest.raises(DamageError, match="it is not an index file of queue 10"):
        file.read(QUEUE + 1)


def test_a_file_under_another_number_is_refused(file: IndexFile) -> None:
    os.rename(file.path, index_path(file.directory, QUEUE, NUMBER + 1))
    with pytest.raises(DamageError, match="the record was written for segment 3"):
        file.read(state=file.state._replace(number=NUMBER + 1))


def test_a_file_with_fewer_entries_than_were_written_is_refused(file: IndexFile) -> None:
    with pytest.raises(DamageError, match="7 entries, but 8 were written"):
        file.read(state=file.state._replace(entries=8))


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.TRANSACTION])
def test_a_record_of_another_kind_is_refused(file: IndexFile, kind: Kind) -> None:
    payload = payload_of(encode_block(QUEUE, NUMBER, entries(1, 7), SEED))
    record = encode_record(kind, 1, NUMBER, payload, seed=SEED)
    file.write(record)
    with pytest.raises(DamageError, match="it is not an index file of queue 9"):
        file.read(state=file.state._replace(end_bytes=len(record)))
    assert len(record) == HEADER.size + len(payload)


POSTPONED = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4)).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)


@given(st.lists(POSTPONED, max_size=8))
def test_postponed_deliveries_are_one_count_each(ranges: list[tuple[int, int, int]]) -> None:
    """A message may be delivered often: a row of deliveries is as FORMAT.md says."""
    found = highest_counts(ranges)
    highest: dict[int, int] = {}
    for first, end, times in ranges:
        for sequence in range(first, end):
            highest[sequence] = max(highest.get(sequence, 0), times)
    assert {
        sequence: times for first, end, times in found for sequence in range(first, end)
    } == highest
    state = IndexState(NUMBER, 1, 10, 1, 11, postponed_deliveries=found)
    assert misshapen("index", f"{QUEUE:020}-{NUMBER:010}", state.row()) == ""
    assert IndexState.of_row(state.row()).row() == state.row()
    assert highest_counts(found) == found


@pytest.mark.parametrize(
    "ranges", [3, [[1, 2]], [[2, 2, 1]], [[1, 2, 0]], [[1, 2, 1 << 32]], [[1, 9, 1], [8, 9, 2]]]
)
def test_a_row_of_other_postponed_deliveries_is_refused(ranges: object) -> None:
    row = IndexState(NUMBER, 1, 10, 1, 11).row() | {"postponed_deliveries": ranges}
    assert "postponed_deliveries" in misshapen("index", f"{QUEUE:020}-{NUMBER:010}", row)


def test_a_row_without_postponed_deliveries_has_none() -> None:
    row = IndexState(NUMBER, 1, 10, 1, 11).row()
    del row["postponed_deliveries"]
    assert misshapen("index", f"{QUEUE:020}-{NUMBER:010}", row) == ""
    assert IndexState.of_row(row).postponed_deliveries == ()


def test_a_file_that_is_missing_cannot_be_read_and_is_not_called_damaged(tmp_path: Path) -> None:
    reader = IndexReader(OsFiles(), str(tmp_path), SEED)
    with pytest.raises(UnreadableFileError, match=r"\.index cannot be read: .*No such file"):
        reader.entries(1, IndexState(NUMBER, 10, 1, 1, 2))
