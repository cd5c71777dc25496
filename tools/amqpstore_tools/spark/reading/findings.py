"""View `findings`: the findings of `amqpstore check`, as rows.

One task checks the whole store, as not all of a check can be distributed over independent tasks:
`amqpstore check --engine spark` distributes everything, in three jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpstore.errors import StoreLockedError
from amqpstore_tools.check.engine import check


def finding_rows(directory: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the view; a broker may be running on the store.

    Raises: NotAStoreError, FormatVersionError, SnapshotError, OSError.
    """
    try:
        checked = check(directory)
    except StoreLockedError:
        checked = check(directory, live=True)
    for found in checked.findings:
        yield (
            found.code,
            str(found.severity),
            found.file,
            found.offset if found.offset >= 0 else None,
            found.text,
            found.queue or None,
            found.queue_id or None,
            found.sequence or None,
            found.message_id or None,
            found.messages or None,
        )
