"""Reads files that may be on a failing disk: unreadable parts become zeros and a finding."""

from __future__ import annotations

import errno
import os

from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Findings

_PAGE_BYTES = 4096


class StoreFile:
    """A file of the store in `directory`; `name` is relative to it. Raises: FileNotFoundError.

    Parts that cannot be read become a finding `file-unreadable`, and are read as zeros.
    """

    def __init__(self, files: Files, directory: str, name: str, findings: Findings) -> None:
        self.name = name
        self._findings = findings
        self._file = files.open(os.path.join(directory, name))
        self.size = self._file.size()

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end of the file.

        Raises: OSError, if they do not fit in memory.
        """
        try:
            return self._file.read(offset, size)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise  # This would not fit in memory page by page either.
        end = min(offset + size, self.size)
        pages = (
            self._page(start, min(_PAGE_BYTES, end - start))
            for start in range(offset, end, _PAGE_BYTES)
        )
        return b"".join(pages)

    def _page(self, offset: int, size: int) -> bytes:
        try:
            return self._file.read(offset, size).ljust(size, b"\0")
        except OSError as error:
            self._findings.add("file-unreadable", self.name, str(error), offset)
            return bytes(size)

    def close(self) -> None:
        self._file.close()
