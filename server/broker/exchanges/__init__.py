"""The exchange types, one module each, by the name that declares them."""

from __future__ import annotations

from server.broker.exchanges.base import Exchange
from server.broker.exchanges.direct import DirectExchange
from server.broker.exchanges.fanout import FanoutExchange

EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    DirectExchange.type: DirectExchange,
    FanoutExchange.type: FanoutExchange,
}
