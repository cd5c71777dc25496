"""The marker, the file that makes a directory a store, and the rules for creating one.

It is written last, under another name, synced and then renamed: a directory with a marker is a
store from that moment on, and what a crash leaves before that is not a store yet. A repair moves
the marker away while it replaces files, and brings the new one last.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from typing import NamedTuple

from amqpstore.errors import (
    DamageError,
    FormatVersionError,
    NotAStoreError,
    UnfinishedRepairError,
    UnreadableFileError,
)
from amqpstore.format.records import FORMAT_VERSION, READ_VERSIONS, checksum_seed
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    LOCK,
    MARKER,
    NEW_MARKER,
    QUARANTINE,
    REPAIR_JOURNAL,
    REPAIR_NEW,
    REPAIR_OLD,
    SEGMENTS,
    is_of_system,
    repair_number,
    segment_numbers,
)
from amqpstore.system.files import Files, FileType, NotAFileError
from amqpstore.system.replacing import replace_file

_TEXT = "amqpstore\nformat-version: {version}\nstore-id: {store_id}\n"
_PATTERN = re.compile(r"amqpstore\nformat-version: ([0-9]{1,9})\nstore-id: ([0-9a-f]{32})\n")
_VERSION = re.compile(r"amqpstore\nformat-version: ([0-9]{1,9})\n")


class Marker(NamedTuple):
    """The content of the marker: store id and format version."""

    store_id: uuid.UUID
    version: int

    @property
    def seed(self) -> int:
        """The seed of the checksums of the store's records."""
        return checksum_seed(self.store_id.bytes)

    @property
    def is_plain(self) -> bool:
        """Whether rows of the catalog may be without a checksum: see `rows`."""
        return self.version < FORMAT_VERSION


_REPAIR_STATE = re.compile(rb'^ "state": "(applying|undoing)"', re.MULTILINE)
"""In the journal of a repair. Names of files are further to the right."""

_NO_SUCH_PATH = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of a path, rather than of the disk or of the rights of a user."""

_TAIL_BYTES = 256
"""The state is the last line but one of a journal, which lists all files."""


def refuse_unfinished_repair(files: Files, directory: str) -> None:
    """Make sure that no repair of a store stopped half-way, whether or not its journal can be read.

    Raises: UnfinishedRepairError, OSError.
    """
    quarantine = os.path.join(directory, QUARANTINE)
    if files.type_of(quarantine) is not FileType.DIRECTORY:
        return
    for name in filter(repair_number, files.list_directory(quarantine)):
        tail = _tail(files, os.path.join(quarantine, name, REPAIR_JOURNAL))
        if found := _REPAIR_STATE.search(tail):
            is_undo = found[1] == b"undoing"
            raise UnfinishedRepairError(directory, f"{QUARANTINE}/{name}", is_undo=is_undo)
        # The journal may be damaged, or be gone: where the marker is says the same.
        if is_half_done(files, directory, name):
            raise UnfinishedRepairError(directory, f"{QUARANTINE}/{name}", is_damaged=True)


def is_half_done(files: Files, directory: str, repair: str) -> bool:
    """Tell whether a repair has moved the store's marker away and not brought the new one, whatever
    its journal says. Args: repair, the name of its directory in `quarantine/`.
    """
    within = os.path.join(directory, QUARANTINE, repair)
    old = os.path.join(within, REPAIR_OLD)
    if files.type_of(os.path.join(directory, MARKER)) is not FileType.MISSING:
        return False
    if files.type_of(os.path.join(within, REPAIR_NEW, MARKER)) is not FileType.FILE:
        return False
    # With nothing in there, it had only been prepared.
    return files.type_of(old) is FileType.DIRECTORY and bool(files.list_directory(old))


def _tail(files: Files, path: str) -> bytes:
    """Return the end of a journal; nothing if there is none. Raises: OSError."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return b""
    try:
        return file.read(max(file.size() - _TAIL_BYTES, 0), _TAIL_BYTES)
    finally:
        file.close()


def create_directory(files: Files, directory: str) -> None:
    """Create the directory of a store, unless it exists.

    Raises: NotAStoreError, if there can be no directory of this name; OSError.
    """
    try:
        files.make_directory(directory)
    except OSError as error:
        if error.errno not in _NO_SUCH_PATH:
            raise
        where = f" at {error.filename}" if error.filename not in (None, directory) else ""
        reason = f"it is not there, and cannot be created ({error.strerror}{where})"
        raise NotAStoreError(directory, reason) from None


def check_directory(files: Files, directory: str) -> None:
    """Raises: NotAStoreError, when `directory` is a file, or neither a store nor empty;
    UnfinishedRepairError.

    The remains of a store whose creation was interrupted by a crash count as empty, and so does
    what the file system has put there.
    """
    if not files.exists(directory):
        return
    try:
        names = set(files.list_directory(directory))
    except NotADirectoryError:
        raise NotAStoreError(directory, "it is a file") from None
    refuse_unfinished_repair(files, directory)
    if MARKER in names:
        return
    # Remains of a creation that a crash has cut off are finished; anything else belongs to
    # somebody.
    foreign = sorted(names - {LOCK, NEW_MARKER, CATALOG, SEGMENTS, INDEX})
    has_segments = False
    for name in sorted(names & {SEGMENTS, INDEX}):
        path = os.path.join(directory, name)
        if files.type_of(path) is not FileType.DIRECTORY:
            foreign.append(name)
            continue
        within = files.list_directory(path)
        has_segments |= name == SEGMENTS and bool(segment_numbers(within))
        foreign += [os.path.join(name, one) for one in within if not is_of_system(one)]
    foreign = [name for name in foreign if not is_of_system(name)]
    if foreign:
        some = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        reason = f"it contains {some} but no file {MARKER}"
        raise NotAStoreError(directory, reason, has_segments=has_segments)


def read(files: Files, directory: str) -> Marker | None:
    """Read the marker; None if there is none. Raises: FormatVersionError, DamageError, OSError."""
    path = os.path.join(directory, MARKER)
    try:
        file = files.open(path)
    except NotAFileError as error:
        # A marker may lie where a link leads: so this is not a directory for a new store.
        raise UnreadableFileError(path, error.strerror or "") from None
    except FileNotFoundError:
        return None
    try:
        # The read is bounded: somebody may have put a huge file there by mistake.
        text = file.read(0, 4096).decode("utf-8", "replace")
    finally:
        file.close()
    # The version before the rest: a newer format may have more lines, and has to be refused by its
    # number.
    if (version := _VERSION.match(text)) and int(version[1]) not in READ_VERSIONS:
        raise FormatVersionError(directory, int(version[1]), FORMAT_VERSION)
    if not (match := _PATTERN.fullmatch(text)):
        raise DamageError(path, 0, "it cannot be parsed as the marker of a store")
    return Marker(uuid.UUID(match[2]), int(match[1]))


def require(files: Files, directory: str) -> Marker:
    """Return the marker. Raises: NotAStoreError (there is none), UnfinishedRepairError, and as
    `read`.
    """
    refuse_unfinished_repair(files, directory)
    found = read(files, directory)
    if found is None:
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    return found


def write(files: Files, directory: str, store_id: uuid.UUID, version: int = FORMAT_VERSION) -> None:
    """Make a directory with a catalog a store. Durable on return."""
    text = _TEXT.format(version=version, store_id=store_id.hex)
    replace_file(files, directory, MARKER, text.encode())
