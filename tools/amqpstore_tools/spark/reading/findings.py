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
    for finding in checked.findings:
        yield (
            finding.code,
            str(finding.severity),
            finding.file,
            finding.offset if finding.offset >= 0 else None,
            finding.text,
            finding.queue or None,
            finding.queue_id or None,
            finding.sequence or None,
            finding.message_id or None,
            finding.messages or None,
        )
