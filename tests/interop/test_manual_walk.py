"""The manual's "When the broker is down", walked as it is typed, with damaged stores."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker_process import REPOSITORY
from tests.interop.test_owners import (  # noqa: F401 (fixtures)
    USER,
    WHOLE,
    original,
    reachable,
    reachable_directory,
    served,
    store,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

ROOT = 0


def typed(user: int, *arguments: str) -> tuple[int, str]:
    """Run a command as a user. Returns its exit code, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "amqpstore_tools", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        user=user,
        group=user,
        extra_groups=[],
    )
    return done.returncode, done.stdout


def segments(directory: str) -> list[Path]:
    return sorted(Path(directory, "segments").glob("*.segment"))


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def message_damaged(directory: str) -> None:
    first = segments(directory)[0]
    overwrite(first, first.read_bytes().index(b":xxxxx") + 100, b"Y")


def segment_gone(directory: str) -> None:
    segments(directory)[1].unlink()


def last_segment_zeroed(directory: str) -> None:
    last = segments(directory)[-1]
    overwrite(last, 0, bytes(last.stat().st_size))


def last_segment_gone(directory: str) -> None:
    segments(directory)[-1].unlink()


def catalog_page_damaged(directory: str) -> None:
    catalog = Path(directory, "catalog/data.mdb")
    content = catalog.read_bytes()
    page = content.index(b"orders") // 4096
    overwrite(catalog, page * 4096, bytes(4096))


def catalog_gone(directory: str) -> None:
    Path(directory, "catalog/data.mdb").unlink()


def indexes_gone(directory: str) -> None:
    for path in Path(directory, "index").iterdir():
        path.unlink()


def marker_gone(directory: str) -> None:
    Path(directory, "STORE").unlink()


def segment_renamed(directory: str) -> None:
    second = segments(directory)[1]
    second.rename(f"{second}.bak")


def segments_gone(directory: str) -> None:
    shutil.rmtree(f"{directory}/segments")


DAMAGES = [
    message_damaged,
    segment_gone,
    last_segment_zeroed,
    last_segment_gone,
    catalog_page_damaged,
    catalog_gone,
    indexes_gone,
    marker_gone,
    segment_renamed,
    segments_gone,
]


def optimum(directory: str) -> set[bytes]:
    """The messages whose bytes are in any file of a store."""
    found = set()
    for folder, _, names in os.walk(directory):
        for name in set(names) - {"reserve"}:
            content = Path(folder, name).read_bytes()
            found |= {one[1] for one in re.finditer(rb"(?<![0-9])([0-9]+):x{500}", content)}
    return found & {*WHOLE}


@pytest.mark.long
@pytest.mark.parametrize("user", [ROOT, USER], ids=["root", "its user"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_walk_ends_with_all_that_is_intact(
    store: str,  # noqa: F811
    reachable_directory: str,  # noqa: F811
    damage: Callable[[str], None],
    user: int,
) -> None:
    work = f"{reachable_directory}/work"
    os.mkdir(work)
    os.chown(work, user, user)
    damage(store)
    intact = optimum(store)
    # 1.
    code, output = typed(user, "check", store)
    assert code == 1, output
    assert "The store is sound" not in output
    # 2.
    code, output = typed(user, "copy", store, f"{work}/before")
    if code not in (0, 1):
        assert "cp -a" in output, output
        assert not os.path.exists(f"{work}/before")
        subprocess.run(["cp", "-a", store, f"{work}/before"], check=True, user=user, group=user)
    # 3.
    code, output = typed(user, "inspect", store)
    assert code == 0, output
    # 4.
    code, output = typed(user, "export", store, f"{work}/all.jsonl")
    assert code in (0, 1), output
    lines = [json.loads(line) for line in Path(work, "all.jsonl").read_text().splitlines()]
    exported = {one["body"].partition(":")[0].encode() for one in lines if "body" in one}
    assert exported >= intact
    for step in (["--plan", f"{work}/plan.json"], ["--apply", f"{work}/plan.json"]):
        code, output = typed(user, "repair", store, *step)
        assert code == 0, output
    # 5.
    code, output = typed(user, "check", store)
    assert code == 0, output
    assert set(served(store)) >= intact
