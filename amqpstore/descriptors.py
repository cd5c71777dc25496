"""Descriptors: how many files a store has open, and what it does when it can open no more.

A process may open a limited number of files (RLIMIT_NOFILE), and a broker's clients take most of
them. So a store keeps few open to be read: those that were used last. A new segment of the log must
not wait for others to close theirs, so some descriptors are spare: see `files.SpareDescriptors`.

That there is no descriptor, or no memory, says nothing about what is on the disk: it passes.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import ParamSpec

from amqpstore.files import SPARE, File, Files

MAX_OPEN_TO_READ = 64
"""Files that one store has open to be read."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

_FOR_THE_LOG = 4
"""Spare descriptors that nobody takes in order to read."""

_TRIES = 20
_PAUSE_S = 0.1

_Arguments = ParamSpec("_Arguments")


def is_shortage(error: BaseException) -> bool:
    """Whether the process, and not the disk, is why a file could not be opened or read."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _SHORTAGES
    )


def open_to_read(files: Files, path: str) -> File:
    """As `Files.open`, with a spare descriptor where there is no other. Raises: OSError."""
    try:
        return files.open(path)
    except OSError as error:
        if error.errno not in _NO_DESCRIPTOR or not SPARE.give_up(keep=_FOR_THE_LOG):
            raise
    return files.open(path)


def insist(
    call: Callable[_Arguments, None], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> None:
    """Do what opens a file and must not fail because there is no descriptor left.

    Takes those that are spare; where others were faster it waits for one, about two seconds.
    Raises: OSError.
    """
    for tries in range(_TRIES):
        try:
            return call(*arguments, **named)
        except OSError as error:
            # Nothing was done: a file that is not opened is not changed.
            if error.errno not in _NO_DESCRIPTOR:
                raise
        if not SPARE.give_up() and tries:
            time.sleep(_PAUSE_S)
    return call(*arguments, **named)


class Descriptors:
    """The files of one store that are open to be read. For one thread; `files` opens them."""

    def __init__(self, files: Files, most: int = MAX_OPEN_TO_READ) -> None:
        self.files = files
        self._most = most
        self._open: OrderedDict[str, File] = OrderedDict()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def open(self, path: str) -> File:
        """A file, to be read before this is called again. Raises: OSError."""
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
        """A file that is not read any more, to be closed by the caller; None where it is not open.

        To close the last descriptor of a file that was removed can take a while.
        """
        return self._open.pop(path, None)

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._open.popitem(last=False)[1].close()
