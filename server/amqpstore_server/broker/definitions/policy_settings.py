"""The settings of the queues and exchanges of a virtual host, as its policies are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amqpstore_server.broker.definitions.byte_limits import ByteLimits
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Router
from amqpstore_server.broker.rules.policy import Policies, Policy
from amqpstore_server.broker.transactions.history import Histories
from amqpstore_server.broker.transactions.waiting_letters import WaitingLetters
from amqpstore_server.broker.work.services import BrokerServices

_AT_ONCE = 100
_MATCHES_AT_ONCE = 2000
"""Queues or exchanges that get their settings before others have their turn, and names that are
compared with the patterns of policies for that.
"""


class PolicySettings:
    """Gives the queues and exchanges of a virtual host their settings.

    Args: exchanges and queues, of the virtual host, by name.
    """

    def __init__(
        self,
        services: BrokerServices,
        policies: Policies,
        exchanges: Mapping[str, Exchange],
        queues: Mapping[str, Queue],
        router: Router,
        histories: Histories,
        waiting_letters: WaitingLetters,
    ) -> None:
        self._services = services
        self._policies = policies
        self._exchanges = exchanges
        self._queues = queues
        self._router = router
        self._histories = histories
        self._waiting_letters = waiting_letters
        self._byte_limits = ByteLimits(services, router.changed)

    def define(self, policies: Sequence[Policy], *, operator: bool) -> None:
        """Replace all policies, or all operator policies. Durable on return."""
        if changes := self._policies.changes(policies, operator=operator):
            self._services.store.definitions.define(changes)
        self._policies.have(policies, operator=operator)
        self.apply()

    def apply(self) -> None:
        """Give every queue and exchange its current settings."""
        for _ in self.applying():
            pass

    def applying(self) -> Iterator[None]:
        """Do as `apply`, in steps: others may have their turn after each."""
        for _ in self._policies.compiling():
            self._services.work["policies"] = None
            yield
        at_once = max(1, min(_AT_ONCE, _MATCHES_AT_ONCE // (self._policies.most_compared + 1)))
        exchanges = list(self._exchanges.values())
        for first in range(0, len(exchanges), at_once):
            self._services.work["policies"] = None
            for exchange in exchanges[first : first + at_once]:
                self.apply_to_exchange(exchange)
            yield
        queues = list(self._queues.values())
        for first in range(0, len(queues), at_once):
            self._services.work["policies"] = None
            for queue in queues[first : first + at_once]:
                if not queue.is_deleted:
                    self.apply_to_queue(queue)
            # Before anybody publishes: a route has settings of its queues.
            self._router.changed()
            yield
        # Only now: messages that one queue drops may go to another, which needs its settings first.
        for first in range(0, len(queues), _AT_ONCE):
            self._services.work["policies"] = None
            for queue in queues[first : first + _AT_ONCE]:
                if not queue.is_deleted:
                    queue.enforce()
            yield

    def apply_to_queue(self, queue: Queue) -> None:
        """Give a queue its settings: `Queue.enforce` is to be called then."""
        if not queue.is_listed:
            queue.apply(queue.settings)
            return
        settings = self._policies.queue_settings(queue.name, queue.arguments)
        queue.apply(self._byte_limits.applicable(queue, settings))
        self._histories.apply(queue)
        self._waiting_letters.apply(queue)

    def apply_to_exchange(self, exchange: Exchange) -> None:
        """Give an exchange its alternate exchange."""
        exchange.alternate = self._policies.alternate(exchange.name, exchange.arguments)
