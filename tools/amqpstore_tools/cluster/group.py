"""The keys of one group, for one command."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from amqpstore_server.cluster.keys import EtcdTransaction, View
from amqpstore_server.config.config import Config
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError
from amqpstore_server.replication.settings import ClusterSettings, cluster_settings
from amqpstore_tools.offline.exits import NotFoundError, ToolError, UsageError

_ATTEMPTS = 5
_LOOK_S = 0.1

# What a failing endpoint says is in the error, if none answers.
logging.getLogger("amqpstore_server.etcd").addHandler(logging.NullHandler())


def open_group(config: Config) -> GroupKeys:
    """Return the group that is configured. Raises: UsageError, ToolError."""
    settings = cluster_settings(config)
    if settings is None:
        raise UsageError(
            "no cluster is configured: set cluster_name and cluster_etcd, or use --cluster-name "
            "and --cluster-etcd"
        )
    return GroupKeys(settings)


def local_group(name: str, etcd: str, replicate: str, amqp: str) -> GroupKeys:
    """Return the group of a cluster on this machine, as one of its members sees it.

    Args: replicate, amqp, that member's addresses.
    """
    return open_group(
        Config(cluster_name=name, cluster_etcd=[etcd], cluster_replicate=replicate, listen=[amqp])
    )


class GroupKeys:
    """Reads and changes the keys of a group. Its errors name the endpoints and the key."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        try:
            self._client = EtcdClient(settings.etcd, settings.prefix)
        except EtcdError as error:
            raise ToolError(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to etcd."""
        self._client.close()

    @property
    def where(self) -> str:
        """The prefix of the keys, and the endpoints."""
        return f"{self.settings.prefix} in etcd ({', '.join(self.settings.etcd.endpoints)})"

    def view(self) -> View:
        """Read all keys. Raises: ToolError."""
        try:
            return self._client.read()
        except EtcdError as error:
            raise ToolError(
                f"{self.settings.prefix} cannot be read: {error}. Does etcd run, and are the keys "
                "cluster_etcd of the configuration right?"
            ) from None

    def founded(self) -> View:
        """Read the keys of a group that exists. Raises: NotFoundError, ToolError."""
        view = self.view()
        if not view.store_id:
            raise NotFoundError(
                f"there is no group at {self.where}: found it with `amqpstore cluster init`, or "
                "correct cluster_name and cluster_group. If that etcd has lost it, see `When "
                "somebody comes back older` in the manual"
            )
        return view

    def grant(self, ttl_s: float) -> int:
        """Grant a lease. Raises: ToolError."""
        try:
            return self._client.grant(ttl_s)
        except EtcdError as error:
            raise ToolError(f"etcd granted no lease: {error}") from None

    def change(self, make: Callable[[View, str], EtcdTransaction]) -> View:
        """Carry out a transaction, and return the keys it was made from.

        What is refused because the keys have changed meanwhile is made anew from what they are now.
        Args: make, given the keys and a name for the request; raises ToolError if it cannot be.
        Raises: ToolError.
        """
        for _ in range(_ATTEMPTS):
            view = self.view()
            request = secrets.token_hex(8)
            attempted = self._client.attempt(make(view, request))
            # Each request has a name, so that one without an answer can be found in the keys.
            if attempted.outcome == "done" or (
                attempted.outcome == "unknown" and _has_happened(self.view(), request)
            ):
                return view
            if attempted.outcome == "unknown":
                raise ToolError(
                    f"whether {self.where} was changed is not known: {attempted.reason}. It may "
                    "still happen: look with `amqpstore cluster status`, then run this again"
                )
        raise ToolError(
            f"nothing was changed: the keys at {self.where} change all the time, as if leaders "
            "came and went; look with `amqpstore cluster status`"
        )

    def wait(self, is_there: Callable[[View], bool], patience_s: float) -> View | None:
        """Read the keys until they are as expected. Returns them, or None when time is up."""
        until = time.monotonic() + patience_s
        while not is_there(view := self.view()):
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_S)
        return view


def _has_happened(view: View, request: str) -> bool:
    return any(row.value.get("request") == request for row in view.rows.values())
