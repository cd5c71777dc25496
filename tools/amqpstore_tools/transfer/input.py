"""Opens a file of messages for the verbs that read one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO

from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.transfer.lines import Line, TransferError, read_lines

STANDARD = "-"


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open the file; also returns its size in bytes, or 0 for standard input. Raises: OSError."""
    if path == STANDARD:
        yield sys.stdin.buffer, 0
        return
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def lines_of(path: str, file: IO[bytes], size: int, show: Progress, what: str) -> Iterator[Line]:
    """Yield the lines of a file; `show` is called on the way.

    Raises: TransferError, with the file's name.
    """
    try:
        for line, read in read_lines(file):
            yield line
            show(what, read, size)
    except TransferError as error:
        raise TransferError(f"{path}: {error}") from None
