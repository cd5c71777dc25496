"""Publishes the broker's own messages: copies for the firehose, and events.

They are collected and published in a later round: whatever happens within a round, also during a
delivery, can be told without touching a queue there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from amqpstore import Message
    from amqpstore_server.broker.channels.confirms import Publisher
    from amqpstore_server.broker.messages.envelope import ParsedEnvelope
    from amqpstore_server.broker.routing.routing import Router
    from amqpstore_server.broker.work.services import BrokerServices

_log = logging.getLogger(__name__)

Make = Callable[[], "list[Message]"]
"""Makes messages that are alike and have one exchange and routing key."""


class OwnPublishes:
    """The messages that wait to be published.

    Args: publisher, one without an outlet; what, their name in the log; at_once, how many are
    published in one round. If `keeps_up`, it is at least a quarter of those that wait: where
    clients cause more in each round, they must not become ever more.
    """

    def __init__(
        self,
        services: BrokerServices,
        router: Router,
        publisher: Publisher,
        what: str,
        at_once: int,
        *,
        keeps_up: bool = False,
    ) -> None:
        self._services = services
        self._router = router
        self._publisher = publisher
        self._what = what
        self._at_once = at_once
        self._keeps_up = keeps_up
        self._count = 0
        self._waiting: deque[tuple[int, Make]] = deque()
        self._is_under_way = False
        self._dropped = 0

    def add(self, count: int, make: Make) -> None:
        """Publish messages in a later round. Args: count, of the messages that `make` makes."""
        self._waiting.append((count, make))
        self._count += count
        if not self._is_under_way:
            self._is_under_way = True
            self._services.agenda.background.append(self._publishing())

    def _publishing(self) -> Iterator[None]:
        try:
            while self._waiting:
                self._services.work[self._what] = None
                self._publish_some()
                yield
        finally:
            # An error ends this; the next messages start it again.
            self._is_under_way = False
            self._waiting.clear()
            self._count = 0

    def _publish_some(self) -> None:
        left = max(self._at_once, self._count // 4) if self._keeps_up else self._at_once
        while self._waiting and left > 0:
            count, make = self._waiting.popleft()
            left -= count
            self._count -= count
            try:
                if messages := make():
                    self._publish(messages)
            except ResourceExhaustedError as error:
                if not self._dropped:
                    _log.warning("%s are dropped", self._what, extra={"reason": str(error)})
                self._dropped += count
                continue
            if self._dropped:
                _log.info("%s are published again", self._what, extra={"dropped": self._dropped})
                self._dropped = 0

    def _publish(self, messages: list[Message]) -> None:
        """Raises: ResourceExhaustedError."""
        flags = Flags()
        for route, some in self._router.own_routes(messages):
            if route.queues:
                envelope = cast("ParsedEnvelope", some[0].envelope)
                self._publisher.publish(route, envelope, some, flags)
