"""Undo of a repair: restores exactly the state before it."""

from __future__ import annotations

from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.repair.apply import locked
from amqpstore_tools.repair.errors import NothingToUndoError, UndoneDiffersError, UsedSinceError
from amqpstore_tools.repair.journal import (
    Repair,
    State,
    clear_remains,
    remove_empty_quarantine,
    repairs,
)
from amqpstore_tools.repair.listing import differences, listing


def undo(directory: str, tell: Progress = lambda *_: None) -> Repair:
    """Undo the last repair, even an interrupted one. It is durable on return.

    Raises: NothingToUndoError, UsedSinceError (nothing was changed), UndoneDiffersError,
    NotAStoreError, StoreLockedError, OSError (it may be called again).
    """
    with locked(directory):
        clear_remains(repairs(directory))
        repair = next((one for one in reversed(repairs(directory)) if one.journal), None)
        if repair is None or repair.journal is None:
            remove_empty_quarantine(directory)
            raise NothingToUndoError(directory)
        journal = repair.journal
        if journal.state is State.APPLIED:
            if names := differences(journal.after, listing(directory, tell)):
                raise UsedSinceError(directory, names)
            # Durable before the first file is moved back: after a crash in between, `go_on` would
            # mend the wrong half.
            repair.set_state(State.UNDOING)
        elif journal.state is State.APPLYING:
            repair.set_state(State.UNDOING)
        repair.go_back()
        if names := differences(journal.before, listing(directory, tell)):
            raise UndoneDiffersError(directory, names, repair.name)
        repair.set_state(State.UNDONE)
        # A crash before it is done leaves remains, which `clear_remains` removes.
        repair.remove()
        return repair
