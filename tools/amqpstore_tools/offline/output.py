"""The file that a tool writes where a user named it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import IO

from amqpstore.system.files import naming
from amqpstore_tools.offline.exits import UsageError


@contextlib.contextmanager
def output_file(path: str, *, is_private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that gets its name only once it is complete and durable.

    A link stays, and leads to the new file. A pipe or a device, such as /dev/null, is written to as
    it is: a file in its place would be another thing under its name. Args: is_private, whether
    other users may not read it. Raises: UsageError; OSError.
    """
    with naming(path):
        if _is_stream(path):
            with open(path, "wb") as stream:
                yield stream
            return
    path = os.path.realpath(path)
    partial = f"{path}.partial"
    # Who has opened a private one before could read it, whatever its rights are then.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_private else os.O_TRUNC)
    try:
        with naming(partial):
            descriptor = os.open(partial, flags, 0o600 if is_private else 0o666)
    except FileExistsError:
        raise UsageError(f"{partial} exists: another export is writing it, or has failed") from None
    try:
        with naming(partial), open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _is_stream(path: str) -> bool:
    """Tell whether a path leads to a pipe or a device. Raises: UsageError, if to a directory."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a directory: name a file, which may be a new one in it")
    return not stat.S_ISREG(mode)
