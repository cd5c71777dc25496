"""Definitions: each is durable on return, or waits for others, in a group.

A group costs one commit, whatever the number of its definitions. They take effect in memory at
once, so the log may name a queue of the group before its row is durable: the group is committed
before the batch is sealed, as a crash must not leave operations on a queue whose row is missing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from amqpstore.catalog.catalog import Catalog, Change, Value, check_change
from amqpstore.errors import DiskFullError, DurabilityError, NoMemoryError
from amqpstore.log.log import Log
from amqpstore.log.open_state import OpenState
from amqpstore.log.space import Space, is_no_space


class GroupedDefinitions:
    """The definitions in the catalog of one store, each durable on return unless they are grouped.

    Nothing else commits them, so their order in the catalog is the order in which they took effect.
    A queue that `waiting` defines is in the catalog before the log names it on disk: `commit_group`
    runs before the open batch is sealed. Args: committed, is called after each commit.
    """

    def __init__(
        self,
        directory: str,
        catalog: Catalog,
        log: Log,
        space: Space,
        state: OpenState,
        committed: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._log = log
        self._space = space
        self._state = state
        self._committed = committed
        self._is_grouping = False
        self.waiting: list[Change] = []
        """Changes that were defined in the group and are not committed yet."""

    def begin_group(self) -> None:
        """Have definitions wait for `end_group`: many of them cost one commit.

        They take effect in memory at once, but are durable only after that call; promise nothing
        about them before. Little may happen in between. While the disk is nearly full nothing
        waits, so that what does not fit is refused.
        """
        self._is_grouping = True

    def end_group(self) -> None:
        """Commit the group, all of it or, after a crash, none; each further definition is committed
        at once. Raises: as `commit_group`.
        """
        self._is_grouping = False
        self.commit_group()

    def rows(self, table: str) -> dict[str, Value]:
        """Return all rows of one of the catalog's tables, by key. Raises: as `commit_group`."""
        self.commit_group()
        return self._catalog.rows(table)

    def define(self, changes: Sequence[Change]) -> None:
        """Change definitions, atomically: now, or with the group. Raises: as `commit`."""
        self._state.check()
        if self._is_grouping and not self._space.is_low:
            for change in changes:
                check_change(change)
            self.waiting += changes
            # A batch that names a queue of the group must not be on disk before its row: recovery
            # drops operations on a queue that the catalog does not have.
            self._log.before_seal = self.commit_group
        else:
            self.commit(changes)

    def commit_group(self) -> None:
        """Commit the definitions that wait, if any do.

        Raises: DurabilityError, also if the disk is full: others may have seen these definitions
        already, so none can be refused any more.
        """
        if not self.waiting:
            return
        grouped, self.waiting = self.waiting, []
        self._log.before_seal = None
        try:
            self.commit(grouped)
        except DiskFullError:
            self._space.give_up()
            try:
                self.commit(grouped)
            except DiskFullError as error:
                raise self._state.fail(error) from error

    def commit(self, changes: Sequence[Change]) -> None:
        """Commit definitions now. Raises: DiskFullError, NoMemoryError (nothing is changed then),
        DurabilityError.
        """
        self._state.check()
        self.commit_group()
        if not changes:
            return
        try:
            self._catalog.commit(changes)
        except DurabilityError as error:
            raise self._state.fail(error)  # noqa: B904 (the same error)
        except OSError as error:
            if is_no_space(error):
                raise self._space.error() from error
            if error.errno == errno.ENOMEM:
                raise NoMemoryError(self._directory, str(error.strerror)) from error
            raise self._state.fail(error) from error
        self._committed()
