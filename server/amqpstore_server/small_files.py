"""Files that an operator wrote by hand: read whole, if they are what they should be."""

from __future__ import annotations

import errno

from amqpstore.files import open_regular

MAX_BYTES = 1 << 20
"""The most that such a file has."""


def read_small(path: str) -> bytes:
    """Return the content of a regular file of at most `MAX_BYTES`. Raises: OSError."""
    with open(open_regular(path), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES >> 10} KiB", path)
    return content
