"""Directories that come back older in the drill of a group are kept and put back as files."""

import socket
from pathlib import Path

import pytest

from amqpstore_tools.drill import returns


def test_a_directory_with_a_socket_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was killed leaves its socket there."""
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    Path("a").mkdir()
    Path("a/STORE").write_bytes(b"then")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("a/admin.sock")
    returns._keep("a")
    Path("a/STORE").write_bytes(b"now")
    returns._put_back("a")
    assert [one.name for one in Path("a").iterdir()] == ["STORE"]
    assert Path("a/STORE").read_bytes() == b"then"
