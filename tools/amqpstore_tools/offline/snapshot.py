"""A consistent state of a store that a broker runs on, taken without the broker's involvement.

It is the catalog as one of its commits left it (see `instant`), and every file that existed with
it, pinned (see `pinning`). A file that such a catalog names and that does not exist was lost: it
cannot have been removed, as only a later commit would have released it.

The end of the log may not be on disk yet. The last segment is `fdatasync`ed before it is read, as
recovery does, so that what is shown is durable; an incomplete batch is left out.
"""

from __future__ import annotations

import contextlib
from contextlib import ExitStack

from amqpstore.errors import DamageError
from amqpstore.system.filenames import INDEX, QUARANTINE, SEGMENTS, TRAILS
from amqpstore_tools.offline.instant import at_one_instant, copy_catalog
from amqpstore_tools.offline.locations import temporary_directory
from amqpstore_tools.offline.pinning import PinnedFiles


class Snapshot:
    """A snapshot of the store in `directory`: its `files`, and `catalog_path`, with a copy of its
    catalog.

    Args: needs_catalog; if not, it may be missing, or damaged so that its commits cannot be told
    apart. Then the files are those that there are now, and the catalog is copied as it is.
    Raises: SnapshotError, ToolError, DamageError (the catalog cannot be told apart from a torn
    one), OSError.
    """

    def __init__(self, directory: str, *, needs_catalog: bool = True) -> None:
        self.directory = directory
        self.files = PinnedFiles()
        self._exit = ExitStack()
        self._exit.callback(self.files.release)
        temporary = temporary_directory("amqpstore-snapshot-")
        self.catalog_path = self._exit.enter_context(temporary)
        try:
            try:
                at_one_instant(directory, self.catalog_path, self._pin)
            except (DamageError, FileNotFoundError):
                if needs_catalog:
                    raise
                self._pin()
                with contextlib.suppress(FileNotFoundError):
                    copy_catalog(directory, self.catalog_path)
        except BaseException:
            self._exit.close()
            raise

    def close(self) -> None:
        """Close all files."""
        self._exit.close()

    def _pin(self) -> None:
        # Pinned again each time, as a later commit may refer to other files of the same names.
        self.files.release()
        # Trails first: what they say is true of a log that is read after them.
        for name in (TRAILS, SEGMENTS, INDEX, QUARANTINE):
            self.files.pin(f"{self.directory}/{name}")
