"""Segments that a repair has given up, as they were missing, and that are there again.

After the repair nothing needs them: no row names them, and they are before the position of the
checkpoint. So they look like files that are left over from a crash, but what is in them is nowhere
else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from amqpstore.evidence.passed_over import PassedOver
from amqpstore.format.records import Record
from amqpstore.format.windows import scan_file
from amqpstore.system.filenames import QUARANTINE, repair_number
from amqpstore.system.files import Files

IS_PUT_BACK = (
    "the last repair gave up what is in it, as it was missing then. It is kept, and not read: "
    "`amqpstore repair` takes its messages in"
)


class PutBack(NamedTuple):
    """Segment `number`, whose first record that a repair gave up is at `offset`."""

    number: int
    path: str
    offset: int


def find_put_back(
    files: Files,
    directory: str,
    segments: Iterable[tuple[int, str]],
    seed: int,
    given_up: PassedOver,
) -> Iterator[PutBack]:
    """Yield which segments have anything that a repair has given up. Those that cannot be read are
    left out, and those that a repair has read and moved away.

    Args: segments, that nothing needs: their numbers and paths; seed, of the records.
    """
    for number, path in segments if given_up else ():
        if _was_moved(os.path.relpath(path, directory)):
            continue
        with contextlib.suppress(OSError):
            file = files.open(path)
            try:
                for one in scan_file(file, file.size(), number, seed):
                    if isinstance(one, Record) and given_up.has(one):
                        yield PutBack(number, path, one.offset)
                        break
            finally:
                file.close()


def _was_moved(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder == QUARANTINE and repair_number(rest.partition("/")[0]) is not None
