"""The delayed exchange: a message waits for the ms in its header x-delay, and is then routed.

Another exchange type, named by the argument x-delayed-type, does the routing. Waiting messages are
in the exchange's own queue, in the log like any message and in any number; purging that queue
cancels them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import DELAYED, Binding, Destination, Exchange
from amqpstore_server.broker.exchanges.built_in import ROUTING_TYPES
from amqpstore_server.protocol.content import BasicProperties

TYPE_ARGUMENT = "x-delayed-type"
DELAY_HEADER = "x-delay"

_NUMBER = re.compile(r" *[+-]?[0-9]{1,20}(\.[0-9]{1,20})? *", re.ASCII)

MAX_DELAY_MS = 1 << 52
"""The longest delay: 142,000 years. A publish that asks for a longer one is refused."""


class DelayedExchange(Exchange):
    """Routes a message now, or to its own queue, where the message waits."""

    type = "x-delayed-message"
    reads_arguments = (TYPE_ARGUMENT,)
    queue_kind = DELAYED
    reads_properties = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        inner = self.arguments.get(TYPE_ARGUMENT)
        inner_type = ROUTING_TYPES.get(inner) if isinstance(inner, str) else None
        if inner_type is None:
            raise PreconditionFailedError(
                f"invalid arg '{TYPE_ARGUMENT}' for exchange '{name}': it must name the type "
                f"that routes the delayed messages, not {inner!r}"
            )
        self.inner = inner_type(name, **properties)
        self.reads_routing_key = self.inner.reads_routing_key
        self.is_repeatable = self.inner.is_repeatable
        self.has_independent_bindings = self.inner.has_independent_bindings

    def check_inner(self) -> None:
        """Make sure that the type that routes keeps no messages, as the own queue is for those that
        wait. Raises: PreconditionFailedError.
        """
        # Not when it is restored: versions that did not check have declared some.
        if self.inner.queue_kind:
            raise PreconditionFailedError(
                f"invalid arg '{TYPE_ARGUMENT}' for exchange '{self.name}': '{self.inner.type}' "
                "keeps messages of its own, which a delayed exchange cannot: bind such an exchange "
                "to a delayed one"
            )

    def check(self, properties: BasicProperties) -> None:
        if _delay(properties) is None:
            delay = (properties.headers or {}).get(DELAY_HEADER)
            raise PreconditionFailedError(
                f"invalid header '{DELAY_HEADER}': {delay!r} is not a number of ms up to 2^52"
            )

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:
        if self.own_queue is not None and delay_ms(properties):
            return [self.own_queue]
        return self.inner.route(routing_key, properties)

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:
        return self.inner.why(binding, routing_key, properties)

    def _add(self, binding: Binding) -> None:
        self.inner.bind(binding)

    def _remove(self, binding: Binding) -> None:
        self.inner.unbind(binding)


def delay_ms(properties: BasicProperties) -> int:
    """Return how many ms a message has to wait; 0 if it does not wait, or does not say how long."""
    return max(_delay(properties) or 0, 0)


def _delay(properties: BasicProperties) -> int | None:
    """Return the delay in ms; None for a header that is no delay. A number may be of any type, and
    text, as PHP and configuration files send it.
    """
    delay: Any = (properties.headers or {}).get(DELAY_HEADER, 0)
    if isinstance(delay, bytes | bytearray):
        delay = bytes(delay).decode("utf-8", "replace")
    # True is 1 to Python, and surely not one millisecond to its client.
    if isinstance(delay, bool) or not isinstance(delay, int | float | Decimal | str):
        return None
    if isinstance(delay, str) and not _NUMBER.fullmatch(delay):
        return None
    number = delay if isinstance(delay, int) else Decimal(delay)
    # A float that is not a number is not equal to itself.
    if number != number:
        return None
    # Compared before it is converted: a decimal may stand for a number of many digits.
    return int(max(number, -1)) if number <= MAX_DELAY_MS else None
