"""The sources of passwords: a terminal, standard input or a file.

Never from the command line, which other users of the machine can read, and shells remember.
"""

from __future__ import annotations

import getpass
import sys

from amqpstore_tools.offline.exits import UsageError

_MAX_BYTES = 1024
_STANDARD = "-"


def read_password(path: str | None) -> str:
    """Return a password: the first line of a file or, for `-`, of standard input; without a path,
    what is typed twice.

    Raises: UsageError, OSError.
    """
    if path is None:
        password = _typed()
    elif path == _STANDARD:
        password = _first_line(sys.stdin.buffer.readline(_MAX_BYTES + 2))
    else:
        with open(path, "rb") as file:
            password = _first_line(file.readline(_MAX_BYTES + 2))
    if not password:
        raise UsageError("the password is empty")
    if len(password.encode()) > _MAX_BYTES:
        raise UsageError(f"the password has more than {_MAX_BYTES} bytes")
    return password


def _typed() -> str:
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password: use --password-file, - for stdin")
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise UsageError("the passwords differ")
    return password


def _first_line(line: bytes) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise UsageError("the password is not UTF-8") from None
