"""Children of our own Python find its modules, whatever lies in the directory they start in."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore_tools.drill.examiner import Examiner
from amqpstore_tools.spark.reading.leases import release, take_lease
from tests.unit.python_sources import parsed, sources


def commands(tree: ast.Module) -> Iterator[list[ast.expr]]:
    """Yield each list or tuple of a module that begins with the path of this Python."""
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.List, ast.Tuple))
            and node.elts
            and ast.unparse(node.elts[0]) == "sys.executable"
        ):
            yield node.elts


def test_no_child_looks_for_modules_in_its_working_directory() -> None:
    """A child with `-m` alone would: a file `queue.py` there takes the place of Python's own."""
    found = {
        module: [ast.unparse(command[1]) for command in commands(parsed(text))]
        for module, text in sources().items()
    }
    found = {module: options for module, options in found.items() if options}
    assert len(found) >= 6
    assert {option for options in found.values() for option in options} == {"'-P'"}, found


def test_a_command_without_the_option_is_found() -> None:
    text = 'import sys\nsubprocess.run([sys.executable, "-m", "amqpstore_tools"])\n'
    assert [ast.unparse(command[1]) for command in commands(parsed(text))] == ["'-m'"]


@pytest.fixture
def hostile_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory where each module of Python's library has a file that cannot be imported."""
    for name in sys.stdlib_module_names:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'imported {__file__}')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_children_start_in_a_directory_with_modules_of_any_name(hostile_directory: Path) -> None:
    with Examiner() as examiner:
        assert examiner.examine(str(hostile_directory / "store")).error == ""
    release(take_lease([], str(hostile_directory / "leases"), idle_s=60))
