"""Stores that are damaged anywhere: they are shown as far as they can be read, and never by chance.

Each round damages one or more files of a copy, by a seed, and has every view look at it.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.unit.offline.stores import Command, files_of

VIEWS = (
    ["inspect"],
    ["inspect", "queue", "o", "--limit", "0"],
    ["inspect", "queue", "#2", "--limit", "0"],
    ["inspect", "message", "2"],
    ["inspect", "message", "110"],
    ["inspect", "transaction", "150"],
    ["inspect", "segment", "1"],
    ["inspect", "segment", "2147483648"],
)


def damage(directory: str, draw: random.Random) -> str:
    """Damage one file. Returns what was done."""
    names = [name for name, (content, _) in files_of(directory).items() if content]
    # Most bytes are in segments, and most that can go wrong is in the catalog.
    kind = draw.choice(["catalog", "index", "segments", "STORE", ""])
    name = draw.choice([one for one in names if one.startswith(kind)] or names)
    path = os.path.join(directory, name)
    content = bytearray(Path(path).read_bytes())
    how = draw.choice(["flip", "flip", "flips", "zeros", "cut", "garbage", "remove", "swap"])
    place = draw.randrange(len(content))
    if how == "flip":
        content[place] ^= 1 << draw.randrange(8)
    elif how == "flips":
        for _ in range(50):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "zeros":
        content[place : place + 512] = bytes(len(content[place : place + 512]))
    elif how == "cut":
        del content[place:]
    elif how == "garbage":
        content[place : place + 64] = draw.randbytes(64)
    elif how == "swap":
        other = draw.choice(names)
        content = bytearray(Path(directory, other).read_bytes())
        how = f"swap with {other}"
    if how == "remove":
        os.remove(path)
    else:
        Path(path).write_bytes(content)
    return f"{how} at {place} of {name}"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_damaged(seed: int, busy: str, command: Command) -> None:
    look_at_damage(seed, busy, command)


@pytest.mark.long
@pytest.mark.rounds(100)
def test_whatever_else_is_damaged(seed: int, busy: str, command: Command) -> None:
    look_at_damage(seed, busy, command)


def look_at_damage(seed: int, busy: str, command: Command) -> None:
    """Damage a store, and have every view show it."""
    draw = random.Random(seed)
    done = [damage(busy, draw) for _ in range(draw.choice([1, 1, 2, 5]))]
    for verb, *rest in VIEWS:
        found = command(verb, busy, *rest, "--json")
        assert found.code in (0, 1, 4, 5), (done, found)
        assert found.err.count("\n") == (1 if found.code else 0), (done, found.err)
        if found.code == 0:
            json.loads(found.out)
        assert command(verb, busy, *rest).code == found.code, done


def test_every_file_on_its_own_is_not_needed(busy: str, command: Command, tmp_path: Path) -> None:
    for name, (content, _) in files_of(busy).items():
        if content:
            copy = str(shutil.copytree(busy, tmp_path / "copy"))
            os.remove(os.path.join(copy, name))
            found = command("inspect", copy)
            assert found.code == 0, (name, found.err)
            shutil.rmtree(copy)
