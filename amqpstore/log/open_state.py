"""Whether a store is open, the error that ended all writing, and how it is closed."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from amqpstore.catalog.catalog import Catalog
from amqpstore.errors import DamageError, DurabilityError, StoreClosedError
from amqpstore.log.log import Log
from amqpstore.log.measures import StoreMeasures
from amqpstore.system.files import Lock


class OpenState:
    """Whether the store in `directory` is open, and why it is not. Args: log, whose errors end all
    writing, too; its `is_open` says the same in one word.
    """

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
        self._log.is_open = False
        return error

    def close(self) -> None:
        """Refuse everything from now on."""
        self.is_closed = True
        self._log.is_open = False

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


class ClosableStore(ABC):
    """A store that can be closed: the base of a store that serves, and of a follower's."""

    log: Log
    _state: OpenState
    _catalog: Catalog
    _lock: Lock

    def close(self) -> None:
        """Make the next start short, and close. Raises: DurabilityError.

        After a DurabilityError, here or before, it is the same as `abandon`.
        """
        try:
            if not self._state.is_closed and not self.failure:
                self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and write nothing more: this leaves what a crash would leave."""
        if self._state.is_closed:
            return
        self._state.close()
        self._end_work()
        self.log.close()
        self._catalog.close()
        # Last: another process may open the store from here on.
        self._lock.release()

    @property
    def failure(self) -> DurabilityError | None:
        """The error that ended all writing, if any."""
        return self._state.failure

    @property
    def measures(self) -> StoreMeasures:
        """The measurements of its work, with all batches until now."""
        self.log.measures.count_batches()
        return self.log.measures

    @abstractmethod
    def _finish(self) -> None:
        """Write what the next start would have to do otherwise. Raises: DurabilityError."""

    @abstractmethod
    def _end_work(self) -> None:
        """End the background work, and close the files that only this kind of store has."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
