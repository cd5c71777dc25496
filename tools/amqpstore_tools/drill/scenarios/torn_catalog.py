"""The catalog is truncated, or has pages of zeros, garbage, or another place's content.

Either the store does not open and says why, or everything that was promised is there.
"""

from __future__ import annotations

import os
import random

from amqpstore.system.filenames import CATALOG
from amqpstore_tools.drill.damaged import DamagedStore, Hit
from amqpstore_tools.drill.examiner import Examiner
from amqpstore_tools.drill.run import DrillRun

ABOUT = "truncate the catalog, or overwrite a page or a sector of it"

_FILE = f"{CATALOG}/data.mdb"
_SECTOR_BYTES, _PAGE_BYTES = 512, 4096


def run(run: DrillRun) -> None:
    """Damage it once per round."""
    with Examiner() as examiner:
        damaged = DamagedStore(run, examiner)
        for rng in run.rounds():
            damaged.fresh()
            did = tear(damaged.path(_FILE), rng)
            damaged.settle(Hit(f"{_FILE} {did}", _FILE, may_refuse=True))


def tear(path: str, rng: random.Random) -> str:
    """Damage a catalog's file; returns how."""
    size = os.path.getsize(path)
    step = rng.choice([_SECTOR_BYTES, _PAGE_BYTES])
    offset = rng.randrange(size // step) * step
    with open(path, "r+b") as file:
        if rng.random() < 0.3:
            end = rng.choice([offset, rng.randrange(size)])
            file.truncate(end)
            return f"truncated at byte {end} of {size}"
        how = rng.choice(["zeros", "garbage", "stale bytes"])
        if how == "zeros":
            content = bytes(step)
        elif how == "garbage":
            content = rng.randbytes(step)
        else:
            file.seek(rng.randrange(size // step) * step)
            content = file.read(step)
        file.seek(offset)
        file.write(content)
    return f"overwritten with {step} bytes of {how} at {offset} of {size}"
