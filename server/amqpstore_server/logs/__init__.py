"""Logging: one line per event on stderr.

- `formatters`: what a line looks like.
- `streams`: stdout and stderr of the broker, which never wait for whoever reads them.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from amqpstore_server.logs.formatters import JsonFormatter, LogfmtFormatter

__all__ = ["JsonFormatter", "LogfmtFormatter", "set_up"]


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines without a flush after each: that would wait for whoever reads them."""

    def flush(self) -> None:
        """Leave it to the stream, which writes lines as they come."""


def set_up(level: str, form: str) -> None:
    """Send everything from `level` on to stderr. Args: form, "text" or "json"."""
    handler = _LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # What no line says is not looked for either: it takes a fifth of the time of each.
    logging.logProcesses = logging.logMultiprocessing = False
    # As "Optimization" in Python's manual of logging has it.
    logging._srcfile = None  # noqa: SLF001
