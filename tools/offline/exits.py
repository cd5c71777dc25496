"""What an offline tool makes of errors: a line on stderr, and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from amqpstore import NotAStoreError, StoreError, StoreLockedError

OK = 0
NOT_FOUND = 1
USAGE = 2
LOCKED = 3
NOT_A_STORE = 4
FAILED = 5
INTERRUPTED = 130

EXIT_CODES = (
    "Exit codes: 0 done, 1 what was asked for is not there, 2 wrong usage, 3 a broker runs on DIR, "
    "4 DIR is not a store, 5 it failed, 130 interrupted."
)


class NotFoundError(Exception):
    """What was asked for is not there; the message says what, and what may be done."""


def run_tool(verb: str, tool: Callable[[], None], *, has_live: bool) -> int:
    """Run a tool. Returns the exit code.

    Args: verb, its name; has_live, whether `--live` is there for it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Bars and names where only ASCII is taken: anything is better than nothing.
        sys.stdout.reconfigure(errors="replace")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        tool()
        sys.stdout.flush()
    except NotFoundError as error:
        return _fail(verb, NOT_FOUND, error)
    except StoreLockedError as error:
        hint = " With --live a snapshot is read while it runs." if has_live else ""
        return _fail(verb, LOCKED, f"{error}{hint}")
    except NotAStoreError as error:
        return _fail(verb, NOT_A_STORE, error)
    except BrokenPipeError:
        # Whoever read it has seen enough. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (StoreError, OSError) as error:
        return _fail(verb, FAILED, error)
    except KeyboardInterrupt:
        return _fail(verb, INTERRUPTED, "interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    return OK


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(verb: str, code: int, error: object) -> int:
    sys.stderr.write(f"amqpstore {verb}: {error}\n")
    return code
