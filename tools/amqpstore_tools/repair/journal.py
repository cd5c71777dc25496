"""The directory of a repair: what it replaced, and a journal by which it is finished or undone.

`quarantine/repair-N/` holds `old/`, what was moved out of the store; `new/`, what is to be moved
in; and `journal.json`. Files are moved by renaming them, in this order:

1. The new files are written to `new/`, and the journal says `applying`. All of it is durable.
2. The store's marker is moved to `old/`: without it, no broker opens the directory.
3. All files that are replaced or removed are moved to `old/`, then the new ones are moved in.
4. The new marker is moved in. The journal says `applied`.

A crash before the end of 1 leaves a directory without a journal, which is ignored. After a later
crash the place of each file shows whether it was moved, so that `go_on` does the rest and `go_back`
the opposite; both may be repeated.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import msgspec

from amqpstore.errors import UnfinishedRepairError
from amqpstore.identity.marker import is_half_done
from amqpstore.system import ownership
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_LOCK,
    LOCK,
    MARKER,
    QUARANTINE,
    REPAIR_JOURNAL,
    REPAIR_NEW,
    REPAIR_OLD,
    repair_number,
    repair_path,
)
from amqpstore.system.files import NotAFileError, OsFiles, naming, open_regular
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.repair.errors import BadJournalError
from amqpstore_tools.repair.listing import Listing, digest_of, listing

OLD, NEW = REPAIR_OLD, REPAIR_NEW
PLAN = "plan.json"
_ASIDE = "quarantine.aside"


class State(enum.StrEnum):
    """The state of a repair."""

    APPLYING = "applying"
    APPLIED = "applied"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass
class Journal:
    """The journal of one repair. Names are relative to the directory of the store.

    `moves` go to `old/`, `puts` come from `new/`; `directories` were created, and an undo removes
    them again. `before` and `after` list the store.
    """

    plan: str
    store_id: str
    moves: list[str]
    puts: list[str]
    directories: list[str]
    before: Listing
    after: Listing
    state: State = State.APPLYING
    version: int = 1


@dataclass
class Repair:
    """Repair `number` of the store in `directory`; `journal` is None if it was not begun."""

    directory: str
    number: int
    journal: Journal | None = field(default=None)

    @property
    def path(self) -> str:
        return repair_path(self.directory, self.number)

    @property
    def name(self) -> str:
        """The path of the file, relative to the store's directory."""
        return f"{QUARANTINE}/{os.path.basename(self.path)}"

    @property
    def is_unfinished(self) -> bool:
        """Whether some files may have been moved and others not."""
        return self.journal is not None and self.journal.state in (State.APPLYING, State.UNDOING)

    def unfinished_error(self) -> UnfinishedRepairError:
        """Return the error for a store whose repair `is_unfinished`."""
        is_undo = self.journal is not None and self.journal.state is State.UNDOING
        return UnfinishedRepairError(self.directory, self.name, is_undo=is_undo)

    def create(self) -> None:
        """Create the directory, with its `new/`. Raises: OSError.

        What has the name of `quarantine/` and is not a directory goes to `old/`; if this is killed
        before that, it is called `quarantine.aside`, which a check names as an unknown file.
        """
        quarantine = os.path.dirname(self.path)
        aside = self._stored_path(_ASIDE)
        if is_other := os.path.lexists(quarantine) and not os.path.isdir(quarantine):
            os.rename(quarantine, aside)
        OsFiles().make_directory(os.path.join(self.path, NEW))
        if is_other:
            self._move(aside, self._path(OLD, QUARANTINE))

    def write(self, journal: Journal) -> None:
        """Make the journal durable, with everything in the directory. Raises: OSError."""
        self.journal = journal
        # `refuse_unfinished_repair` reads the state from its last lines.
        text = json.dumps(asdict(journal), indent=1)
        write_durably(os.path.join(self.path, REPAIR_JOURNAL), text)
        for path in (self.path, os.path.dirname(self.path), self.directory):
            OsFiles().sync_directory(path)

    def set_state(self, state: State) -> None:
        """Record the state, durably."""
        if self.journal is None:
            raise ValueError(f"{self.path} has no journal")
        self.journal.state = state
        self.write(self.journal)

    def go_on(self) -> None:
        """Finish an interrupted repair or undo. Raises: OSError; it may be called again."""
        journal = self._begun()
        moves = sorted(journal.moves, key=lambda name: name != MARKER)
        for name in moves:
            old = self._path(OLD, name)
            # What is in `old/` was moved before a crash, and what has its name by now is new.
            if not os.path.lexists(old):
                self._move(self._stored_path(name), old)
            # Durable before any other file is moved: no broker may open what a crash leaves half
            # moved.
            if name == MARKER:
                self._sync()
        self._forget_lock()
        for name in journal.directories:
            ownership.make_directories(self._stored_path(name))
        for name in sorted(journal.puts, key=lambda name: name == MARKER):
            # All else is durable before the directory is a store again.
            if name == MARKER:
                self._sync()
            self._move(self._path(NEW, name), self._stored_path(name))
        # Before the journal says that all is done: it would not be looked at again.
        self._sync()
        self.set_state(State.APPLIED)

    def go_back(self) -> None:
        """Move everything back to where it was. Raises: OSError; it may be called again."""
        journal = self._begun()
        moved = set(journal.moves)
        for name in sorted(journal.puts, key=lambda name: name != MARKER):
            new = self._path(NEW, name)
            # The file in its place is the old one as long as that is not in `old/`.
            is_in = name not in moved or os.path.lexists(self._path(OLD, name))
            if not os.path.lexists(new) and is_in:
                self._move(self._stored_path(name), new)
            # As in `go_on`: from here until the old marker is back no broker opens the directory.
            if name == MARKER:
                self._sync()
        self._forget_lock()
        # Before the rest: something else may have had the name of one of them.
        for name in sorted(journal.directories, reverse=True):
            with contextlib.suppress(OSError):
                os.rmdir(self._stored_path(name))
        if os.path.lexists(self._path(OLD, LOCK)):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._stored_path(LOCK))
        for name in sorted(journal.moves, key=lambda name: name == MARKER):
            if name == MARKER:
                self._sync()
            self._move(self._path(OLD, name), self._stored_path(name))
        self._sync()

    def remove(self) -> None:
        """Remove the directory, the journal last; and `quarantine/` if nothing else is in it.

        Only for a repair that was not begun, or that is undone.
        """
        replaced, aside = self._path(OLD, QUARANTINE), self._stored_path(_ASIDE)
        if os.path.lexists(replaced) and not os.path.isdir(replaced):
            os.rename(replaced, aside)
        for name in (NEW, OLD, "trial"):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        shutil.rmtree(self.path)
        remove_empty_quarantine(self.directory)
        if os.path.lexists(aside) and not os.path.lexists(self._stored_path(QUARANTINE)):
            os.rename(aside, self._stored_path(QUARANTINE))

    def _begun(self) -> Journal:
        if self.journal is None:
            raise ValueError(f"{self.path} has no journal")
        return self.journal

    def _stored_path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _path(self, part: str, name: str) -> str:
        return os.path.join(self.path, part, name)

    def _forget_lock(self) -> None:
        """Remove LMDB's lock file, which it recreates: it must not find that of another
        environment.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(self.directory, CATALOG, CATALOG_LOCK))

    @staticmethod
    def _move(path: str, to: str) -> None:
        """Rename a file, unless it is done already."""
        if os.path.lexists(path):
            ownership.make_directories(os.path.dirname(to))
            os.rename(path, to)

    def _sync(self) -> None:
        """Make all moves durable."""
        for root in (self.directory, self.path):
            for path, names, _ in os.walk(root):
                if path == self.directory:
                    names[:] = [name for name in names if name != QUARANTINE]
                OsFiles().sync_directory(path)
        OsFiles().sync_directory(os.path.dirname(self.path))


def repairs(directory: str) -> list[Repair]:
    """Return all existing repairs of a store, the first one first.

    Raises: BadJournalError, OSError.
    """
    found = []
    for number in _numbers(directory):
        repair = Repair(directory, number)
        if not os.path.isdir(repair.path):
            continue
        name = os.path.basename(repair.path)
        try:
            repair.journal = _read(os.path.join(repair.path, REPAIR_JOURNAL))
        except BadJournalError:
            if not is_half_done(ReadOnlyFiles(), directory, name):
                raise
        if repair.journal is None and is_half_done(ReadOnlyFiles(), directory, name):
            repair.journal = _by_plan(repair)
        found.append(repair)
    return found


def next_repair(directory: str) -> Repair:
    """Return the next repair of a store, which does not exist yet. Raises: OSError."""
    return Repair(directory, max(_numbers(directory), default=0) + 1)


def _numbers(directory: str) -> list[int]:
    names = ReadOnlyFiles().list_directory(os.path.join(directory, QUARANTINE))
    return sorted(number for name in names if (number := repair_number(name)))


def _read(path: str) -> Journal | None:
    """Return a journal; None if there is none. Raises: BadJournalError, OSError."""
    try:
        with open(open_regular(path), "rb") as file:
            content = file.read()
    except NotAFileError as error:
        raise BadJournalError(path, error.strerror or "") from None
    except FileNotFoundError:
        return None
    try:
        # json.loads: names of files may be no UTF-8, and msgspec's decoder takes only text that is.
        journal = msgspec.convert(json.loads(content), Journal)
    except (ValueError, RecursionError) as error:
        raise BadJournalError(path, str(error)) from None
    _check_names(path, [*journal.moves, *journal.puts, *journal.directories])
    return journal


def _check_names(path: str, names: Iterable[str]) -> None:
    """Make sure that names by which files are moved do not lead out of the store.

    Raises: BadJournalError.
    """
    for name in names:
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise BadJournalError(path, f"{name!r} is not the name of a file in a store")


class _PlannedFiles(msgspec.Struct):
    """The part of a repair's plan that is about its files: see `RepairPlan`."""

    store_id: str
    files: Listing
    moves: list[str]


