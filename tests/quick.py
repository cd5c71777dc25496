"""The tests to run while you work: `make quick`, or `make quick ROOM=broker`.

Without a room they are the unit tests that you have changed since main, and of each module that you
have changed those that import it or have its name; where there are none, all of its room. A run
begins no test after 15 seconds, and draws another order each time: of a large room it has other
tests each time.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.unit.python_sources import PACKAGES, imports

ROOT = Path(__file__).parents[1]
UNIT = "tests/unit"
SECONDS = 15
WORKERS = 3

ROOMS = {"amqpstore": "engine", "amqpstore_server": "server", "amqpstore_tools": "offline"}
"""The folders of the unit tests of a package's rooms that have no folder of their own."""

Imports = Mapping[str, frozenset[str]]
"""The modules that each file of unit tests imports, by its path."""


def chosen(changed: Iterable[str], tests: Imports) -> list[str]:
    """Return the paths of tests for files that have changed."""
    paths: set[str] = set()
    for path in changed:
        if path in tests:
            paths.add(path)
        elif module := module_of(path):
            of_room = {test for test in tests if test.startswith(room_of(path, tests))}
            name = f"/test_{module.rpartition('.')[2]}.py"
            found = {test for test in of_room if test.endswith(name)}
            found |= {test for test, imported in tests.items() if module in imported}
            paths |= found or of_room
    return sorted(paths)


def module_of(path: str) -> str:
    """Return the dotted name of a module of ours, or of the tests; empty if it is not one."""
    if not path.endswith(".py"):
        return ""
    for package, source_root in {**PACKAGES, "tests": "."}.items():
        folder = package if source_root == "." else f"{source_root}/{package}"
        if path.startswith(f"{folder}/"):
            inside = path.removesuffix(".py").removesuffix("/__init__")
            return inside.removeprefix(f"{source_root}/").replace("/", ".")
    return ""


def room_of(path: str, tests: Iterable[str]) -> str:
    """Return the folder with the unit tests of a module's room, with a slash at its end."""
    package, _, rest = module_of(path).partition(".")
    folder = f"{UNIT}/{rest.partition('.')[0]}/"
    if any(test.startswith(folder) for test in tests):
        return folder
    return f"{UNIT}/{ROOMS.get(package, 'nothing')}/"


def unit_tests() -> Imports:
    """Return what each file of unit tests imports."""
    return {
        path.relative_to(ROOT).as_posix(): imports(path.stem, path.read_text("utf-8"))
        for path in sorted((ROOT / UNIT).rglob("test_*.py"))
    }


def changed_files() -> list[str]:
    """Return what has changed since main, committed or not."""
    base = _git("merge-base", "HEAD", "main").strip()
    listed = _git("diff", "--name-only", "--diff-filter=d", base)
    return (listed + _git("ls-files", "--others", "--exclude-standard")).splitlines()


def main(arguments: list[str]) -> int:
    """Run the tests; returns the exit code."""
    if arguments:
        [room] = arguments
        if not (ROOT / UNIT / room).is_dir():
            rooms = sorted(path.name for path in (ROOT / UNIT).iterdir() if path.is_dir())
            sys.stderr.write(f"there is no {UNIT}/{room}: ROOM is one of {', '.join(rooms)}\n")
            return 2
        paths = [f"{UNIT}/{room}"]
    elif not (paths := chosen(changed_files(), unit_tests())):
        sys.stdout.write("nothing that unit tests import has changed since main\n")
        return 0
    sys.stdout.write(f"unit tests: {' '.join(paths)}\n")
    sys.stdout.flush()
    seed = random.randrange(1 << 24)
    command = [sys.executable, "-bb", "-X", "dev", "-m", "pytest", "-q", "-n", f"{WORKERS}"]
    command += ["-m", "not long", "--for", f"{SECONDS}", "--seed", f"{seed}", *paths]
    return subprocess.call(command, cwd=ROOT)


def _git(*arguments: str) -> str:
    command = ("git", *arguments)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
