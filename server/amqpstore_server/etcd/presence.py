"""The key that shows that a member runs: for people, and for the order in which members stand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from amqpstore_server.cluster.keys import EtcdTransaction, Put, alive_key
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError

LEASE_S = 10.0
EVERY_S = 3.0


class Presence:
    """A thread that keeps `alive/MEMBER` under a lease of its own.

    Args: describe, returns its value, or None while this member is not fit: then the key goes with
    its lease.
    """

    def __init__(
        self, client: EtcdClient, member: str, describe: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._client = client
        self._key = alive_key(member)
        self._describe = describe
        self._lease = 0
        self._shown: Mapping[str, Any] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="etcd presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the key to its lease, and return when the thread has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            value = self._describe()
            if value is not None:
                try:
                    self._show(value)
                except EtcdError:
                    # The client has logged it; the key outlives a few failures.
                    self._shown = None
            self._closed.wait(EVERY_S)

    def _show(self, value: Mapping[str, Any]) -> None:
        kept = self._client.keep_alive(self._lease, lambda: True) if self._lease else None
        if kept is None or not kept.is_alive:
            self._lease, self._shown = self._client.grant(LEASE_S), None
        if value != self._shown:
            put = EtcdTransaction((), (Put(self._key, value, self._lease),))
            self._shown = value if self._client.attempt(put).outcome == "done" else None
