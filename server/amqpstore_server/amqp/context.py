"""What the channels of one connection share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amqpstore_server.amqp.outbox import Outbox
from amqpstore_server.amqp.publishing import Envelopes
from amqpstore_server.broker.channels.local_transaction import Tally
from amqpstore_server.broker.permissions import Access
from amqpstore_server.broker.vhost import VirtualHost


@dataclass(frozen=True, slots=True, eq=False)
class ChannelContext:
    """What an open connection is to its channels, and the owner of its exclusive queues.

    `access` is what the user may do on `vhost`, `envelopes` those of the connection's publishes,
    `transacted` what its transactions have in memory, `frame_max` what the client takes.
    `shares_prefetch` says whether basic.qos means the channel, `global` or not (see `product`).
    `break_off` ends the connection after an error of ours.
    """

    peer: str
    vhost: VirtualHost
    access: Access
    envelopes: Envelopes
    outbox: Outbox
    transacted: Tally
    frame_max: int
    hears_cancels: bool
    shares_prefetch: bool
    break_off: Callable[[], None]
