"""Logging: one line per event, key=value, on stderr.

Names and other texts that clients send before they log in may contain any characters: those that
would control a terminal, or look like a line end, are escaped.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]

_LOGFMT = structlog.processors.LogfmtRenderer(
    key_order=["timestamp", "level", "event"], bool_as_flag=False
)


def set_up(level: str) -> None:
    """Send everything from `level` on to stderr."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _render,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def _render(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    """Render an event as one line of printable characters: this is the last step, so nothing
    bypasses it.
    """
    line = _LOGFMT(logger, method, event)
    if line.isascii() and line.isprintable():
        return line
    return "".join([one if one.isprintable() else _escape(one) for one in line])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
