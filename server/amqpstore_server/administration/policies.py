"""The operations on policies, and on operator policies."""

from __future__ import annotations

from typing import Any

from amqpstore_server.administration.changes import AdministrationError, Changes, MissingError
from amqpstore_server.administration.definitions import PolicyDefinition
from amqpstore_server.administration.telling import policy_cleared_events, policy_events
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.definitions.accepted import check_policy
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rules.policy import Policy


class PolicyOperations:
    """Lists, sets and clears policies."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    # Policies.

    def all(self, vhost: str = "", *, operator: bool = False) -> list[dict[str, Any]]:
        """Return the policies, or the operator policies, as RabbitMQ writes them."""
        return [
            {
                "vhost": where.name,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply-to": policy.apply_to,
                "definition": dict(policy.definition),
                "priority": policy.priority,
            }
            for where in sorted(self._changes.broker.vhosts.values(), key=lambda one: one.name)
            if vhost in ("", where.name)
            for policy in sorted(where.policies.all(operator=operator), key=lambda one: one.name)
        ]

    def set(self, by: By, asked: PolicyDefinition, *, operator: bool = False) -> Work[None]:
        """Add a policy, or change the one of that name. Raises: AdministrationError."""
        self._changes.check_vhost(asked.vhost)
        policy = asked.policy
        if not policy.definition:
            raise AdministrationError("a policy needs a definition with at least one key")
        kind = "operator policy" if operator else "policy"
        if reason := check_policy(policy.apply_to, policy.definition, operator=operator):
            raise AdministrationError(reason)
        others = self._others(asked.name, asked.vhost, operator=operator)
        yield from self._changes.storing(
            Defined(policies={(asked.vhost, operator): [*others, policy]}),
        )
        events = policy_events(asked, operator=operator)
        self._changes.made(by, f"{kind} set", *events, vhost=asked.vhost, policy=asked.name)

    def clear(self, by: By, vhost: str, name: str, *, operator: bool = False) -> Work[None]:
        """Remove a policy. Raises: MissingError."""
        self._changes.check_vhost(vhost)
        others = self._others(name, vhost, operator=operator)
        if len(others) == len(self._changes.broker.vhosts[vhost].policies.all(operator=operator)):
            kind = "operator policy" if operator else "policy"
            raise MissingError(f"no {kind} '{name}' in vhost '{vhost}'")
        yield from self._changes.storing(Defined(policies={(vhost, operator): others}))
        kind = "operator policy cleared" if operator else "policy cleared"
        events = policy_cleared_events(vhost, name, operator=operator)
        self._changes.made(by, kind, *events, vhost=vhost, policy=name)

    def _others(self, name: str, vhost: str, *, operator: bool) -> list[Policy]:
        policies = self._changes.broker.vhosts[vhost].policies.all(operator=operator)
        return [policy for policy in policies if policy.name != name]
