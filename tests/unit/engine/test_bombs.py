"""A store of a few KiB takes neither gigabytes nor minutes, whatever it claims and who reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.engine.bombs import BOMBS, store_of_two

CPU_S = 60
TIMEOUT_S = 600
"""Seconds that are always enough, also on a busy machine."""

EXPLAINED = ("DamageError", "CatalogDamageError", "UnreadableLogError", "OSError")
"""Errors with which opening one may end: each says which file, and what to do."""

TOOL = f"""
import resource, sys
from tests.unit.engine.bombs import limit_memory
from amqpstore_tools.__main__ import main
limit_memory()
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S}, {CPU_S}))
sys.exit(main())
"""

QUICK = [
    "bodies of 128 MiB",
    "a body that claims 2^50 bytes",
    "an index block that claims 2^50 bytes",
    "many whole index blocks",
    "ids 2^40 apart",
    "2^32 messages in an operation",
    "nested headers",
    "a segment that ends nowhere",
    "a segment's row of 2^62 ids",
    "a position far outside",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def commands(store: str, scratch: Path) -> dict[str, list[str]]:
    plan = str(scratch / "plan.json")
    return {
        "check": ["check", store],
        "plan": ["repair", store, "--plan", plan],
        "apply": ["repair", store, "--apply", plan],
        "inspect": ["inspect", store],
        "copy": ["copy", store, str(scratch / "copy")],
        "export": ["export", store],
    }


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    directory = str(tmp_path / "store")
    store_of_two(directory)
    BOMBS[request.param](directory)
    return directory


def files_in(store: str) -> list[str]:
    return [os.path.join(folder, name) for folder, _, names in os.walk(store) for name in names]


def is_huge(path: str) -> bool:
    return os.path.getsize(path) > 1 << 40


def check_opening(store: str) -> None:
    ended = run("-m", "tests.unit.engine.bombs", store)
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1]
        assert last.partition(":")[0].rpartition(".")[2] in EXPLAINED, ended.stderr[-3000:]


def check_tools(store: str, tmp_path: Path) -> None:
    for name, arguments in commands(store, tmp_path).items():
        if name == "apply" and not os.path.exists(arguments[-1]):
            continue
        if name == "copy" and any(map(is_huge, files_in(store))):
            continue  # It is written byte for byte, and that takes as long as it is.
        ended = run("-c", TOOL, *arguments)
        assert ended.returncode in range(6), (name, ended.stderr[-3000:])
        assert "Traceback" not in ended.stderr, (name, ended.stderr[-3000:])


@pytest.mark.parametrize("store", QUICK, indirect=True)
def test_opening_a_bomb(store: str) -> None:
    check_opening(store)


@pytest.mark.long
@pytest.mark.parametrize("store", BOMBS, indirect=True)
def test_opening_every_bomb(store: str) -> None:
    check_opening(store)


@pytest.mark.long
@pytest.mark.parametrize("store", BOMBS, indirect=True)
def test_every_tool_on_every_bomb(store: str, tmp_path: Path) -> None:
    check_tools(store, tmp_path)
