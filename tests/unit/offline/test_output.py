"""Tests of the file that a tool writes to a path that the user gave."""

import os
import stat
import threading
from pathlib import Path

import pytest

from amqpstore_tools.offline.exits import UsageError
from amqpstore_tools.offline.output import output_file


def test_a_file_gets_its_name_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("before")
    with output_file(str(path)) as file:
        file.write(b"now")
        assert path.read_text() == "before"
    assert path.read_text() == "now"
    assert os.listdir(tmp_path) == ["all.jsonl"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), output_file(str(path)) as file:
        file.write(b"half" * 9999)
        raise ZeroDivisionError
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["all.jsonl"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_leads_to_the_new_file(tmp_path: Path, *, is_there: bool) -> None:
    target = tmp_path / "there" / "all.jsonl"
    target.parent.mkdir()
    if is_there:
        target.write_text("before")
    link = tmp_path / "link"
    link.symlink_to(target)
    with output_file(str(link)) as file:
        file.write(b"now")
    assert link.is_symlink()
    assert target.read_text() == "now"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with output_file(str(pipe)) as file:
        file.write(b"now")
    reader.join()
    assert read == [b"now"]
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    link = tmp_path / "link"
    link.symlink_to(os.ttyname(terminal))
    with output_file(str(link), is_private=True) as file:
        file.write(b"now")
    assert os.read(ours, 100) == b"now"
    assert stat.S_ISCHR(os.stat(link).st_mode)
    os.close(ours)
    os.close(terminal)


def test_an_open_descriptor_is_written_to(tmp_path: Path) -> None:
    read, written = os.pipe()
    with output_file(f"/dev/fd/{written}") as file:
        file.write(b"now")
    assert os.read(read, 100) == b"now"
    os.close(read)
    os.close(written)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"), output_file(str(tmp_path)):
        pytest.fail("it was opened")
    assert not os.listdir(tmp_path)


def test_a_private_file_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    with output_file(str(path), is_private=True) as file:
        file.write(b"{}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "definitions.json.partial").touch()
    with pytest.raises(UsageError, match="exists"), output_file(str(path), is_private=True):
        pytest.fail("it was opened")
