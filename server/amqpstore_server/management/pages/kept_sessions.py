"""The sessions that outlive a restart of the broker: a file beside the store.

The file is of no use to a thief: a session is found by a digest of its cookie, and the user's
password is there as a digest under the same cookie, which only the browser has.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

import msgspec

from amqpstore.system.durability import reason_of
from amqpstore.system.files import naming
from amqpstore_server.config.small_files import read_small

FILE = "web-sessions.json"

_log = logging.getLogger(__name__)


class KeptSession(msgspec.Struct, frozen=True):
    """A session: `cookie` is the digest of its cookie, `password` what `Users.password_digest`
    returned for `user`.
    """

    cookie: bytes
    user: str
    password: bytes
    ends_at_ms: int


def read_sessions(directory: str) -> list[KeptSession]:
    """Return the sessions in a data directory; none, if the file cannot be used."""
    path = os.path.join(directory, FILE)
    try:
        return msgspec.json.decode(read_small(path), type=list[KeptSession])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("web sessions not read", extra={"path": path, "reason": reason_of(error)})
        return []


def write_sessions(directory: str, sessions: Sequence[KeptSession]) -> None:
    """Replace the sessions in a data directory. Durable on return: who has logged out stays out.

    Raises: OSError.
    """
    path = os.path.join(directory, FILE)
    new_path = f"{path}.new"
    # A crash may have left one. With `O_EXCL`, no file or link of somebody else is written to.
    with contextlib.suppress(FileNotFoundError):
        os.remove(new_path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    with naming(new_path), open(os.open(new_path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(sessions))
        file.flush()
        os.fsync(file.fileno())
    # Synced before: a rename may reach the disk before the bytes do.
    os.replace(new_path, path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
