"""Output to a pipe or a file is not wrapped, so that grep finds it."""

import ast
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from amqpstore_tools.offline import terminal
from tests.unit.offline.stores import Command, copied, create, open_store

TOOLS = Path(__file__).parents[3] / "tools" / "amqpstore_tools"
LONG = "a " * 60 + "queue"


def test_each_finding_is_in_one_line(tmp_path: Path, command: Command) -> None:
    directory = copied("damaged", tmp_path)
    findings = json.loads(command("check", directory, "--json").out)["findings"]
    plan = str(tmp_path / "plan")
    checked = command("check", directory).out.splitlines()
    planned = command("repair", directory, "--plan", plan).out.splitlines()
    assert findings
    for finding in findings:
        parts = finding["file"], finding["text"]
        assert any(all(part in line for part in parts) for line in checked), parts
    for step in json.loads(Path(plan).read_text())["steps"]:
        parts = step["file"], step["found"]
        assert any(all(part in line for part in parts) for line in planned), parts
    assert max(map(len, checked)) > 80


def test_a_long_name_is_in_one_line(data_directory: str, command: Command) -> None:
    with open_store(data_directory) as store:
        create(store, LONG)
    for arguments in ([], ["queue", LONG]):
        assert LONG in command("inspect", data_directory, *arguments).out, arguments


def test_a_terminal_has_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        # Rich asks the standard streams in turn, and the others may be of another terminal.
        monkeypatch.setattr("rich.console._STD_STREAMS", (out.fileno(),))
        console = terminal.console()
        assert terminal.picture_width(console) == console.width == 40
        console.print("word " * 20)
        out.flush()
        assert len(os.read(reader, 4096).split(b"\n")) > 2
    os.close(reader)


def test_a_picture_in_a_pipe_is_as_wide_as_a_small_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal.picture_width(terminal.console()) == 80


def test_only_one_place_decides_how_wide_stdout_is() -> None:
    makers = {
        str(path.relative_to(TOOLS))
        for path in TOOLS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Console", "OutConsole", "rich.print")
        and not any(keyword.arg == "stderr" for keyword in node.keywords)
    }
    assert makers == {"offline/terminal.py"}


def test_a_number_of_things_has_its_plural() -> None:
    several = [terminal.counted(1000, noun) for noun in ("file", "batch", "policy")]
    assert several == ["1,000 files", "1,000 batches", "1,000 policies"]
    assert terminal.counted(1, "batch") == "1 batch"
