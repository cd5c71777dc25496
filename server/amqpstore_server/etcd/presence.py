"""The key that shows that a member runs: for people, and for the order in which members stand."""

from __future__ import annotations

from amqpstore_server.cluster.effects import ShowAlive
from amqpstore_server.cluster.keys import EtcdTransaction, Put
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError

# In an election a member waits for its turn behind each older one that is shown as alive: a dead
# one counts for at most this long.
LEASE_S = 10.0


class Presence:
    """Keeps a key below `alive/` under a lease of its own; a key that is shown no longer goes with
    it.

    Args: client, of any etcd: people are told by this key why another one than before is not used.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._lease = 0
        self._shown: ShowAlive | None = None

    def show(self, alive: ShowAlive) -> None:
        """Put the key's value, or renew its lease if it has this value.

        What etcd does not answer is left to the next time: the key outlives a few failures.
        """
        try:
            self._show(alive)
        except EtcdError:
            # The put may have happened or not: the next one writes the value again.
            self._shown = None

    def _show(self, alive: ShowAlive) -> None:
        if self._shown is not None and alive.key != self._shown.key:
            # A process that finds out that it is not its member's must not go on showing itself as
            # that.
            self._client.revoke(self._lease)
            self._lease = 0
        if not self._lease or not self._client.keep_alive(self._lease).is_alive:
            self._lease, self._shown = self._client.grant(LEASE_S), None
        if alive != self._shown:
            # There is no compare: the newest status counts, whatever was there.
            put = EtcdTransaction((), (Put(alive.key, alive.value, self._lease),))
            self._shown = alive if self._client.attempt(put).outcome == "done" else None
