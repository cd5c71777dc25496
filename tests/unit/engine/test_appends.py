"""Bytes appended to a file go to the kernel in calls of bounded size, all of them in order."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from amqpstore.system.files import OsFiles

MAX_BYTES_A_CALL = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [(5_000_000,), (100, 3_000_000, 200), (1000,) * 5000, (700_000,) * 5, (), (0, 1, 0)],
    ids=["one large", "one large among small", "many small", "some large", "none", "empty ones"],
)
def test_a_large_append_is_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int]
) -> None:
    """One call would have the kernel look for the largest units of memory that there are."""
    calls: list[int] = []
    write, writev = os.write, os.writev

    def counted_write(descriptor: int, content: bytes) -> int:
        calls.append(len(content))
        return write(descriptor, content)

    def counted_writev(descriptor: int, buffers: Sequence[bytes]) -> int:
        calls.append(sum(map(len, buffers)))
        return writev(descriptor, buffers)

    monkeypatch.setattr(os, "write", counted_write)
    monkeypatch.setattr(os, "writev", counted_writev)
    path = tmp_path / "file"
    file = OsFiles().create(str(path))
    buffers = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    file.append(buffers)
    assert path.read_bytes() == b"".join(buffers)
    assert file.end() == sum(sizes)
    file.close()
    assert max(calls, default=0) <= MAX_BYTES_A_CALL
    assert len(calls) <= 2 * len(sizes) / 1024 + 2 * sum(sizes) / MAX_BYTES_A_CALL + 4
