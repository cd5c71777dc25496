"""Committers within trio, without the sockets of a broker."""

import contextlib

import trio

from amqpstore import Store
from amqpstore_server.committer import Committer


def committer_of(store: Store, *, housekeep_s: float = 0.02, watch_s: float = 1.0) -> Committer:
    """Begin a committer that completes its batches in the current run of trio."""
    token = trio.lowlevel.current_trio_token()

    def complete_soon() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(committer.complete_written)

    committer = Committer(
        store, complete_soon, lambda: None, housekeep_s=housekeep_s, watch_s=watch_s
    )
    return committer
