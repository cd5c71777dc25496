"""The context that the channels of one connection share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amqpstore_server.amqp.envelopes import Envelopes, SimpleTargets
from amqpstore_server.broker.channels.local_transaction import UncommittedBytes
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.outbox import Outbox


@dataclass(frozen=True, slots=True, eq=False)
class ChannelContext:
    """The parts of an open connection that its channels use; also the owner of its exclusive
    queues.

    `name` is that of the connection; `access` has the user's permissions on `vhost`, `envelopes`
    the envelopes of what the connection publishes, `simple_targets` the targets for which that
    takes few steps, `transacted` the memory used by its transactions, `frame_max` the client's
    frame limit, `max_prefetch` the most unacked messages of a consumer, and of a channel
    that gets more, 0 for any number.
    `shares_prefetch` tells whether basic.qos limits the whole channel even without `global` (see
    `product`). `break_off` ends the connection
    after an internal error; `refuse` is called with a channel whose publishes cannot be stored.
    """

    name: str
    log: ClientLog
    vhost: VirtualHost
    access: Access
    envelopes: Envelopes
    simple_targets: SimpleTargets
    outbox: Outbox
    transacted: UncommittedBytes
    frame_max: int
    max_prefetch: int
    takes_cancels: bool
    shares_prefetch: bool
    break_off: Callable[[], None]
    refuse: Callable[[int, BrokerError], None]
