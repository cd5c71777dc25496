"""The limits of a client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits that the server proposes in connection.tune, and the others that it enforces.

    `max_message_bytes` is the size of the largest body that is accepted. A client that reads
    nothing for `send_timeout_s` while bytes wait for it is closed. `unfinished_bytes` limits the
    memory of a client's messages that are not published yet: partial bodies, and messages that wait
    for a commit. `consumers` is the most of a connection, on all its channels; `prefetch`
    the most unacked messages of a consumer, and of a channel that gets more. 0 means any number of
    either.
    """

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    max_message_bytes: int = 128 << 20
    send_timeout_s: int = 300
    unfinished_bytes: int = 256 << 20
    consumers: int = 65_535
    prefetch: int = 1_000_000
