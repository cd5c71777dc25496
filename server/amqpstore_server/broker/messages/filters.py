"""Filters: which messages of a queue an operator means, by their properties, headers and bodies.

Each condition takes time in proportion to the message: patterns are RE2's (see `patterns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from decimal import Decimal
from typing import Any

import msgspec

from amqpstore import Envelope, Message
from amqpstore_server.broker.rules.patterns import ASKED, Pattern
from amqpstore_server.protocol.content import BasicProperties, decode_properties

MAX_CONDITIONS = 50
"""On properties and headers: a message is compared with each of them."""

_SEARCHED_BYTES = 1 << 20
"""How much of a body is searched."""

_PROPERTIES = tuple(field.name for field in fields(BasicProperties) if field.name != "headers")

_Test = Callable[[Any], bool]


class Condition(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on a value: all that is given applies.

    `min` and `max` are for numbers (a timestamp is in seconds since 1970), `contains` and `pattern`
    for texts.
    """

    equals: str | int | float | bool | msgspec.UnsetType | None = msgspec.UNSET
    exists: bool | None = None
    min: int | float | None = None
    max: int | float | None = None
    contains: str | None = None
    pattern: str | None = None


Wanted = str | int | float | bool | None | Condition
"""A value that equals this, or one that meets a condition; None is a value that is not there."""


class TextCondition(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on a body, whose first 1 MiB are searched."""

    contains: str | None = None
    pattern: str | None = None


class MessageFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A filter that messages pass that meet all its conditions: an empty one lets every message
    pass.

    `properties` are named as in AMQP, `message_id` or `message-id`. A pattern matches anywhere in a
    text.
    """

    properties: dict[str, Wanted] = {}
    headers: dict[str, Wanted] = {}
    exchange: Wanted | msgspec.UnsetType = msgspec.UNSET
    routing_key: Wanted | msgspec.UnsetType = msgspec.UNSET
    body: TextCondition | None = None
    redelivered: bool | None = None


class Matcher:
    """A filter that is ready for use. Raises: PatternError, ValueError (there is no such property,
    or there are too many conditions).
    """

    def __init__(self, wanted: MessageFilter) -> None:
        if len(wanted.properties) + len(wanted.headers) > MAX_CONDITIONS:
            raise ValueError(f"more than {MAX_CONDITIONS} properties and headers")
        self._redelivered = wanted.redelivered
        self._envelope = [
            (name, _test(value))
            for name, value in (
                ("exchange", wanted.exchange),
                ("routing_key", wanted.routing_key),
            )
            if value is not msgspec.UNSET
        ]
        named = {name.replace("-", "_"): value for name, value in wanted.properties.items()}
        if unknown := next((name for name in named if name not in _PROPERTIES), None):
            raise ValueError(f"no property '{unknown}': there are {', '.join(_PROPERTIES)}")
        self._properties = [(name, _test(value)) for name, value in named.items()]
        self._headers = [(name, _test(value)) for name, value in wanted.headers.items()]
        self._body = list(_body_tests(wanted.body)) if wanted.body else []

    def matches(self, message: Message, delivery_count: int = 0) -> bool:
        """Tell whether a message is meant."""
        # The cheapest test first; bodies are searched last.
        if self._redelivered is not None and self._redelivered is not (delivery_count > 0):
            return False
        envelope = message.envelope
        return (
            all(test(getattr(envelope, name)) for name, test in self._envelope)
            and self._matches_properties(envelope)
            and all(test(message.body) for test in self._body)
        )

    def _matches_properties(self, envelope: Envelope) -> bool:
        if not (self._properties or self._headers):
            return True
        properties = decode_properties(envelope.properties)
        headers = properties.headers or {}
        return all(test(getattr(properties, name)) for name, test in self._properties) and all(
            test(headers.get(name)) for name, test in self._headers
        )


def _test(wanted: Any) -> _Test:
    """Return the test of a value."""
    if not isinstance(wanted, Condition):
        return _equal_to(wanted)
    tests = list(_tests(wanted))
    return lambda value: all(test(value) for test in tests)


def _tests(wanted: Condition) -> Iterable[_Test]:
    if wanted.equals is not msgspec.UNSET:
        yield _equal_to(wanted.equals)
    if (exists := wanted.exists) is not None:
        yield lambda value: (value is not None) is exists
    if (least := wanted.min) is not None:
        yield lambda value: _is_number(value) and value >= least
    if (most := wanted.max) is not None:
        yield lambda value: _is_number(value) and value <= most
    if (part := wanted.contains) is not None:
        yield lambda value: isinstance(value, str) and part in value
    if wanted.pattern is not None:
        pattern = Pattern(wanted.pattern, ASKED)
        yield lambda value: isinstance(value, str) and pattern.matches(value)


def _body_tests(wanted: TextCondition) -> Iterable[Callable[[bytes], bool]]:
    if wanted.contains is not None:
        part = wanted.contains.encode()
        yield lambda body: body.find(part, 0, _SEARCHED_BYTES) >= 0
    if wanted.pattern is not None:
        pattern = Pattern(wanted.pattern, ASKED)
        yield lambda body: pattern.matches(body[:_SEARCHED_BYTES].decode(errors="replace"))


def _equal_to(wanted: Any) -> _Test:
    # To Python, True equals 1.
    is_flag = isinstance(wanted, bool)
    return lambda value: value == wanted and isinstance(value, bool) is is_flag


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
