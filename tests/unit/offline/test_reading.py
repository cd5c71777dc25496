"""Records of a file, read window by window: the same as those of the file as a whole."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore.format.records import Kind, encode_record, scan
from amqpstore.format.windows import read_around, scan_file
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles

SEGMENT = 3


class BytesFile:
    """A file of bytes in memory, with pages that cannot be read."""

    descriptor = None

    def __init__(self, content: bytes, bad: tuple[int, int] = (0, 0)) -> None:
        self.path = "bytes"
        self._content = content
        self._bad = bad

    def append(self, buffers: object) -> None:
        raise NotImplementedError

    def fill(self, start: int, stop: int) -> None:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def end(self) -> int:
        raise NotImplementedError

    def datasync(self) -> None:
        raise NotImplementedError

    def drop_cache(self) -> None:
        raise NotImplementedError

    def read(self, offset: int, size: int) -> bytes:
        first, end = self._bad
        if offset < end and first < offset + size:
            raise OSError(errno.EIO, "a bad sector")
        return self._content[offset : offset + size]

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        pass


pieces = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 300)),
        st.tuples(st.just("bytes"), st.integers(1, 300)),
        st.tuples(st.just("stale"), st.integers(0, 50)),
        st.tuples(st.just("flipped"), st.integers(0, 300)),
        st.tuples(st.just("cut"), st.integers(1, 60)),
    ),
    max_size=12,
)


def content_of(parts: list[tuple[str, int]]) -> bytes:
    content = b""
    for number, (kind, size) in enumerate(parts, 1):
        record = encode_record(Kind.MESSAGE, number, SEGMENT, b"\xc7" * size, seed=7)
        if kind == "record":
            content += record
        elif kind == "bytes":
            content += b"\xc7REC" + os.urandom(0) + b"\x02" * size
        elif kind == "stale":
            content += encode_record(Kind.MESSAGE, 1, SEGMENT, bytes(size), seed=7)
        elif kind == "flipped":
            content += record[:-1] + bytes([record[-1] ^ 1])
        else:
            content += record[:size]
    return content


@given(pieces, st.integers(33, 500))
@settings(max_examples=300)
def test_windows_find_what_the_whole_has(parts: list[tuple[str, int]], window: int) -> None:
    content = content_of(parts)
    file = BytesFile(content)
    found = list(scan_file(file, len(content), SEGMENT, 7, window_bytes=window))
    assert found == list(scan(content, SEGMENT, 7))


def test_a_page_that_cannot_be_read_is_zeros() -> None:
    content = b"x" * 20_000
    file = BytesFile(content, bad=(5000, 5001))
    found = read_around(file, 100, 19_000)
    assert len(found) == 19_000
    assert found.count(b"\0") == 4096
    assert found[:3000] == b"x" * 3000


def test_nothing_can_be_written(tmp_path: Path) -> None:
    files = ReadOnlyFiles()
    path = str(tmp_path / "file")
    Path(path).write_bytes(b"x")
    file = files.open(path)
    for call in (
        lambda: file.append([b"y"]),
        lambda: files.create(str(tmp_path / "new")),
        lambda: files.remove(path),
        lambda: files.rename(path, str(tmp_path / "new")),
        lambda: files.make_directory(str(tmp_path / "new")),
        lambda: files.allocate(str(tmp_path / "new"), 1),
        lambda: files.lock(path, "me"),
    ):
        with pytest.raises(OSError, match="reading only"):
            call()
    file.close()
    assert os.listdir(tmp_path) == ["file"]
