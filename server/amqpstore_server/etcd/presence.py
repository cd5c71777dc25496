"""The key that shows that a member runs: for people, and for the order in which members stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqpstore_server.cluster.keys import EtcdTransaction, Put, alive_key
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError

LEASE_S = 10.0


class Presence:
    """Keeps `alive/MEMBER` under a lease of its own; a key that is shown no longer goes with it."""

    def __init__(self, client: EtcdClient, member: str) -> None:
        self._client = client
        self._key = alive_key(member)
        self._lease = 0
        self._shown: Mapping[str, Any] | None = None

    def show(self, value: Mapping[str, Any]) -> None:
        """Put the key's value, or renew its lease if it has this value.

        What etcd does not answer is left to the next time: the key outlives a few failures.
        """
        try:
            self._show(value)
        except EtcdError:
            self._shown = None

    def _show(self, value: Mapping[str, Any]) -> None:
        if not self._lease or not self._client.keep_alive(self._lease).is_alive:
            self._lease, self._shown = self._client.grant(LEASE_S), None
        if value != self._shown:
            put = EtcdTransaction((), (Put(self._key, value, self._lease),))
            self._shown = value if self._client.attempt(put).outcome == "done" else None
