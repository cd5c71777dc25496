"""Flips one bit: in a segment or an index file it must be reported and cost only its record; in the
catalog it must be reported and the store refuse to open, or nothing must change.
"""

from __future__ import annotations

import os

from amqpstore.system.filenames import CATALOG, CATALOG_FILE
from amqpstore_tools.drill.copying import own_bytes
from amqpstore_tools.drill.damaged import DamagedStore, Hit
from amqpstore_tools.drill.examiner import Examiner
from amqpstore_tools.drill.run import DrillRun

ABOUT = "flip one bit of a segment, an index file or the catalog, and read all messages"

_CATALOG = f"{CATALOG}/{CATALOG_FILE}"
_OF_CATALOG = 0.25
"""The fraction of all rounds that damage the catalog."""


def run(run: DrillRun) -> None:
    """Flip one bit per round."""
    with Examiner() as examiner:
        damaged = DamagedStore(run, examiner)
        damaged.fresh()
        names = damaged.record_files()
        if not names:
            raise OSError("the store has no segment and no index file: there is nothing to flip")
        sizes = [os.path.getsize(damaged.path(name)) for name in names]
        for rng in run.rounds():
            damaged.fresh()
            if rng.random() < _OF_CATALOG:
                path = damaged.path(_CATALOG)
                offset, bit = rng.randrange(os.path.getsize(path)), rng.randrange(8)
                flip(path, offset, bit)
                did = f"bit {bit} of byte {offset} of {_CATALOG} flipped"
                damaged.settle(Hit(did, _CATALOG, may_refuse=True))
                continue
            # Half of the flips by size, half of them in any file, so that small files are hit too.
            weights = sizes if rng.random() < 0.5 else [min(size, 1) for size in sizes]
            name = rng.choices(names, weights)[0]
            offset, bit = rng.randrange(os.path.getsize(damaged.path(name))), rng.randrange(8)
            kind, number = damaged.record_at(name, offset)
            flip(damaged.path(name), offset, bit)
            what = f"a {kind.name}" if kind else "no record"
            did = f"bit {bit} of byte {offset} of {name} flipped, in {what}"
            damaged.settle(Hit(did, name, kind, number))


def flip(path: str, offset: int, bit: int) -> None:
    """Flip bit `bit` (0 to 7) of a linked file's byte at `offset`."""
    own_bytes(path)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
