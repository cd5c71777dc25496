"""The mode of a channel: whether its publishes are confirmed, or wait for a commit."""

from __future__ import annotations

import enum

from amqpstore_server.broker.errors import PreconditionFailedError


class ChannelMode(enum.StrEnum):
    """The mode of a channel. Once it is another than PLAIN, it never changes again."""

    PLAIN = "plain"
    CONFIRM = "confirm"
    TX = "tx"
    DTX = "dtx"

    def changed_to(self, mode: ChannelMode) -> ChannelMode:
        """Return the new mode. Raises: PreconditionFailedError."""
        if self not in (ChannelMode.PLAIN, mode):
            raise PreconditionFailedError(f"cannot switch from {self} to {mode} mode")
        return mode
