"""Segments that a repair has given up, as they were missing, and that are there again.

After the repair nothing needs them: no row names them, and they are before the position of the
checkpoint. So they look like files that are left over from a crash, but what is in them is nowhere
else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from amqpstore.evidence.passed_over import PassedOver
from amqpstore.format.records import Gap
from amqpstore.format.windows import WINDOW_BYTES, scan_file
from amqpstore.system.durability import text_of
from amqpstore.system.filenames import QUARANTINE, repair_number
from amqpstore.system.files import Files

_IS_PUT_BACK = (
    "the last repair gave up what is in it, as it was missing then. It is kept, and not read: "
    "`amqpstore repair` takes its messages in"
)
_IS_UNREADABLE = (
    "it cannot be read ({}), and may have what the last repair gave up. It is kept: once it can "
    "be read, `amqpstore repair` takes in what it has"
)


class PutBack(NamedTuple):
    """Segment `number`, whose first record that a repair gave up is at `offset`; or that cannot be
    read: then `error` says why, and `offset` is 0.
    """

    number: int
    path: str
    offset: int = 0
    error: str = ""

    @property
    def reason(self) -> str:
        """Say what is the matter with it, and what to do."""
        return _IS_UNREADABLE.format(self.error) if self.error else _IS_PUT_BACK


def find_put_back(
    files: Files,
    directory: str,
    segments: Iterable[tuple[int, str]],
    seed: int,
    given_up: PassedOver,
) -> Iterator[PutBack]:
    """Yield which segments have anything that a repair has given up, or may have, as they cannot be
    read. Those that a repair has read and moved away are left out.

    Args: segments, that nothing needs: their numbers and paths; seed, of the records.
    """
    for number, path in segments if given_up else ():
        # A repair has taken their messages in before it moved them: they would come twice.
        if _was_moved(os.path.relpath(path, directory)):
            continue
        try:
            offset = _first_given_up(files, path, number, seed, given_up)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield PutBack(number, path, error=text_of(error))
        else:
            if offset is not None:
                yield PutBack(number, path, offset)


def _first_given_up(
    files: Files, path: str, number: int, seed: int, given_up: PassedOver
) -> int | None:
    """Return where the first record of a segment is that a repair has given up. Raises: OSError."""
    file = files.open(path)
    try:
        for found in scan_file(file, file.size(), number, seed):
            if isinstance(found, Gap):
                # A scan takes pages that cannot be read for zeros: this read says so.
                for offset in range(found.offset, found.end, WINDOW_BYTES):
                    file.read(offset, min(WINDOW_BYTES, found.end - offset))
            elif given_up.has(found):
                return found.offset
    finally:
        file.close()
    return None


def _was_moved(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder == QUARANTINE and repair_number(rest.partition("/")[0]) is not None
