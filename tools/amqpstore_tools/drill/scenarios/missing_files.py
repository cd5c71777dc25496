"""A file of the store is missing: its content must be reported, and everything else served.

Without its marker or its catalog a store does not open, and says which is missing.
"""

from __future__ import annotations

import os
import shutil

from amqpstore.system.filenames import CATALOG, INDEX, MARKER, SEGMENTS
from amqpstore_tools.drill.damaged import DamagedStore, Hit
from amqpstore_tools.drill.examiner import Examiner
from amqpstore_tools.drill.run import DrillRun

ABOUT = "remove a segment, an index file, the catalog, the marker, or a whole directory"


def run(run: DrillRun) -> None:
    """Remove one file per round."""
    with Examiner() as examiner:
        damaged = DamagedStore(run, examiner)
        damaged.fresh()
        names = [*damaged.record_files(), MARKER, f"{CATALOG}/data.mdb"]
        names += [CATALOG, SEGMENTS, INDEX]
        for rng in run.rounds():
            damaged.fresh()
            name = rng.choice(names)
            path = damaged.path(name)
            if not os.path.isdir(path):
                os.unlink(path)
            elif name == SEGMENTS:
                # Except files that the store does not know.
                for file in damaged.record_files():
                    if file.startswith(SEGMENTS):
                        os.unlink(damaged.path(file))
            else:
                shutil.rmtree(path)
            may_refuse = name == MARKER or name.startswith(CATALOG)
            of_segments = [one for one in names if one.startswith(name)]
            gone = frozenset[int]().union(*map(damaged.messages_in, of_segments))
            damaged.settle(Hit(f"{name} removed", name, may_refuse=may_refuse, gone=gone))
