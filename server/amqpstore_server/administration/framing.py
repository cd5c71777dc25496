"""The form of requests and answers on the admin socket: a length in four bytes, big-endian, and
JSON of that length in bytes. Each connection is one request and its answer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SOCKET = "admin.sock"
"""The name of the socket in the data directory."""

LENGTH = struct.Struct(">I")

MAX_BYTES = 64 << 20
"""The size of the largest definitions file."""


def framed(content: bytes) -> bytes:
    """Return a request or an answer with its length."""
    return LENGTH.pack(len(content)) + content


@contextmanager
def address_in(directory: str) -> Iterator[str]:
    """Yield an address of the socket in a directory, as long as the block runs.

    The address of a socket has at most 107 bytes, and the path of a directory may be longer.
    """
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
