"""What a client is held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What the server proposes in connection.tune, and what else it holds a client to.

    `max_message_bytes` is of the largest body that it takes; a client that takes nothing of what
    is sent to it for `send_timeout_s` is closed. `unfinished_bytes` of its messages may be in
    memory that are not published yet: halves of bodies, and what waits for a commit.
    """

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    max_message_bytes: int = 128 << 20
    send_timeout_s: int = 300
    unfinished_bytes: int = 256 << 20
