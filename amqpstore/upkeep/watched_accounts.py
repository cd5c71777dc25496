"""The accounts of segments, for those who watch a store while a worker changes them."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.checkpoints.checkpoint_state import CheckpointState
from amqpstore.evidence.absence import Absence
from amqpstore.upkeep.background import Background


class CountedAccount(NamedTuple):
    """The counts of a segment, as of a checkpoint."""

    end_bytes: int
    garbage_bytes: int
    messages: int
    live_messages: int


class WatchedAccounts:
    """The counts of a store's segments, and which messages their files lack.

    While there is work in the background, the checkpoint's state and its accounts belong to the
    worker: then these are the values of the moment before it began, which `count` has noted.
    """

    def __init__(self, state: CheckpointState, background: Background, absence: Absence) -> None:
        self._state = state
        self._background = background
        self._absence = absence
        self._counted: dict[int, CountedAccount] = {}

    def count(self) -> None:
        """Note the counts, unless the worker has the accounts. To be called right before it gets
        them.
        """
        if not self._background.work:
            self._counted = {
                one.number: CountedAccount(
                    one.end_bytes, one.garbage_bytes, one.count, one.live_count
                )
                for one in self._state.accounts
            }

    def counted(self) -> dict[int, CountedAccount]:
        """Return the counts of each segment that a checkpoint has counted, by its number."""
        self.count()
        return self._counted

    def absence(self) -> Absence:
        """Return which messages the files of segments lack, as of the last checkpoint.

        Raises: OSError.
        """
        if not self._background.work:
            self._absence.look(self._state.accounts)
        return self._absence