def _by_plan(repair: Repair) -> Journal:
    """Return the journal of a repair that `is_half_done`, by its plan and by where its files are.

    What it puts into the store is still in `new/`, or in its place: there it is what was not there
    before, or what has taken the place of a file in `old/`. No broker has opened the store since:
    so everything in the store is of the one or of the other.
    Raises: BadJournalError, OSError.
    """
    path = os.path.join(repair.path, PLAN)
    try:
        with open(open_regular(path), "rb") as file:
            content = json.loads(file.read())
        plan = msgspec.convert(content, _PlannedFiles)
    except (OSError, ValueError, RecursionError) as error:
        raise BadJournalError(os.path.join(repair.path, REPAIR_JOURNAL), str(error)) from None
    _check_names(path, plan.moves)
    new, there = listing(os.path.join(repair.path, NEW)), listing(repair.directory)
    old = os.path.join(repair.path, OLD)
    put = {
        name: row
        for name, row in there.items()
        if name not in plan.files or os.path.lexists(os.path.join(old, name))
    }
    moved = tuple(f"{name}/" for name in plan.moves) or ("\0",)
    kept = {
        name: row
        for name, row in plan.files.items()
        if name not in plan.moves and not name.startswith(moved)
    }
    files = {name for name, row in (put | new).items() if row[0] == "file"}
    folders = {name for name, row in (put | new).items() if row[0] == "directory"}
    return Journal(
        plan=digest_of({"plan": [json.dumps(content, sort_keys=True)]}),
        store_id=plan.store_id,
        moves=plan.moves,
        puts=sorted(files),
        directories=sorted(one for one in folders if plan.files.get(one, [""])[0] != "directory"),
        before=plan.files,
        after=kept | put | new,
    )


def unfinished(directory: str) -> Repair | None:
    """Return the repair that was interrupted, if any."""
    return next((one for one in repairs(directory) if one.is_unfinished), None)


def clear_remains(found: Iterable[Repair]) -> None:
    """Remove the remains of repairs that were never begun, or that are undone."""
    for repair in found:
        is_undone = repair.journal is not None and repair.journal.state is State.UNDONE
        kept = os.path.join(repair.path, OLD)
        was_begun = os.path.isdir(kept) and bool(os.listdir(kept))
        if is_undone or (repair.journal is None and not was_begun):
            repair.remove()


def remove_empty_quarantine(directory: str) -> None:
    """Remove `quarantine/` if nothing is in it: it is only created when it is needed."""
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(directory, QUARANTINE))


def write_durably(path: str, text: str) -> None:
    """Write a file under another name, sync it and rename it. Raises: OSError."""
    new_path = f"{path}.new"
    with naming(new_path), open(new_path, "w", encoding="utf-8") as file:
        ownership.give(file.fileno(), os.path.dirname(path))
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new_path, path)
    OsFiles().sync_directory(os.path.dirname(os.path.abspath(path)))
