"""An error of the system says which file it is about, although the call got no name, and what to do
about a disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from amqpstore.system.durability import reason_of, text_of
from amqpstore.system.files import OsFile, OsFiles, name_file
from amqpstore_server.config.small_files import read_small
from amqpstore_tools.verbs import serve

BROKEN = "/proc/self/mem"
"""A regular file whose first byte cannot be read: EIO."""

FAILED = "may have failed, see the log of the kernel (dmesg)"


@pytest.mark.parametrize(
    ("module", "call", "use"),
    [
        (os, "writev", lambda file: file.append([b"x"])),
        (os, "pwrite", lambda file: file.fill(0, 1)),
        (os, "ftruncate", lambda file: file.truncate(0)),
        (os, "fdatasync", lambda file: file.datasync()),
        (os, "posix_fadvise", lambda file: file.drop_cache()),
        (os, "pread", lambda file: file.read(0, 1)),
        (os, "fstat", lambda file: file.size()),
        (os, "close", lambda file: file.close()),
        (os, "posix_fallocate", lambda file: OsFiles().allocate(f"{file.path}.new", 1)),
        (fcntl, "flock", lambda file: OsFiles().lock(f"{file.path}.lock", "me")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_with_a_descriptor_names_its_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    call: str,
    use: Callable[[OsFile], object],
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = f"{tmp_path}/file"
    file = OsFiles().create(path)
    assert isinstance(file, OsFile)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output") as raised:
        patch.setattr(module, call, fails)
        use(file)
    file.close()
    assert str(raised.value.filename).startswith(path)


def test_a_small_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(OSError, match="Input/output") as raised:
        read_small(BROKEN)
    assert raised.value.filename == BROKEN


def test_an_error_of_our_own_keeps_its_text() -> None:
    error = OSError("it has become shorter")
    name_file(error, "/data/file")
    assert reason_of(error) == str(error) == "it has become shorter"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.EIO, "Input/output error", "/data/MEMBER"),
            f"/data/MEMBER: Input/output error: that disk {FAILED}",
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            f"Input/output error: the disk of the data directory {FAILED}",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/data/x"),
            "/data/x: No space left on device: free some space there",
        ),
        (OSError(errno.EACCES, "Permission denied", b"/data/x"), "/data/x: Permission denied"),
        (
            OSError(errno.EXDEV, "Invalid link", "/a", None, "/b"),
            "[Errno 18] Invalid link: '/a' -> '/b'",
        ),
        (MemoryError(), "MemoryError"),
        (ValueError("wrong"), "wrong"),
    ],
    ids=str,
)
def test_what_an_operator_is_told(error: Exception, told: str) -> None:
    assert reason_of(error) == told


@pytest.mark.parametrize("path", ["/not/there", b"/not/there"])
def test_a_message_names_its_file_without_a_number(path: str | bytes) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        os.stat(path)
    assert text_of(raised.value) == "/not/there: No such file or directory"


def test_a_message_without_the_name_of_a_file_keeps_its_text() -> None:
    """Two names, a descriptor instead of a name, a text alone, another error."""
    with pytest.raises(FileNotFoundError) as two:
        os.rename("/not/there", "/not/here")
    for error in (two.value, OSError(5, "failed", 3), OSError("it failed"), ValueError("7")):
        assert text_of(error) == str(error)


def test_a_broker_that_cannot_start_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    serve._fail(70, OSError(errno.EIO, "Input/output error", "/data/segments/1"))
    text = capsys.readouterr().err
    assert "/data/segments/1" in text
    assert "dmesg" in text
    assert "Errno" not in text
