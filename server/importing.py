"""Importing: what a definitions file says becomes so, in the broker and in its store.

As in RabbitMQ an import adds and changes, and deletes nothing; but for policies, which are those of
the file, all of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from server.broker.broker import Broker
from server.broker.errors import BrokerError
from server.broker.policy import Policy
from server.broker.settings import POLICY_KEYS
from server.broker.vhost import VirtualHost
from server.definitions import Binding, Definitions
from server.definitions import Policy as DefinedPolicy

_log = logging.getLogger(__name__)


def apply_definitions(definitions: Definitions, broker: Broker) -> None:
    """Make all of it so but the users, which `Users.define` does.

    What cannot be is logged as an error and left out. Raises: DurabilityError.
    """
    for vhost in definitions.vhosts:
        broker.define_vhost(vhost.name)
    _define_permissions(definitions, broker)
    for name in broker.vhosts:
        own = [policy for policy in definitions.policies if policy.vhost == name]
        operators = [policy for policy in definitions.operator_policies if policy.vhost == name]
        broker.vhost(name).define_policies(_policies(own), operator=False)
        broker.vhost(name).define_policies(_policies(operators), operator=True)
    for exchange in definitions.exchanges:
        with _left_out("exchange", exchange.vhost, exchange.name):
            broker.vhost(exchange.vhost).declare_exchange(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
    for queue in definitions.queues:
        with _left_out("queue", queue.vhost, queue.name):
            broker.vhost(queue.vhost).declare_queue(
                queue.name,
                durable=queue.durable,
                exclusive=False,
                auto_delete=queue.auto_delete,
                arguments=queue.arguments,
                connection=None,
            )
    for binding in definitions.bindings:
        with _left_out("binding", binding.vhost, f"{binding.source} -> {binding.destination}"):
            _bind(broker.vhost(binding.vhost), binding)


def _define_permissions(definitions: Definitions, broker: Broker) -> None:
    topics: dict[tuple[str, str], dict[str, Any]] = {}
    for topic in definitions.topic_permissions:
        of_user = topics.setdefault((topic.user, topic.vhost), {})
        of_user[topic.exchange] = {"write": topic.write, "read": topic.read}
    for permission in definitions.permissions:
        row: dict[str, Any] = {
            "configure": permission.configure,
            "write": permission.write,
            "read": permission.read,
            "topic": topics.pop((permission.user, permission.vhost), {}),
        }
        with _left_out("permission", permission.vhost, permission.user):
            broker.define_permissions(permission.user, permission.vhost, row)
    # What is left limits users whose permissions an earlier file gave.
    for (user, vhost), limits in topics.items():
        with _left_out("topic permission", vhost, user):
            row = {**broker.permissions(user, vhost), "topic": limits}
            broker.define_permissions(user, vhost, row)


def _policies(defined: Iterable[DefinedPolicy]) -> list[Policy]:
    policies = []
    for policy in defined:
        for key, value in policy.definition.items():
            check = POLICY_KEYS.get(key)
            reason = check(value) if check else "the key is not known here"
            if reason:
                extra = {"policy": policy.name, "key": key, "reason": reason}
                _log.error("a key of a policy has no effect", extra=extra)
        policies.append(
            Policy(policy.name, policy.pattern, policy.apply_to, policy.priority, policy.definition)
        )
    return policies


def _bind(vhost: VirtualHost, binding: Binding) -> None:
    """Raises: BrokerError."""
    destination = (
        vhost.queue(binding.destination)
        if binding.destination_type == "queue"
        else vhost.exchange(binding.destination)
    )
    vhost.bind(destination, binding.source, binding.routing_key, binding.arguments)


@contextlib.contextmanager
def _left_out(kind: str, vhost: str, name: str) -> Iterator[None]:
    """Log a definition that the broker refuses, and go on."""
    try:
        yield
    except BrokerError as error:
        extra = {"kind": kind, "vhost": vhost, "definition": name, "reason": str(error)}
        _log.error("definition left out", extra=extra)
