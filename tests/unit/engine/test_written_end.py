"""The end of the last segment, as it is read while a broker runs."""

import errno
from pathlib import Path

import pytest

from amqpstore.format.batches import written_end
from amqpstore.format.records import Operation, OperationKind, encode_transaction
from amqpstore.system.files import OsFiles
from amqpstore_tools.simulation.faulty_files import UnreadableFiles

SLACK = 32
"""How far behind the last byte that is not zero a TRANSACTION may go on, and more."""

HIGH = 1 << 8
"""A number whose low byte is zero."""


def end_of(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    file = OsFiles().open(str(path))
    try:
        return written_end(file)
    finally:
        file.close()


@pytest.mark.parametrize("zeros", [0, 1, 31, 32, 33, 5000, 1 << 16, (1 << 16) + 1, 300_000])
@pytest.mark.parametrize("size", [0, 1, 100, 1 << 16, (1 << 16) + 1])
def test_zeros_behind_the_last_byte_that_is_not(tmp_path: Path, size: int, zeros: int) -> None:
    found = end_of(tmp_path / "file", b"x" * size + bytes(zeros))
    assert found == (size + min(zeros, SLACK) if size else 0)


@pytest.mark.parametrize("kind", list(OperationKind))
def test_the_zeros_that_a_transaction_ends_with_are_before_it(
    tmp_path: Path, kind: OperationKind
) -> None:
    is_enqueue = kind == OperationKind.ENQUEUE
    for first_sequence in (1, HIGH, HIGH << 40, 1 << 56):
        first_id = first_sequence if is_enqueue else 0
        operation = Operation(kind, 1, 1, first_sequence, first_id)
        batch = encode_transaction([operation], 1, 1, 5, seed=1)
        assert len(batch) <= end_of(tmp_path / "file", batch + bytes(9000)) <= len(batch) + SLACK


def test_what_the_disk_cannot_read_may_be_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100 + bytes(200_000))
    file = UnreadableFiles(OsFiles(), (str(path), 70_000, 70_001)).open(str(path))
    assert 70_001 <= written_end(file) < 200_000
    file.close()
    file = UnreadableFiles(OsFiles(), (str(path), 0, 1), number=errno.ENOMEM).open(str(path))
    with pytest.raises(OSError, match="Cannot allocate"):
        written_end(file)
    file.close()
