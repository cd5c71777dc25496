"""The headers exchange: compares the message's headers with the binding's arguments (AMQP 3.1.3.4).

Argument `x-match` says how: `all` (the default) requires each of the other arguments among the
headers, `any` at least one. Both skip arguments whose names start with "x-"; `all-with-x` and
`any-with-x` include them. Without any argument to compare, `all` always matches and `any` never
does.

An argument without a value only requires that the header is present; any other requires an equal
value. Numbers are compared as numbers, whatever their width, integer or not, and text and bytes by
their octets: what a client sends depends on its language. Arguments are stored as plain values, so
a timestamp is the integer of its seconds and a decimal is its text; headers of those types are
compared in that form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Exchange
from amqpstore_server.protocol.content import BasicProperties

_MATCH = "x-match"
_RESERVED_PREFIX = "x-"

# By value of `x-match`: how to combine the comparisons, and whether "x-" names count.
_MODES: dict[str, tuple[Callable[[Iterable[bool]], bool], bool]] = {
    "all": (all, False),
    "any": (any, False),
    "all-with-x": (all, True),
    "any-with-x": (any, True),
}

_RuleKey = tuple[str, Any]
"""A header's name, and its value if that is a number or text, otherwise None."""

_FILED_TYPES = frozenset({int, float, str})
"""Types of values that a rule is filed by as they are: there may be thousands in a binding."""

_ALWAYS: _RuleKey = ("", _MATCH)


class HeadersExchange(Exchange):
    """Routes where the headers match the binding's arguments."""

    type = "headers"
    has_independent_bindings = True
    reads_properties = True
    reads_routing_key = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._rules: dict[int, _Rule] = {}
        """By the identity of their binding: to work out its key takes milliseconds for thousands of
        arguments."""
        self._filed: dict[_RuleKey, dict[int, _Rule]] = {}
        """The rules by a header without which they do not match, so that a message is compared
        with few of many thousands."""
        self._names: Counter[str] = Counter()
        """The names of these headers, with the number of places, so that few of a message's many
        thousand headers are looked at."""

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        headers = properties.headers or {}
        found: dict[int, _Rule] = {}
        for rule_key in _keys_of(headers, self._names):
            if rules := self._filed.get(rule_key):
                found.update(rules)
        return [rule.destination for rule in found.values() if rule.matches(headers)]

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        return self._rules[id(binding)].why(properties.headers or {})

    def _add(self, binding: Binding) -> None:
        rule = self._rules[id(binding)] = _Rule(binding)
        rule_keys = rule.keys()
        if rule.needs_all:
            # One is enough: the one with the fewest others.
            free = next((rule_key for rule_key in rule_keys if rule_key not in self._filed), None)
            rule_keys = [free or min(rule_keys, key=lambda rule_key: len(self._filed[rule_key]))]
        filed, key = self._filed, id(binding)
        names = []
        for rule_key in rule_keys:
            rules = filed.get(rule_key)
            if rules is None:
                filed[rule_key] = {key: rule}
                names.append(rule_key[0])
            else:
                rules[key] = rule
        self._names.update(names)
        rule.filed = rule_keys

    def _remove(self, binding: Binding) -> None:
        filed, names, key = self._filed, self._names, id(binding)
        for rule_key in self._rules.pop(key).filed:
            rules = filed[rule_key]
            del rules[key]
            if not rules:
                del filed[rule_key]
                count = names.pop(rule_key[0])
                if count > 1:
                    names[rule_key[0]] = count - 1


class _Rule:
    """The match rule of one binding. Raises: PreconditionFailedError."""

    __slots__ = ("_decide", "_mode", "_pairs", "destination", "filed", "needs_all")

    def __init__(self, binding: Binding) -> None:
        # AMQP 0-9-1 does not say what a missing x-match means; RabbitMQ takes `all`.
        mode = binding.arguments.get(_MATCH, "all")
        if not isinstance(mode, str) or mode not in _MODES:
            raise PreconditionFailedError(
                f"invalid {_MATCH} {mode!r} in a binding of a headers exchange; expected one of "
                f"{', '.join(_MODES)}"
            )
        self.destination = binding.destination
        self.filed: list[_RuleKey] = []
        self._mode = mode
        self._decide, with_reserved = _MODES[mode]
        self._pairs = [
            (name, value)
            for name, value in binding.arguments.items()
            # AMQP 0-9-1, 3.1.3.4: names that begin with x- are reserved, and ignored.
            if name != _MATCH and (with_reserved or not name.startswith(_RESERVED_PREFIX))
        ]

        self.needs_all = self._decide is all

    def keys(self) -> list[_RuleKey]:
        """Return where it may be filed: at one of these if it `needs_all`, else at each."""
        if self.needs_all and not self._pairs:
            return [_ALWAYS]
        return list(
            dict.fromkeys(
                [
                    (name, value) if type(value) in _FILED_TYPES else _key_of(name, value)
                    for name, value in self._pairs
                ]
            )
        )

    def matches(self, headers: dict[str, Any]) -> bool:
        return self._decide(
            # A field without a value asks for the header's presence only.
            name in headers and (value is None or _is_equal(headers[name], value))
            for name, value in self._pairs
        )

    def why(self, headers: dict[str, Any]) -> str:
        if not self.matches(headers):
            return ""
        if not self._pairs:
            return f"{_MATCH} {self._mode} without arguments to compare matches all messages"
        equal = [
            name
            for name, value in self._pairs
            if name in headers and (value is None or _is_equal(headers[name], value))
        ]
        named = ", ".join(repr(name) for name in equal)
        return f"{_MATCH} {self._mode}: {len(equal)} of {len(self._pairs)} headers match: {named}"


def _key_of(name: str, value: Any) -> _RuleKey:
    if isinstance(value, (str, bytes)):
        return name, _text(value)
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return name, value if is_plain else None


def _keys_of(headers: dict[str, Any], names: Collection[str]) -> list[_RuleKey]:
    """Return where rules are filed that may match a message. Args: names, of headers that any rule
    is filed under.
    """
    rule_keys = [_ALWAYS]
    for name, value in headers.items():
        if name not in names:
            continue
        rule_keys.append((name, None))
        rule_key = _key_of(name, str(value) if isinstance(value, Decimal) else value)
        if rule_key[1] is not None:
            rule_keys.append(rule_key)
    return rule_keys


def _is_equal(header: Any, argument: Any) -> bool:
    """Tell whether two values are equal, inside tables and arrays too."""
    # To Python True equals 1, to a client it does not.
    if isinstance(argument, bool) or isinstance(header, bool):
        return header is argument
    if isinstance(header, Decimal):
        # By text: 1.5 and 1.50 are different decimals.
        return isinstance(argument, (Decimal, str)) and str(header) == str(argument)
    if isinstance(argument, (int, float)):
        return isinstance(header, (int, float)) and header == argument
    if isinstance(argument, (str, bytes)):
        return isinstance(header, (str, bytes)) and _text(header) == _text(argument)
    if isinstance(argument, list):
        return (
            isinstance(header, list)
            and len(header) == len(argument)
            and all(map(_is_equal, header, argument))
        )
    if isinstance(argument, dict):
        return (
            isinstance(header, dict)
            and header.keys() == argument.keys()
            and all(_is_equal(header[name], value) for name, value in argument.items())
        )
    return type(header) is type(argument) and bool(header == argument)


def _text(value: str | bytes) -> str:
    """Return the same text for the same octets."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
