"""Policies: settings that an operator gives to all queues and exchanges whose names match.

Of the matching policies, only the one with the highest priority applies. Operator policies are
selected in the same way, and applied on top. There may be thousands, each for a few names: a name
is only compared with those whose pattern begins as it does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from amqpstore.catalog.catalog import Change
from amqpstore.catalog.shapes import MAX_KEY_BYTES
from amqpstore_server.broker.rules.patterns import Pattern, pattern_of, prefix_of
from amqpstore_server.broker.rules.settings import (
    ALTERNATE_EXCHANGE,
    POLICY_KEYS,
    Settings,
    is_quorum,
    settings_of,
)

_QUEUES = frozenset({"all", "queues", "classic_queues"})
_QUORUM_QUEUES = frozenset({"all", "queues", "quorum_queues"})
_EXCHANGES = frozenset({"all", "exchanges"})

_COMPILED_AT_ONCE = 100
"""Patterns that are compiled before others have their turn."""


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

    def compile(self) -> None:
        """Do what the first comparison would do: it takes some 30 us."""
        _ = self._pattern

    @cached_property
    def _pattern(self) -> Pattern | None:
        return pattern_of(self.pattern, f"policy '{self.name}'")


class _Index:
    """Policies by the text that the names begin with which their patterns may match."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._by_prefix: dict[str, list[Policy]] = {}
        # Of the policies with one prefix, the first that applies is then the right one.
        for policy in sorted(policies, key=_rank, reverse=True):
            self._by_prefix.setdefault(prefix_of(policy.pattern), []).append(policy)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        most = dict.fromkeys(self._lengths, 0)
        for prefix, some in self._by_prefix.items():
            most[len(prefix)] = max(most[len(prefix)], len(some))
        self.most_compared = sum(most.values())
        """The most policies that a name is compared with."""

    def compiling(self) -> Iterator[None]:
        """Compile the patterns that every name is compared with, in steps."""
        for number, policy in enumerate(self._by_prefix.get("", ()), 1):
            policy.compile()
            if not number % _COMPILED_AT_ONCE:
                yield

    def chosen(self, name: str, kinds: frozenset[str]) -> Policy | None:
        """Return the policy that applies to a name of one of these kinds."""
        found = []
        for length in self._lengths:
            if length > len(name):
                break
            for policy in self._by_prefix.get(name[:length], ()):
                if policy.applies(name, kinds):
                    found.append(policy)
                    break
        return max(found, key=_rank, default=None)


def _rank(policy: Policy) -> tuple[int, str]:
    return policy.priority, policy.name


class Policies:
    """The policies and the operator policies of virtual host `vhost`."""

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._policies: dict[bool, list[Policy]] = {False: [], True: []}
        self._indexes: dict[bool, _Index] = {}

    def restore(self, row: Mapping[str, Any]) -> None:
        """Restore a policy from the catalog."""
        policy = Policy(
            row["name"], row["pattern"], row["apply_to"], row["priority"], row["definition"]
        )
        self._policies[row["operator"]].append(policy)
        self._indexes.clear()

    def have(self, policies: Sequence[Policy], *, operator: bool) -> None:
        """Replace all policies, or all operator policies, by these; commit their `changes`
        first.
        """
        self._policies[operator] = list(policies)
        self._indexes.clear()

    def all(self, *, operator: bool) -> list[Policy]:
        """Return all policies, or all operator policies."""
        return list(self._policies[operator])

    @property
    def most_compared(self) -> int:
        """The most policies and operator policies that a name is compared with."""
        return sum(self._index(operator=operator).most_compared for operator in self._policies)

    def compiling(self) -> Iterator[None]:
        """Compile the patterns that every name is compared with, in steps: others may have their
        turn after each.
        """
        for operator in self._policies:
            yield from self._index(operator=operator).compiling()

    def _index(self, *, operator: bool) -> _Index:
        index = self._indexes.get(operator)
        if index is None:
            index = self._indexes[operator] = _Index(self._policies[operator])
        return index

    def changes(self, policies: Sequence[Policy], *, operator: bool) -> list[Change]:
        """Return the catalog changes to commit before `have`: those that stay as they are, perhaps
        thousands, need none.
        """
        kept = {policy.name for policy in policies}
        present = {id(policy) for policy in self._policies[operator]}
        changes = [
            Change("policies", self._key(policy.name, operator=operator), None)
            for policy in self._policies[operator]
            if policy.name not in kept
        ]
        for policy in policies:
            if id(policy) in present:
                continue
            # Not `asdict`, which copies whatever is in a definition: 12 us for each of thousands.
            row = {
                "vhost": self._vhost,
                "operator": operator,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply_to": policy.apply_to,
                "priority": policy.priority,
                "definition": policy.definition,
            }
            changes.append(Change("policies", self._key(policy.name, operator=operator), row))
        return changes

    def queue_settings(self, name: str, arguments: Mapping[str, Any]) -> Settings:
        """Return the settings that result from a queue's arguments and its policies."""
        policy = self.of_queue(name, arguments, operator=False)
        operator_policy = self.of_queue(name, arguments, operator=True)
        return settings_of(
            arguments,
            policy.definition if policy else None,
            operator_policy.definition if operator_policy else None,
        )

    def of_queue(self, name: str, arguments: Mapping[str, Any], *, operator: bool) -> Policy | None:
        """Return the policy, or the operator policy, that applies to a queue."""
        kinds = _QUORUM_QUEUES if is_quorum(arguments) else _QUEUES
        return self._index(operator=operator).chosen(name, kinds)

    def of_exchange(self, name: str) -> Policy | None:
        """Return the policy that applies to an exchange."""
        return self._index(operator=False).chosen(name, _EXCHANGES)

    def alternate(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the alternate exchange of an exchange; empty if it has none."""
        policy = self.of_exchange(name)
        given = policy.definition.get(ALTERNATE_EXCHANGE) if policy else None
        alternate = arguments.get(ALTERNATE_EXCHANGE) or given or ""
        return "" if POLICY_KEYS[ALTERNATE_EXCHANGE](alternate) else str(alternate)

    def _key(self, name: str, *, operator: bool) -> str:
        key = f"{self._vhost}\0{'operator' if operator else 'user'}\0{name}"
        if len(key.encode()) > MAX_KEY_BYTES:
            return hashlib.blake2b(key.encode()).hexdigest()
        return key
