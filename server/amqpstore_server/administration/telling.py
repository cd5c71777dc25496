"""The events of what operators do, with the routing keys and headers of RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from amqpstore_server.administration.definitions import (
    Definitions,
    Permission,
    PolicyDefinition,
    TopicPermission,
)
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.broker.work.events import BrokerEvent

_LIMITS = "limits"
"""The name of all limits, which are one parameter."""

Row = Mapping[str, Any]


def user_events(name: str, before: Row | None, after: Row) -> list[BrokerEvent]:
    """Return the events of a user that was set. Args: before, its row, None if it is new."""
    events = []
    about = {"name": name}
    if before is None:
        events.append(BrokerEvent("user.created", about))
    elif _secret(before) != _secret(after):
        kind = "changed" if after.get("hash") else "cleared"
        events.append(BrokerEvent(f"user.password.{kind}", about))
    tags = list(after.get("tags", []))
    if tags != list((before or {}).get("tags", [])):
        events.append(BrokerEvent("user.tags.set", {**about, "tags": tags}))
    return events


def _secret(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ("algorithm", "hash", "imported"))


def user_limits_event(user: str, limits: Mapping[str, int]) -> BrokerEvent:
    """Return the event of a user's limits."""
    kind = "set" if limits else "cleared"
    return BrokerEvent(f"user.limits.{kind}", {"name": _LIMITS, "username": user, **limits})


def vhost_event(vhost: VirtualHost, kind: str = "created") -> BrokerEvent:
    """Return the event of a virtual host that was `created` or `updated`."""
    about = {"name": vhost.name, "tracing": vhost.firehose.is_on, **vhost.metadata}
    return BrokerEvent(f"vhost.{kind}", about)


def global_parameter_event(name: str, value: Any = None) -> BrokerEvent:
    """Return the event of a parameter of no virtual host; None if it was removed."""
    about = {"component": "global", "name": name}
    if value is None:
        return BrokerEvent("parameter.cleared", about)
    return BrokerEvent("parameter.set", {**about, "value": value})


def vhost_limits_events(vhost: str, limits: Mapping[str, int]) -> list[BrokerEvent]:
    """Return the events of a virtual host's limits, which are a parameter too."""
    about = {"vhost": vhost, "component": "vhost-limits", "name": _LIMITS}
    if not limits:
        return [
            BrokerEvent("parameter.cleared", about),
            BrokerEvent("vhost.limits.cleared", {"name": _LIMITS, "vhost": vhost}),
        ]
    return [
        BrokerEvent("parameter.set", {**about, "value": dict(limits)}),
        BrokerEvent("vhost.limits.set", {"name": _LIMITS, "vhost": vhost, **limits}),
    ]


def permission_event(asked: Permission) -> BrokerEvent:
    """Return the event of permissions that were set."""
    return BrokerEvent(
        "permission.created",
        {
            "user": asked.user,
            "vhost": asked.vhost,
            "configure": asked.configure,
            "write": asked.write,
            "read": asked.read,
        },
    )


def topic_permission_event(asked: TopicPermission) -> BrokerEvent:
    """Return the event of permissions for routing keys that were set."""
    return BrokerEvent(
        "topic.permission.created",
        {
            "user": asked.user,
            "vhost": asked.vhost,
            "exchange": asked.exchange,
            "write": asked.write,
            "read": asked.read,
        },
    )


def policy_events(asked: PolicyDefinition, *, operator: bool) -> list[BrokerEvent]:
    """Return the events of a policy that was set; an operator policy is a parameter too."""
    value = {
        "pattern": asked.pattern,
        "definition": dict(asked.settings),
        "priority": asked.priority,
        "apply-to": asked.apply_to,
    }
    about = {"vhost": asked.vhost, "name": asked.name}
    parameter = {**about, "component": "operator_policy", "value": value}
    events = [BrokerEvent("parameter.set", parameter)] if operator else []
    return [*events, BrokerEvent("policy.set", {**about, **value})]


def policy_cleared_events(vhost: str, name: str, *, operator: bool) -> list[BrokerEvent]:
    """Return the events of a policy that was removed."""
    about = {"vhost": vhost, "name": name}
    if not operator:
        return [BrokerEvent("policy.cleared", about)]
    return [
        BrokerEvent("parameter.cleared", {**about, "component": "operator_policy"}),
        BrokerEvent("operator.policy.cleared", about),
    ]


def definitions_events(
    definitions: Definitions,
    new_vhosts: Iterable[VirtualHost],
    before: Mapping[str, Row | None],
    after: Mapping[str, Row],
) -> Iterator[BrokerEvent]:
    """Yield the events of definitions that were imported, but for queues, exchanges and bindings,
    which tell of themselves. Args: before, after, the rows of the users.
    """
    for name, row in after.items():
        yield from user_events(name, before[name], row)
    yield from map(vhost_event, new_vhosts)
    yield from map(permission_event, definitions.permissions)
    yield from map(topic_permission_event, definitions.topic_permissions)
    for parameter in definitions.global_parameters:
        yield global_parameter_event(parameter.name, parameter.value)
    for limits in definitions.vhost_limits:
        yield from vhost_limits_events(limits.vhost, limits.limits)
    for policy in definitions.policies:
        yield from policy_events(policy, operator=False)
    for policy in definitions.operator_policies:
        yield from policy_events(policy, operator=True)
