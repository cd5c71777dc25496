"""The companion of a leader's log: it sends each batch to the followers, and tells when all that
count have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from amqpstore.catalog.catalog import Catalog
from amqpstore.log.batch import Batch


class Companion(Protocol):
    """Is called for each batch in this order: `begin` and `written` by the thread that writes it,
    `is_committed` by that one and by the owner of the log. A single node has none.

    Raises, in all three: DeposedError, if this member leads no longer.
    """

    on_committed: Callable[[], None]
    """Called when a batch was committed of which `is_committed` has said that it is not, or when
    none will be any more; in any thread.
    """

    def begin(self, batch: Batch) -> None:
        """Send a batch, which is encoded, to the followers: meanwhile it is written here."""

    def written(self, batch: Batch) -> None:
        """Note that the batch is durable here."""

    def is_committed(self, batch: Batch, *, wait: bool = False) -> bool:
        """Return whether the batch is committed: nothing may be promised about it before.

        Args: wait, until it is, however long that takes: whoever does not answer is waited for
        until it no longer counts.
        """

    def replicate(self, catalog: Catalog) -> Catalog:
        """Return a catalog that is the given one, and sends changes of definitions as well."""
