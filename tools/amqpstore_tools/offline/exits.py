"""The end of tools that work on a data directory: errors, and exit codes.

tools/README.md has the table of exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from amqpstore import NotAStoreError, StoreError, StoreLockedError
from amqpstore.errors import DamageError
from amqpstore.log.space import is_no_space
from amqpstore.system.durability import text_of
from amqpstore.system.files import NotAFileError
from amqpstore_tools.offline.json_output import write_line
from amqpstore_tools.offline.terminal import shown_lines

OK = 0
DAMAGED = NOT_FOUND = NEEDS_CARE = LEFT_OUT = 1
"""The tool finished and found damage, or a group of replicas that has to be looked after; or what
it was asked for does not exist; or it has done all but a part, which it names.
"""
USAGE = 2
LOCKED = 3
NOT_A_STORE = 4
FAILED = 5
INTERRUPTED = 130

_NEXT_STEPS = {
    errno.EROFS: "Nothing was changed. Copy the store to another disk, and go on there.",
    errno.EACCES: "Run it as the owner of the store, or as root.",
    errno.EIO: "The disk has failed: copy what can be read to another one (amqpstore export reads "
    "around what cannot).",
}
_DAMAGED = (
    "amqpstore check DIR lists what is damaged, and amqpstore repair DIR --plan plan.json what a "
    "repair would keep."
)
_NO_SPACE = (
    "Free some space on that disk (amqpstore compact DIR frees what a stopped store does not "
    "need), or name a place on another one."
)


class ToolError(Exception):
    """The tool cannot do what it was asked for. The message says why, and what to do."""

    exit_code = FAILED


class NotFoundError(ToolError):
    """Something does not exist; the message says what, and what to do."""

    exit_code = NOT_FOUND


class UsageError(ToolError):
    """The command line is not valid."""

    exit_code = USAGE


def add_json(parser: argparse.ArgumentParser, one: str = "") -> None:
    """Add the option that all tools have, and the note on exit codes.

    Args: one, the meaning of exit code 1; empty if the tool does not use it.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = exit_codes(one)


def exit_codes(one: str = "") -> str:
    """Return the note on exit codes. Args: as for `add_json`."""
    return (
        f"Exit codes: 0 done, {f'1 {one}, ' if one else ''}2 wrong usage, 3 a broker or another "
        "tool has the store open, 4 not a store, 5 failed, 130 interrupted."
    )


def run_tool(
    verb: str,
    tool: Callable[[], int | None],
    *,
    has_live: bool = False,
    as_json: bool = False,
    no_space: str = _NO_SPACE,
) -> int:
    """Run a tool. Returns the exit code: what it returned, or 0 for None.

    An error is a line on stderr, and with `as_json` an object on stdout too.
    Args: verb, its name; has_live, whether it has `--live`; no_space, what to do if the disk is
    full.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Bars and names on a terminal that only takes ASCII: anything is better than nothing.
        sys.stdout.reconfigure(errors="replace")

    def fail(code: int, error: BaseException, text: str) -> int:
        if as_json:
            write_line({"error": text, "kind": type(error).__name__, "exit_code": code})
        sys.stderr.write(f"amqpstore {verb}: {shown_lines(text)}\n")
        return code

    try:
        with _ended_by_signals():
            code = tool()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. What is left in the buffer is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except StoreLockedError as error:
        hint = " With --live a snapshot is read while it runs." if has_live else ""
        return fail(LOCKED, error, f"{error}{hint}")
    except NotAStoreError as error:
        return fail(NOT_A_STORE, error, str(error))
    except ToolError as error:
        return fail(error.exit_code, error, str(error))
    except (StoreError, OSError) as error:
        hint = _next_step(error, no_space)
        return fail(FAILED, error, f"{text_of(error)}. {hint}" if hint else text_of(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"amqpstore {verb}: interrupted\n")
        return INTERRUPTED
    return code or OK


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and the end of the terminal end the work as Ctrl-C does, so that what is
    unfinished is cleaned up. Under `nohup` a terminal's end is ignored, as ever.
    """
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _next_step(error: Exception, no_space: str) -> str:
    """Return what to do about damage, or an error of the operating system; empty if that is not
    known.
    """
    if isinstance(error, DamageError | NotAFileError):
        return _DAMAGED
    if not isinstance(error, OSError) or error.filename is None:
        return ""
    if is_no_space(error):
        return no_space
    return _NEXT_STEPS.get(error.errno or 0, "")


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt
