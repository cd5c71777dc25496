"""Descriptors: limits how many files a store has open, and handles the lack of descriptors.

A process may open a limited number of files (RLIMIT_NOFILE), and a broker's clients use most of
them. So a store keeps few files open for reading: those that were used last. A new segment of the
log must not wait for others to close theirs, so some descriptors are reserved: see
`files.SpareDescriptors`.

A lack of descriptors or memory says nothing about the data on the disk: it passes.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import ParamSpec

from amqpstore.system.files import SPARE, File, Files

MAX_OPEN_TO_READ = 64
"""How many files one store has open for reading."""

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

_FOR_THE_LOG = 4
"""Spare descriptors that may not be used for reading."""

_TRIES = 20
_PAUSE_S = 0.1

_Arguments = ParamSpec("_Arguments")


def is_shortage(error: BaseException) -> bool:
    """Tell whether the process, and not the disk, is the reason why a file could not be opened or
    read.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in SHORTAGES
    )


def open_to_read(files: Files, path: str) -> File:
    """Open a file as `Files.open` does, with a spare descriptor if there is no other. Raises:
    OSError.
    """
    try:
        return files.open(path)
    except OSError as error:
        if error.errno not in _NO_DESCRIPTOR or not SPARE.give_up(keep=_FOR_THE_LOG):
            raise
    return files.open(path)


def insist(
    call: Callable[_Arguments, None], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> None:
    """Call something that opens a file and must not fail for lack of descriptors.

    Uses the spare ones; if others were faster it waits for one, about two seconds.
    Raises: OSError.
    """
    for tries in range(_TRIES):
        try:
            return call(*arguments, **named)
        except OSError as error:
            # Nothing was done: a file that was not opened has not changed.
            if error.errno not in _NO_DESCRIPTOR:
                raise
        if not SPARE.give_up() and tries:
            time.sleep(_PAUSE_S)
    return call(*arguments, **named)


class Descriptors:
    """The files of one store that are open for reading. For one thread; `files` opens them."""

    def __init__(self, files: Files, most: int = MAX_OPEN_TO_READ) -> None:
        self.files = files
        self._most = most
        self._open: OrderedDict[str, File] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def open(self, path: str) -> File:
        """Return a file, to be read before the next call. Raises: OSError."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        while len(self._open) >= self._most:
            self._close_oldest()
        while True:
            try:
                file = open_to_read(self.files, path)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._open:
                    raise
                self._close_oldest()
            else:
                self._open[path] = file
                return file

    def detach(self, path: str) -> File | None:
        """Remove a file that is not read any more, to be closed by the caller; None if it is not
        open.

        Closing the last descriptor of a removed file can take a while.
        """
        return self._open.pop(path, None)

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._open.popitem(last=False)[1].close()
