"""Events in a broker: each change is told once, to the audit log and to the event exchange.

The event exchange is that of RabbitMQ's plug-in rabbitmq_event_exchange, with its routing keys and
headers. It has everything, the audit log what somebody did through a door. Without a binding no
event is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore_server.broker.monitoring.audit import By, audit, audit_refusal

if TYPE_CHECKING:
    from amqpstore_server.broker.exchanges.base import Exchange

EVENT_EXCHANGE = "amq.rabbitmq.event"

_NOBODY = "rmq-internal"
"""RabbitMQ's name for the broker itself."""

Headers = Mapping[str, Any]


class BrokerEvent(NamedTuple):
    """An event: its routing key at the exchange, and its headers without those that all have."""

    key: str
    headers: Headers


class BrokerEvents:
    """The events of a broker, and the listeners who are told of them.

    `by` is who acts now, None the broker itself: a door sets it with `acting`.
    """

    def __init__(self) -> None:
        self.by: By | None = None
        self._exchange: Exchange | None = None
        self._publish: Callable[[BrokerEvent], None] = lambda _: None

    def listen(self, exchange: Exchange, publish: Callable[[BrokerEvent], None]) -> None:
        """Have events published while the exchange has bindings."""
        self._exchange = exchange
        self._publish = publish

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to events."""
        exchange = self._exchange
        return exchange is not None and exchange.is_bound and not exchange.is_deleted

    @contextmanager
    def acting(self, by: By) -> Iterator[None]:
        """Say who does what the block does."""
        before, self.by = self.by, by
        try:
            yield
        finally:
            self.by = before

    def happened(self, line: str, *events: BrokerEvent, by: By | None = None, **said: Any) -> None:
        """Tell that something happened.

        Args: line, what the audit log calls it, empty if it is not for the log; said, the fields of
        the line; by, who did it, by default who acts now. What the broker does by itself is not in
        the audit log.
        """
        by = by or self.by
        if line and by is not None:
            audit(line, **{**by.fields, **said})
        if events and self.is_heard:
            who = by.who if by else _NOBODY
            for event in events:
                headers = {**event.headers, "user_who_performed_action": who}
                self._publish(BrokerEvent(event.key, headers))

    def noted(self, line: str, event: Callable[[], BrokerEvent], **said: Any) -> None:
        """Tell of a client. Args: as of `happened`; event, makes it, if anybody hears of it; the
        fields say who it is.
        """
        audit(line, **said)
        self._tell(event)

    def refused(self, line: str, event: Callable[[], BrokerEvent], **said: Any) -> None:
        """Tell that somebody was refused. Args: as of `noted`."""
        audit_refusal(line, **said)
        self._tell(event)

    def _tell(self, event: Callable[[], BrokerEvent]) -> None:
        if self.is_heard:
            self._publish(event())
