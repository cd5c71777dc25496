"""Facts about a file are the same for the same bytes, and there soon, however large it claims."""

import hashlib
import os
from pathlib import Path

from amqpstore_tools.repair.listing import entry

MIB = 1 << 20


def test_a_file_without_gaps_has_its_own_digest(tmp_path: Path) -> None:
    content = b"data" * MIB + bytes(9)
    (tmp_path / "file").write_bytes(content)
    assert entry(str(tmp_path / "file")) == [
        "file",
        len(content),
        hashlib.sha256(content).hexdigest(),
    ]


def test_a_file_of_a_few_bytes_that_says_it_has_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    os.truncate(path, 1 << 43)
    found = entry(str(path))
    assert found[:2] == ["file", 1 << 43]
    with open(path, "r+b") as file:
        file.seek(1 << 42)
        file.write(b"x")
    assert entry(str(path))[2] != found[2]


def test_zeros_count_the_same_whether_the_disk_has_blocks_for_them_or_not(tmp_path: Path) -> None:
    content = b"a" + bytes(5 * MIB) + b"b" + bytes(2 * MIB)
    (tmp_path / "written").write_bytes(content)
    with open(tmp_path / "sparse", "wb") as file:
        file.write(b"a")
        file.seek(5 * MIB + 1)
        file.write(b"b")
        file.truncate(len(content))
    written = entry(str(tmp_path / "written"))
    assert written == entry(str(tmp_path / "sparse"))
    moved = b"a" + bytes(4 * MIB) + b"b" + bytes(3 * MIB)
    (tmp_path / "moved").write_bytes(moved)
    assert entry(str(tmp_path / "moved")) != written
