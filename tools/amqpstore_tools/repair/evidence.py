"""Evidence of the last checkpoint's accounts on messages: how many queues held each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore.log.segment_accounts import SegmentAccount


class Accounted:
    """The consistent accounts. Args: rows, None if the catalog is lost."""

    def __init__(self, rows: Rows | None) -> None:
        found = tables.SEGMENTS.read(rows.__getitem__).values() if rows else ()
        self._accounts = sorted(
            filter(_agrees, map(SegmentAccount.of_row, found)), key=attrgetter("first_id")
        )

    def references(self, message_id: int) -> int | None:
        """Return how many queues held a message; None if unknown."""
        index = bisect_right(self._accounts, message_id, key=attrgetter("first_id")) - 1
        if index < 0 or message_id >= self._accounts[index].end_id:
            return None
        account = self._accounts[index]
        if account.ids is None:
            return account.references[message_id - account.first_id] if account.references else 1
        at = account.ids.find(message_id)
        if at < 0:
            return None
        return account.references[at] if account.references else 1

    def live(self) -> Iterator[tuple[int, int]]:
        """Yield id and references of each message that was live, ascending."""
        for account in self._accounts:
            yield from account.live()


def _agrees(account: SegmentAccount) -> bool:
    if account.references is None:
        return account.live_count == account.count
    return account.live_count == len(account.references) - account.references.count(0)
