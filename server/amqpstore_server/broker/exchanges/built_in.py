"""The exchange types that route at once, by the name that declares them.

A delayed exchange is not among them: it uses one of them to route messages whose delay is over.
"""

from __future__ import annotations

from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.consistent_hash import ConsistentHashExchange
from amqpstore_server.broker.exchanges.direct import DirectExchange
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.broker.exchanges.headers import HeadersExchange
from amqpstore_server.broker.exchanges.random_ import RandomExchange
from amqpstore_server.broker.exchanges.recent_history import RecentHistoryExchange
from amqpstore_server.broker.exchanges.replay import ReplayExchange
from amqpstore_server.broker.exchanges.topic import TopicExchange

ROUTING_TYPES: dict[str, type[Exchange]] = {
    built_in.type: built_in
    for built_in in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
        RandomExchange,
        RecentHistoryExchange,
        ReplayExchange,
    )
}
