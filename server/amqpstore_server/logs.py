"""Logging: one line an event, key=value, on stderr.

Names, and whatever else clients say before they log in, may have any characters: those that would
do something to a terminal, or look like the end of a line to somebody, are written as escapes.
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
    """An event as one line that only prints: behind the last step nothing gets by."""
    line = _LOGFMT(logger, method, event)
    if line.isascii() and line.isprintable():
        return line
    return "".join([one if one.isprintable() else _escape(one) for one in line])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
