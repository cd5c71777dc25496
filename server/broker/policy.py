"""Policies: settings that an operator gives to all queues and exchanges whose names match.

Of the policies that match, the one with the highest priority counts, alone. An operator policy is
chosen in the same way, and goes on top of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUEUES = frozenset({"all", "queues", "classic_queues", "quorum_queues"})
EXCHANGES = frozenset({"all", "exchanges"})


@dataclass(frozen=True)
class Policy:
    """Policy `name` of a virtual host. `definition` has settings by their policy keys."""

    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, name: str, kinds: frozenset[str]) -> bool:
        """Whether it is for a queue (QUEUES) or an exchange (EXCHANGES) of this name."""
        return self.apply_to in kinds and re.search(self.pattern, name) is not None


def matching(policies: Iterable[Policy], name: str, kinds: frozenset[str]) -> Mapping[str, Any]:
    """The definition that counts for a name; an empty one where no policy is for it."""
    found = [policy for policy in policies if policy.applies(name, kinds)]
    if not found:
        return {}
    return max(found, key=lambda policy: (policy.priority, policy.name)).definition
