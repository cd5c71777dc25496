"""Facts that the files of a store tell about each other, as values: for a start, check, repair and
export.

A store notes most things more than once: a file says in its records what it is, rows of the catalog
say what files should hold, client trails say which messages were durable. So when a part is lost,
another part often knows what is missing. Nothing here changes a file, or decides what to do.

- `absence`: which messages the files of segments do not have, although the catalog counts them.
- `durable_positions`: how far the log was durable, noted beside it.
- `shortfall`: what was durable and the log does not have.
- `newer_segments`: compacted segments that show that the catalog is an older one;
  `newer_entries`: index files that show it, or that the log is.
- `passed_over`: what starts have left to a repair, as it was missing or newer than all else.
- `put_back`: segments that a repair has given up, and that are there again.
- `identification`: what a file is, whatever its name and its directory; `misplaced`: files that the
  store needs and that lie under another name.
- `present_numbers`: which ids or batches sound records have.
- `wrong_kinds`: directories, pipes and the like in the place of files.
"""

from amqpstore.evidence.absence import AbsentIds, AbsentMessages, absent_messages
from amqpstore.evidence.durable_positions import DurablePosition, read_positions
from amqpstore.evidence.identification import FileKind, IdentifiedFile, find_files, identify
from amqpstore.evidence.misplaced import Misplaced, find_misplaced, find_unneeded
from amqpstore.evidence.shortfall import (
    MissingMessages,
    ReadLog,
    Shortfall,
    find_shortfall,
    make_notes_durable,
)
from amqpstore.evidence.wrong_kinds import (
    WrongKind,
    find_wrong_kinds,
    names_in_store,
    refuse_wrong_kinds,
)

__all__ = [
    "AbsentIds",
    "AbsentMessages",
    "DurablePosition",
    "FileKind",
    "IdentifiedFile",
    "Misplaced",
    "MissingMessages",
    "ReadLog",
    "Shortfall",
    "WrongKind",
    "absent_messages",
    "find_files",
    "find_misplaced",
    "find_shortfall",
    "find_unneeded",
    "find_wrong_kinds",
    "identify",
    "make_notes_durable",
    "names_in_store",
    "read_positions",
    "refuse_wrong_kinds",
]
"""Names that other rooms use."""
