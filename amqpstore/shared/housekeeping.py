"""Housekeeping of a `SharedStore`: a thread that does what is due, even if no thread commits."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

from amqpstore.errors import StoreError

_log = logging.getLogger(__name__)


class Kept(Protocol):
    """An object with housekeeping."""

    def housekeep(self) -> None:
        """Do what is due. Raises: StoreError, once it is closed."""


class Housekeeping:
    """Calls a store's `housekeep` about every `pause_s`, until `stop` or its end.

    It keeps nothing alive: a store that is dropped without a close is freed as before.
    """

    def __init__(self, store: Kept, pause_s: float) -> None:
        self._pause_s = pause_s
        self._store = weakref.ref(store)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return once it is not called any more."""
        self._stopped.set()
        if self._thread is not threading.current_thread():  # a finalizer may run in it
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s) and self._housekeep():
            pass

    def _housekeep(self) -> bool:
        # A separate function, so that no local variable keeps the store alive until the next time.
        store = self._store()
        if store is None:
            return False
        try:
            store.housekeep()
        except StoreError:
            return False  # it is closed or has stopped: its next user is told why
        except Exception:  # noqa: BLE001 (the store has stopped by it, and says so to all)
            _log.exception("background work failed")
            return False
        return True
