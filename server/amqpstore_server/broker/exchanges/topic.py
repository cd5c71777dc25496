"""The topic exchange: matches the words of the routing key against a pattern (AMQP 3.1.3.3).

Words are separated by dots. In a binding key the word `*` stands for exactly one word and `#` for
zero or more. An empty word counts, so "a..b" has three; the empty key has none.

A pattern without wildcards is looked up directly. The others are grouped by the words up to their
first wildcard, so that a key is matched against its groups only, and against all patterns of a
group at once (see `topic_patterns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Binding, Destination, Destinations, Exchange
from amqpstore_server.broker.exchanges.topic_patterns import (
    ANY_WORDS,
    ONE_WORD,
    Patterns,
    TopicPattern,
)
from amqpstore_server.protocol.content import BasicProperties

MAX_WORDS = 128
"""The most words of a binding key. A routing key may have as many as fit in its 255 bytes."""


class TopicExchange(Exchange):
    """Routes where the binding key's pattern matches the routing key."""

    type = "topic"
    has_independent_bindings = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._exact: dict[str, Destinations] = {}
        self._patterns: dict[str, Patterns] = {}
        """Patterns by the words before their first wildcard, each word followed by a dot."""

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Destination]:  # noqa: ARG002
        found = list(self._exact.get(routing_key, ()))
        if not self._patterns:
            return found
        words = _words(routing_key)
        beginning = ""
        for index in range(len(words) + 1):
            if patterns := self._patterns.get(beginning):
                found += patterns.match(words[index:])
            if index < len(words):
                beginning += words[index] + "."
        return found

    def why(self, binding: Binding, routing_key: str, properties: BasicProperties) -> str:  # noqa: ARG002
        if binding.routing_key == routing_key:
            return "the binding key is the routing key"
        pattern = Patterns()
        pattern.add(TopicPattern.of(_words(binding.routing_key)), binding.destination)
        is_match = any(pattern.match(_words(routing_key)))
        return "the binding key is a pattern that matches the routing key" if is_match else ""

    def _add(self, binding: Binding) -> None:
        key = binding.routing_key
        words = _words(key)
        if len(words) > MAX_WORDS:
            raise PreconditionFailedError(
                f"invalid binding key '{key}' for topic exchange '{self.name}': it has "
                f"{len(words)} words, and may have {MAX_WORDS}"
            )
        beginning, pattern = _split(words)
        if pattern is None:
            self._exact.setdefault(key, Destinations()).add(binding.destination)
        else:
            self._patterns.setdefault(beginning, Patterns()).add(pattern, binding.destination)

    def _remove(self, binding: Binding) -> None:
        key = binding.routing_key
        beginning, pattern = _split(_words(key))
        if pattern is None:
            self._exact[key].remove(binding.destination)
            if not self._exact[key]:
                del self._exact[key]
        else:
            patterns = self._patterns[beginning]
            patterns.remove(pattern, binding.destination)
            if not patterns:
                del self._patterns[beginning]


def _words(key: str) -> list[str]:
    # `"".split` would return one empty word, which `*` matches.
    return key.split(".") if key else []


def _split(words: list[str]) -> tuple[str, TopicPattern | None]:
    """Return the words before the first wildcard, and the pattern from there on; None without a
    wildcard.
    """
    first = next((index for index, word in enumerate(words) if word in (ONE_WORD, ANY_WORDS)), None)
    if first is None:
        return "", None
    return "".join([f"{word}." for word in words[:first]]), TopicPattern.of(words[first:])
