"""How verbs that work on a store's directory end: what they print, and their exit codes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from amqpstore import NotAStoreError, StoreError, StoreLockedError
from tools.copying.errors import CopyError
from tools.offline.exits import FAILED, INTERRUPTED, LOCKED, NOT_A_STORE, OK, USAGE
from tools.transfer.lines import TransferError

DAMAGED = 1
"""It was done, and damage was found."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 done and damage was found, 2 wrong usage, 3 a broker has the store "
    "open, 4 it is no store, 5 failed, 130 interrupted."
)


class UsageError(Exception):
    """The command line asks for what is not there; the message says so."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that all of these verbs have, and the note on exit codes."""
    parser.add_argument("--json", action="store_true", help="print what came of it as JSON")
    parser.epilog = EXIT_CODES


def end(
    verb: str,
    arguments: argparse.Namespace,
    work: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any]], int],
    *,
    when_locked: str = "",
) -> int:
    """Do the work and print what came of it. Returns the exit code.

    Args: work, returns that as what JSON can say; show, prints it for people and returns the exit
    code, and prints nothing where `--json` was asked for; when_locked, what else to do then.
    """
    # So that what is half done is cleared away.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = work()
        if arguments.json:
            sys.stdout.write(json.dumps(result, indent=1) + "\n")
        code = show(result)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has seen enough. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except UsageError as error:
        return _fail(verb, arguments, USAGE, error)
    except StoreLockedError as error:
        return _fail(verb, arguments, LOCKED, f"{error} {when_locked}".rstrip())
    except NotAStoreError as error:
        return _fail(verb, arguments, NOT_A_STORE, error)
    except (CopyError, TransferError, StoreError, OSError) as error:
        return _fail(verb, arguments, FAILED, error)
    except KeyboardInterrupt:
        return _fail(verb, arguments, INTERRUPTED, "interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    return code


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(verb: str, arguments: argparse.Namespace, code: int, error: object) -> int:
    if arguments.json:
        sys.stdout.write(json.dumps({"error": str(error), "exit_code": code}) + "\n")
    sys.stderr.write(f"amqpstore {verb}: {error}\n")
    return code
