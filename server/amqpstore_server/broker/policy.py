"""Policies: settings that an operator gives to all queues and exchanges whose names match.

Of the matching policies, only the one with the highest priority applies. Operator policies are
selected in the same way, and applied on top.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from amqpstore.catalog import Change
from amqpstore.shapes import MAX_KEY_BYTES
from amqpstore_server.broker.patterns import Pattern, pattern_of
from amqpstore_server.broker.settings import (
    ALTERNATE_EXCHANGE,
    POLICY_KEYS,
    Settings,
    is_quorum,
    settings_of,
)

_QUEUES = frozenset({"all", "queues", "classic_queues"})
_QUORUM_QUEUES = frozenset({"all", "queues", "quorum_queues"})
_EXCHANGES = frozenset({"all", "exchanges"})


@dataclass(frozen=True)
class Policy:
    """Policy `name` of a virtual host. `definition` has the settings by policy key."""

    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, name: str, kinds: frozenset[str]) -> bool:
        """Tell whether the policy is for this name, and for one of these kinds."""
        its_pattern = self._pattern
        return self.apply_to in kinds and its_pattern is not None and its_pattern.matches(name)

    @cached_property
    def _pattern(self) -> Pattern | None:
        return pattern_of(self.pattern, f"policy '{self.name}'")


class Policies:
    """The policies and the operator policies of virtual host `vhost`."""

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._policies: dict[bool, list[Policy]] = {False: [], True: []}

    def restore(self, row: Mapping[str, Any]) -> None:
        """Restore a policy from the catalog."""
        policy = Policy(
            row["name"], row["pattern"], row["apply_to"], row["priority"], row["definition"]
        )
        self._policies[row["operator"]].append(policy)

    def have(self, policies: Sequence[Policy], *, operator: bool) -> None:
        """Replace all policies, or all operator policies, by these; commit their `changes`
        first.
        """
        self._policies[operator] = list(policies)

    def all(self, *, operator: bool) -> list[Policy]:
        """Return all policies, or all operator policies."""
        return list(self._policies[operator])

    @property
    def count(self) -> int:
        """The number of policies and operator policies."""
        return sum(map(len, self._policies.values()))

    def changes(self, policies: Sequence[Policy], *, operator: bool) -> list[Change]:
        """Return the catalog changes to commit before `have`."""
        kept = {policy.name for policy in policies}
        changes = [
            Change("policies", self._key(policy.name, operator=operator), None)
            for policy in self._policies[operator]
            if policy.name not in kept
        ]
        for policy in policies:
            row = {"vhost": self._vhost, "operator": operator, **asdict(policy)}
            changes.append(Change("policies", self._key(policy.name, operator=operator), row))
        return changes

    def queue_settings(self, name: str, arguments: Mapping[str, Any]) -> Settings:
        """Return the settings that result from a queue's arguments and its policies."""
        kinds = _QUORUM_QUEUES if is_quorum(arguments) else _QUEUES
        policy = _definition(self._policies[False], name, kinds)
        operator_policy = _definition(self._policies[True], name, kinds)
        return settings_of(arguments, policy, operator_policy)

    def of_queue(self, name: str, arguments: Mapping[str, Any], *, operator: bool) -> Policy | None:
        """Return the policy, or the operator policy, that applies to a queue."""
        kinds = _QUORUM_QUEUES if is_quorum(arguments) else _QUEUES
        return _chosen(self._policies[operator], name, kinds)

    def of_exchange(self, name: str) -> Policy | None:
        """Return the policy that applies to an exchange."""
        return _chosen(self._policies[False], name, _EXCHANGES)

    def alternate(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the alternate exchange of an exchange; empty if it has none."""
        policy = _definition(self._policies[False], name, _EXCHANGES)
        alternate = arguments.get(ALTERNATE_EXCHANGE) or policy.get(ALTERNATE_EXCHANGE) or ""
        return "" if POLICY_KEYS[ALTERNATE_EXCHANGE](alternate) else str(alternate)

    def _key(self, name: str, *, operator: bool) -> str:
        key = f"{self._vhost}\0{'operator' if operator else 'user'}\0{name}"
        if len(key.encode()) > MAX_KEY_BYTES:
            return hashlib.blake2b(key.encode()).hexdigest()
        return key


def _chosen(policies: Iterable[Policy], name: str, kinds: frozenset[str]) -> Policy | None:
    found = [policy for policy in policies if policy.applies(name, kinds)]
    return max(found, key=lambda policy: (policy.priority, policy.name), default=None)


def _definition(policies: Iterable[Policy], name: str, kinds: frozenset[str]) -> Mapping[str, Any]:
    """Return the definition that applies to a name; empty if no policy matches."""
    policy = _chosen(policies, name, kinds)
    return policy.definition if policy else {}
