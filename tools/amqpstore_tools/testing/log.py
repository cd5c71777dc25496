"""The log of one broker in a test process, apart from the logs of others and of the application."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from amqpstore_server.logs import LogfmtFormatter

_LOGGERS = ("amqpstore", "amqpstore_server")
_MAX_LINES = 1000

_mutex = threading.Lock()
_open_count = 0
_before: list[tuple[int, bool]] = []


class BrokerLog(logging.Handler):
    """The last lines of one thread's log, each with the virtual time in seconds.

    While any is open, the broker's lines do not go to the handlers that an application gave the
    root logger; pytest's `caplog` still gets them. `has_failed` tells whether an exception was
    logged, which is an internal error of the broker.
    Args: elapsed_s, the virtual time.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(LogfmtFormatter(is_timed=False))
        self.has_failed = False
        self.is_muted = False
        """Whether nothing is recorded: after a power cut a real broker could not have logged it."""
        self._elapsed_s = elapsed_s
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._thread_id: int | None = None

    def follow(self, thread_id: int | None) -> None:
        """Record that thread's log from now on."""
        self._thread_id = thread_id
        self.is_muted = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread_id or self.is_muted:
            return
        self.has_failed |= record.exc_info is not None
        self._lines.append(f"{self._elapsed_s():.3f} {self.format(record)}")

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def open(self) -> None:
        """Start to listen."""
        global _open_count
        with _mutex:
            for logger in map(logging.getLogger, _LOGGERS):
                if not _open_count:
                    _before.append((logger.level, logger.propagate))
                    logger.setLevel(logging.INFO)
                    logger.propagate = False
                logger.addHandler(self)
            _open_count += 1

    def close(self) -> None:
        """Stop listening; after the last one, logging is as it was before."""
        global _open_count
        super().close()
        with _mutex:
            loggers = [logging.getLogger(name) for name in _LOGGERS]
            if self not in loggers[0].handlers:
                return
            for logger in loggers:
                logger.removeHandler(self)
            _open_count -= 1
            if not _open_count:
                for logger, (level, propagate) in zip(loggers, _before, strict=True):
                    logger.setLevel(level)
                    logger.propagate = propagate
                _before.clear()
