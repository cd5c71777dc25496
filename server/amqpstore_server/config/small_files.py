"""Files that an operator wrote by hand: read whole, if they are what they should be."""

from __future__ import annotations

import codecs
import errno

from amqpstore.system.files import NotAFileError, naming, open_regular

MAX_BYTES = 1 << 20
"""The most that such a file has."""


def read_small(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `max_bytes`, without the byte order mark that
    editors of Windows put in front of UTF-8. Raises: OSError.
    """
    try:
        descriptor = open_regular(path)
    except NotAFileError as error:
        # What is there and cannot be read is not the same as nothing.
        raise OSError(errno.EINVAL, error.strerror, path) from None
    with open(descriptor, "rb") as file, naming(path):
        # One byte more than allowed tells a file that is too large, however large it is.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 10} KiB", path)
    return content.removeprefix(codecs.BOM_UTF8)
