"""Whether a store is open, and the error that ended all writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from amqpstore.errors import DamageError, DurabilityError, StoreClosedError
from amqpstore.log import Log


class OpenState:
    """Whether the store in `directory` is open. Args: log, whose errors end all writing, too."""

    def __init__(self, directory: str, log: Log) -> None:
        self.is_closed = False
        self._directory = directory
        self._log = log
        self._failure: DurabilityError | None = None

    @property
    def failure(self) -> DurabilityError | None:
        """The error that ended all writing, if any."""
        return self._failure or self._log.failure

    def check(self) -> None:
        """Raises: StoreClosedError."""
        if self.is_closed:
            raise StoreClosedError(f"the store in {self._directory} is closed")
        if error := self._failure or self._log.failure:
            raise StoreClosedError(
                f"the store in {self._directory} has stopped after an error: {error}"
            )

    def fail(self, error: Exception) -> DurabilityError:
        """End all writing because of an error. Returns what to raise from it."""
        if not isinstance(error, DurabilityError):
            error = DurabilityError(self._directory, error)
        self._failure = error
        return error

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run checkpoints and compaction: an unexpected error of theirs ends all writing.

        They can be tried again after an OSError or damage. After any other, such as a MemoryError,
        it is unknown how far they came; the data on disk is right.
        """
        try:
            yield
        except DurabilityError as error:
            raise self.fail(error)  # noqa: B904 (the same error)
        except (OSError, DamageError):
            raise
        except Exception as error:
            raise self.fail(error) from error
