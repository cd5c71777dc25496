"""Reads the keys of a group when they have changed.

A watch is a hint: what it tells is that a read is due, and nothing is decided by its events. It
begins at the revision after a read, so nothing is missed in between, and begins anew, with a read,
when it breaks, is silent, or asks for revisions that were compacted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from amqpstore_server.cluster.keys import View
from amqpstore_server.etcd.client import EtcdClient, EtcdWatch
from amqpstore_server.etcd.errors import CompactedError, EtcdError

RETRY_S = 0.5


class Watching:
    """A thread that reads when there is something new. Args: viewed, called in that thread."""

    def __init__(self, client: EtcdClient, viewed: Callable[[View], None]) -> None:
        self._client = client
        self._viewed = viewed
        self._watch: EtcdWatch | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="etcd watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch, and return when its thread has ended."""
        with self._lock:
            self._closed.set()
            if self._watch is not None:
                self._watch.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow(self._read())
            except CompactedError:
                continue
            except EtcdError:
                self._closed.wait(RETRY_S)

    def _read(self) -> int:
        view = self._client.read()
        self._viewed(view)
        return view.revision

    def _follow(self, revision: int) -> None:
        """Read whenever there is a change after a revision, until the watch ends."""
        # From the revision that was read: between the read and the watch nothing is missed, and
        # nothing is seen twice.
        watch = self._client.watch(revision + 1)
        try:
            with self._lock:
                # `close` has come while the watch began, and found none to stop.
                if self._closed.is_set():
                    return
                self._watch = watch
            for changed in watch.changes():
                # Several changes of one transaction, or those that a read has seen, are one hint.
                # The read before may have seen several of the changes that wait in the stream.
                if changed > revision:
                    revision = self._read()
        finally:
            with self._lock:
                self._watch = None
            watch.close()
