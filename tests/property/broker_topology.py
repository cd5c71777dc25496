"""Exchanges, bindings and policies in the model: where a letter goes, and a queue's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.property.broker_letters import Letter


@dataclass
class Exchange:
    """An exchange, as it was declared."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compared(self) -> tuple[object, ...]:
        """The properties in which another declaration has to agree."""
        alternate = self.arguments.get("alternate-exchange")
        return self.type, self.durable, self.auto_delete, self.internal, alternate


class Binding(NamedTuple):
    """A binding from the exchange `source` to the queue or exchange `name`. `kind` says which."""

    source: str
    kind: str
    name: str
    key: str
    arguments: Mapping[str, Any]


class Topology:
    """The exchanges and bindings of a virtual host. Of queues it knows the names."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: list[Binding] = []
        self.policies: list[Policy] = []
        self.operator_policies: list[Policy] = []

    def route(self, letter: Letter, queues: Iterable[str]) -> set[str]:
        """Return the queues that a letter goes to, each of them once however many ways lead there.

        An exchange that leads nowhere hands it to its alternate exchange, if there is one.
        """
        if not letter.exchange:
            return set(letter.keys) & set(queues)
        reached: set[str] = set()
        waiting = [letter.exchange]
        seen = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.exchanges:
                continue
            seen.add(name)
            matching = [one for one in self.bindings_of(name) if self._matches(one, letter)]
            reached |= {one.name for one in matching if one.kind == "queue"}
            waiting += [one.name for one in matching if one.kind == "exchange"]
            if not matching:
                waiting.append(self.alternate(name))
        return reached

    def bindings_of(self, source: str) -> list[Binding]:
        return [binding for binding in self.bindings if binding.source == source]

    def alternate(self, name: str) -> str:
        """Return the alternate exchange, by argument, or else by policy."""
        argument = self.exchanges[name].arguments.get("alternate-exchange")
        policy = chosen(self.policies, name, "exchanges").get("alternate-exchange")
        return argument or policy or ""

    def unbind_all(self, kind: str, name: str) -> list[str]:
        """Remove all bindings to something. Returns the exchanges that had one."""
        sources = [one.source for one in self.bindings if (one.kind, one.name) == (kind, name)]
        self.bindings = [one for one in self.bindings if (one.kind, one.name) != (kind, name)]
        return list(dict.fromkeys(sources))

    def _matches(self, binding: Binding, letter: Letter) -> bool:
        kind = self.exchanges[binding.source].type
        if kind == "fanout":
            return True
        if kind == "direct":
            return binding.key in letter.keys
        if kind == "topic":
            return any(words_match(words(binding.key), words(key)) for key in letter.keys)
        return headers_match(binding.arguments, letter.headers)


def words(key: str) -> list[str]:
    return key.split(".") if key else []


def words_match(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Tell whether a pattern matches: `*` is one word, `#` any number of them."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(words_match(pattern[1:], key[skipped:]) for skipped in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and words_match(pattern[1:], key[1:])


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Tell whether headers match: x-match says whether all arguments have to be there, or any of
    them.
    """
    mode = arguments.get("x-match", "all")
    pairs = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (mode.endswith("-with-x") or not name.startswith("x-"))
    ]
    found = [name in headers and value in (None, headers[name]) for name, value in pairs]
    return all(found) if mode.startswith("all") else any(found)


@dataclass(frozen=True)
class Policy:
    """Settings for all whose names begin with `prefix`."""

    name: str
    prefix: str
    apply_to: str
    priority: int
    definition: Mapping[str, Any]


def chosen(policies: Iterable[Policy], name: str, kind: str) -> Mapping[str, Any]:
    """Return the definition of the policy with the highest priority, which alone applies to a
    name.
    """
    found = [
        policy
        for policy in policies
        if name.startswith(policy.prefix) and policy.apply_to in ("all", kind)
    ]
    return max(found, key=lambda one: (one.priority, one.name)).definition if found else {}


NUMBERS = {
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "max-priority",
    "delivery-limit",
}


def settings(
    arguments: Mapping[str, Any], policy: Mapping[str, Any], operator: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what holds for a queue: the smallest of numbers; of all else the argument, then the
    operator policy, then the policy."""
    own = {name.removeprefix("x-"): value for name, value in arguments.items()}
    held: dict[str, Any] = {}
    for key in {*own, *policy, *operator}:
        given = [source[key] for source in (own, operator, policy) if key in source]
        held[key] = min(given) if key in NUMBERS else given[0]
    return held
