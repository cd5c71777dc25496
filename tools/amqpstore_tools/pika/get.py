"""A basic.get that waits for a message."""

from __future__ import annotations

import math

from pika import data
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from amqpstore_tools.pika import inside

CAPABILITY = "basic.get.wait"


class WaitingGet(Basic.Get):
    """basic.get with a field table after its bits, which other servers do not know."""

    def __init__(self, queue: str, no_ack: bool, wait_ms: int) -> None:
        super().__init__(queue=queue, no_ack=no_ack)
        self.wait_ms = wait_ms

    def encode(self) -> list[bytes]:
        pieces = super().encode()
        data.encode_table(pieces, {"x-wait": self.wait_ms})
        return pieces


def get(
    channel: BlockingChannel, queue: str, *, wait_s: float = 0, auto_ack: bool = False
) -> tuple[Basic.GetOk, BasicProperties, bytes] | None:
    """Return one message as soon as there is one; None if none came within `wait_s` seconds.

    The server waits, so nothing is polled and no message is missed. As with every call of a
    BlockingConnection, its other channels are blocked meanwhile; heartbeats are answered.

    Raises: ValueError when `wait_s` is negative or not finite. ExtensionMissingError when it is not
    0 and the server has no capability `basic.get.wait`.
    """
    if not 0 <= wait_s < math.inf:
        raise ValueError(f"wait_s is {wait_s}: it must be 0 or more, and finite")
    if wait_s == 0:
        method, properties, body = channel.basic_get(queue, auto_ack)
    else:
        inside.require(channel, CAPABILITY)
        request = WaitingGet(queue, auto_ack, math.ceil(wait_s * 1000))
        with inside.sending_instead(channel, Basic.Get, request):
            method, properties, body = channel.basic_get(queue, auto_ack)
    if method is None or properties is None:
        return None
    return method, properties, body or b""
