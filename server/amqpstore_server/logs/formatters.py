"""The formats of a line of the log: key=value (logfmt) or a JSON object.

Names and other texts that clients send before they log in may contain any characters: those that
would control a terminal, or look like a line end, are escaped. Secrets are never logged: there is
nothing here to find them.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_OF_EVERY_RECORD = logging.makeLogRecord({}).__dict__.keys()
"""Fields that logging itself gives a record; all others were given as `extra`."""


class _FieldsFormatter(logging.Formatter):
    """Names the parts of a record: `timestamp`, `level`, `event`, its `extra`, and `exception`, the
    traceback.

    Args: is_timed, whether there is a timestamp.
    """

    def __init__(self, *, is_timed: bool = True) -> None:
        super().__init__()
        self._is_timed = is_timed

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._is_timed:
            seconds = int(record.created)
            microseconds = int((record.created - seconds) * 1e6)
            fields["timestamp"] = f"{_second(seconds)}.{microseconds:06}Z"
        fields["level"] = record.levelname.lower()
        fields["event"] = record.getMessage()
        said = vars(record)
        fields |= {name: said[name] for name in said if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return fields


class JsonFormatter(_FieldsFormatter):
    """Formats a record as a JSON object in one line of ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self._fields(record), default=str)


class LogfmtFormatter(_FieldsFormatter):
    """Formats a record as `timestamp=... level=... event=...` and so on."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self._fields(record)
        line = " ".join([f"{name}={_value(value)}" for name, value in fields.items()])
        # The last step, so nothing bypasses it.
        if line.isascii() and line.isprintable():
            return line
        return "".join([one if one.isprintable() else _escape(one) for one in line])


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    """Return a time as text. Many lines are of the same second: as many as there are logins."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    is_quoted = " " in text or "=" in text or '"' in text
    if is_quoted:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("\n", "\\n")
    return f'"{text}"' if is_quoted else text


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
