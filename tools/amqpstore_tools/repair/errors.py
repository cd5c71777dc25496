"""The reasons for which a repair is refused. Nothing was changed, unless the message says
otherwise.
"""

from __future__ import annotations

from amqpstore import StoreError


class RepairError(StoreError):
    """A repair, or its undo, cannot be done."""


class UnknownStoreError(RepairError):
    """Nothing in the directory says which store it belongs to."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"{directory}: no marker, catalog, copy of definitions or segment says which store "
            "this is, so no checksum in it can be verified. Restore it from a copy."
        )
        self.directory = directory


class ForeignFilesError(RepairError):
    """The owner of the store may not open some of its files. `cures` are commands that give them
    to that user.
    """

    def __init__(self, directory: str, cures: list[str]) -> None:
        super().__init__(
            f"{directory}: its owner may not open all of it, because other users own a part. "
            f"Nothing was changed. Give it to the owner first: {_some(cures, '; ')}"
        )
        self.directory = directory
        self.cures = cures


class BadPlanError(RepairError):
    """A file is not a plan, or was not made by this version."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a repair plan: {reason}. Make one with --plan.")
        self.path = path
        self.reason = reason


class BadJournalError(RepairError):
    """The journal of an earlier repair cannot be parsed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is not the journal of a repair: {reason}. Nothing was changed. What that "
            "repair had replaced is in the directory old/ beside it; move the whole directory "
            "elsewhere to go on without it."
        )
        self.path = path
        self.reason = reason


class StateDiffersError(RepairError):
    """The store has changed since the plan was made. `names` are some of the differences."""

    def __init__(self, directory: str, names: list[str]) -> None:
        super().__init__(
            f"the plan was made for another state of {directory} (changed since: {_some(names)}). "
            "Nothing was changed. Make a new plan with --plan."
        )
        self.directory = directory
        self.names = names


class OtherStoreError(RepairError):
    """The plan is for another store."""

    def __init__(self, directory: str, found: str, planned: str) -> None:
        super().__init__(
            f"the plan is for store {planned}, and {directory} is store {found}. "
            "Nothing was changed."
        )
        self.directory = directory
        self.found = found
        self.planned = planned


class UsedSinceError(RepairError):
    """The store was used since it was repaired: an undo would lose what it received."""

    def __init__(self, directory: str, names: list[str]) -> None:
        super().__init__(
            f"{directory} was used since it was repaired (changed since: {_some(names)}): an undo "
            "would lose what it received. Nothing was changed."
        )
        self.directory = directory
        self.names = names


class NothingToUndoError(RepairError):
    """No repair of this store is left to undo."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory}: there is no repair to undo.")
        self.directory = directory


class UndoneDiffersError(RepairError):
    """Files that a repair had kept have changed since."""

    def __init__(self, directory: str, names: list[str], kept: str) -> None:
        super().__init__(
            f"{directory}: every file is back in its place, but some files have changed "
            f"({_some(names)}): it was changed while it was in {kept}, or the disk is failing."
        )
        self.directory = directory
        self.names = names
        self.kept = kept


class NotCleanError(RepairError):
    """The repaired store would not be clean: this is a bug of amqpstore, or the disk is failing."""

    def __init__(self, directory: str, findings: list[str]) -> None:
        super().__init__(
            f"{directory}: the repaired store would not be clean ({_some(findings, '; ')}). "
            "Nothing was changed. Check the disk for errors, and report this."
        )
        self.directory = directory
        self.findings = findings


def _some(names: list[str], separator: str = ", ") -> str:
    return separator.join(names[:3] + ["..."] * (len(names) > 3))
