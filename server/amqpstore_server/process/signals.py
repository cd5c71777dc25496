"""Signals of a broker, from its first moment on.

Loading the broker and recovering its store take longest of a start, and whoever sends a signal
does not know how far it is. So handlers are set before anything else is loaded, and nothing here
loads anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

_MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals at which other servers reopen their logs, and that would end this one."""

_early_reloads: list[int] = []
"""The SIGHUPs that came before the configuration could be read again."""


def prepare_signals() -> None:
    """Handle the signals that come before the broker looks at them itself, or between."""
    for number in _MEANINGLESS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, _remember)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)


@contextlib.contextmanager
def received_signals() -> Iterator[AsyncIterator[int]]:
    """Receive the signals to stop and to reload, inside trio. A reload that was asked for before
    is received now.
    """
    import trio

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        if _early_reloads:
            _early_reloads.clear()
            signal.raise_signal(signal.SIGHUP)
        yield signals


def _remember(number: int, _frame: object) -> None:
    _early_reloads.append(number)


def _end_at_once(_number: int, _frame: object) -> None:
    """End a start: no client is served yet, so there is nothing to wait for, and the next start
    goes on with what was begun on disk. The first process of a container could not be stopped
    otherwise while it recovers the store: it gets no signal that it has no handler for.
    """
    with contextlib.suppress(OSError):
        # Not `sys.stderr`, in the middle of whose work the signal may have come.
        os.write(2, b"amqpstore serve: stopped by a signal while nobody was served\n")
    os._exit(0)
