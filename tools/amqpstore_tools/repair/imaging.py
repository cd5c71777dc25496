"""A store as `StoreImage` shows it; without a readable catalog, with what a repair would keep."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amqpstore.errors import DamageError
from amqpstore.recovery.recovered import Recovered
from amqpstore_tools.offline.contents import StoredMessage
from amqpstore_tools.offline.image import LogTail, StoreImage
from amqpstore_tools.offline.messages import read_messages
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.offline.segments import SegmentImage

if TYPE_CHECKING:
    from amqpstore_tools.repair.exporting import Remains
    from amqpstore_tools.repair.remaining import Remaining


class RemainingImage(StoreImage):
    """The store in a directory, whose catalog may be lost or damaged. Created by `open`.

    If it is, `remaining` is what a repair would keep, and everything shown is taken from that.
    """

    remaining: Remaining | None = None

    def rows(self, table: str) -> Mapping[str, Any]:
        """Return the rows of a table as a repair would write them, or those of the catalog."""
        return self.remaining.rows(table) if self.remaining else super().rows(table)

    @cached_property
    def tail(self) -> LogTail:
        """The log behind the last checkpoint; all of it, if that is not known."""
        return self.remaining.tail if self.remaining else super().tail

    @cached_property
    def segments(self) -> list[SegmentImage]:
        """All segments, under whatever name, in the order of their ids."""
        return self.remaining.segments if self.remaining else super().segments

    @cached_property
    def queues(self) -> list[QueueImage]:
        """The stored queues, as in any image, each with what is known of its losses."""
        found = super().queues
        if self.remaining:
            for queue in found:
                self.remaining.add_losses(queue)
        return found

    @property
    def lost_count(self) -> int:
        """The number of messages that are lost, at least."""
        return self.remaining.lost_count if self.remaining else super().lost_count

    def messages(self, ids: Iterable[int]) -> Iterator[tuple[int, StoredMessage | None]]:
        """Yield messages of ascending ids, from whichever file a repair would take each."""
        if self.remaining:
            return read_messages(self.remaining.segment_of, ids)
        return super().messages(ids)

    @property
    def remains(self) -> Remains | None:
        """The parts that a repair would keep, if the catalog cannot be read."""
        return self.remaining.remains if self.remaining else None

    def find_remains(self) -> Remains:
        """Find what a repair would keep, whatever is damaged. It can be read until this is closed.

        Raises: UnknownStoreError, FormatVersionError, OSError.
        """
        # Imported here, so that a look at a sound store starts without the check.
        from amqpstore_tools.check.store import ReadableStore
        from amqpstore_tools.repair.exporting import find_remains

        catalog = os.path.dirname(self.catalog.path)
        store = ReadableStore(self.directory, self.files, catalog, is_live=self.is_live)
        return self._exit.enter_context(find_remains(store, self.tell))

    def _recover(self) -> Recovered:
        try:
            return super()._recover()
        except DamageError as error:
            from amqpstore_tools.repair.remaining import Remaining

            self.catalog_reason = error.reason
            self.remaining = Remaining(self.find_remains())
            self.notes += self.remaining.remains.truth.notes
            return self.remaining.recovered
