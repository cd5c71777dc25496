"""Commits files to an archive: those of a run all at once, and only once.

1. Tasks write files to `_staging/RUN-TOKEN/`, each synced before it is renamed. The token is new
   for each attempt: tasks of a killed driver may still write to theirs.
2. The staging directories are synced. `RUN.prepared`, the manifest of the run, is written, synced
   and renamed into place.
3. The files are renamed to their final places, and the directories synced.
4. `RUN.prepared` is renamed to `RUN.json`. From now on the run counts.

A crash before the end of 2 leaves staging files of a run that never happened; the next run removes
them. After a later crash the next run, or the next opening for writing, continues with 3, which can
be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from amqpstore.system.filenames import is_of_system
from amqpstore_tools.archive.errors import ArchiveError
from amqpstore_tools.archive.layout import (
    COMMITTED,
    LOCK,
    MANIFESTS,
    PREPARED,
    STAGING,
    manifest_name,
)
from amqpstore_tools.archive.manifest import ArchiveManifest, FileEntry, decode, encode


class Archive:
    """The archive in `directory`, which is created if necessary. See `writing_to`."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self._manifests = os.path.join(self.directory, MANIFESTS)

    def manifests(self) -> list[ArchiveManifest]:
        """Return the manifests of all runs, in order. Raises: ArchiveError, OSError."""
        try:
            names = sorted(os.listdir(self._manifests))
        except FileNotFoundError:
            raise ArchiveError(
                self.directory, "it does not exist. Create it with amqpstore archive."
            ) from None
        return [self._manifest(name) for name in names if name.endswith(COMMITTED)]

    def staging(self, name: str) -> str:
        """Return the directory where tasks write the files of a run."""
        return os.path.join(self.directory, STAGING, name)

    def commit(self, manifest: ArchiveManifest) -> None:
        """Make the files of a run part of the archive. Raises: OSError."""
        staging = self.staging(manifest.staging)
        for directory in sorted(_directories(manifest.files)):
            _sync_chain(staging, directory)
        prepared = os.path.join(self._manifests, manifest_name(manifest.run, PREPARED))
        _write(prepared, encode(manifest))
        self._finish(manifest)

    def settle(self) -> None:
        """Finish what a killed run has begun. Raises: ArchiveError, OSError."""
        for name in sorted(os.listdir(self._manifests)):
            if name.endswith(PREPARED):
                self._finish(self._manifest(name))
        # A task that outlives its driver writes to a directory of its own, which the next run
        # removes.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(os.path.join(self.directory, STAGING))

    def make(self) -> None:
        """Create its directories. Raises: ArchiveError, if something else is there; OSError."""
        if os.path.isdir(self.directory) and not os.path.isdir(self._manifests):
            others = [name for name in os.listdir(self.directory) if not is_of_system(name)]
            if others:
                raise ArchiveError(
                    self.directory,
                    "the directory is not an archive, and not empty: it contains "
                    f"{min(others)!r}. Name another.",
                )
        os.makedirs(self._manifests, exist_ok=True)
        _sync(self.directory)

    def _finish(self, manifest: ArchiveManifest) -> None:
        staging = self.staging(manifest.staging)
        for entry in manifest.files:
            staged = os.path.join(staging, entry.path)
            target = os.path.join(self.directory, entry.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.rename(staged, target)
            except FileNotFoundError:
                # An earlier run may have renamed the file before a crash.
                if not os.path.exists(target):
                    reason = f"{entry.path} of run {manifest.run} is neither staged nor in place"
                    raise ArchiveError(self.directory, reason) from None
        # The files are durable before the manifest says that they count.
        for directory in sorted(_directories(manifest.files)):
            _sync_chain(self.directory, directory)
        os.rename(
            os.path.join(self._manifests, manifest_name(manifest.run, PREPARED)),
            os.path.join(self._manifests, manifest_name(manifest.run)),
        )
        _sync(self._manifests)
        shutil.rmtree(os.path.dirname(staging), ignore_errors=True)

    def _manifest(self, name: str) -> ArchiveManifest:
        path = os.path.join(self._manifests, name)
        with open(path, "rb") as file:
            content = file.read()
        try:
            return decode(content, os.path.splitext(name)[0])
        except (ValueError, RecursionError) as error:
            raise ArchiveError(
                self.directory, f"{MANIFESTS}/{name} cannot be read: {error}"
            ) from None


@contextlib.contextmanager
def writing_to(directory: str) -> Iterator[Archive]:
    """Open the archive for writing, exclusively and with unfinished runs completed. Raises:
    ArchiveError, OSError.
    """
    archive = Archive(directory)
    archive.make()
    lock = os.open(os.path.join(directory, MANIFESTS, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(directory, "another run is writing to it. Wait for it.") from None
        archive.settle()
        yield archive
    finally:
        os.close(lock)


def _directories(files: list[FileEntry]) -> set[str]:
    return {os.path.dirname(entry.path) for entry in files}


def _sync_chain(root: str, directory: str) -> None:
    """Sync a directory, and those above it up to the root."""
    # Each directory may be new, and then its name is in the one above.
    while directory:
        _sync(os.path.join(root, directory))
        directory = os.path.dirname(directory)
    _sync(root)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes) -> None:
    new = f"{path}.new"
    with open(new, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)
    _sync(os.path.dirname(path))
