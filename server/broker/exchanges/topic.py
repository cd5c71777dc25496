"""The topic exchange: words of the routing key against a pattern (AMQP 3.1.3.3).

Words are what stands between dots. In a binding key the word `*` stands for exactly one word and
`#` for zero or more. An empty word counts, so "a..b" has three; the empty key has none.

The patterns share a trie, and a key is matched one word at a time against the set of all nodes
that the words before it lead to. A node is in that set once, however many ways lead there, so the
work is bounded by words x nodes, whatever the wildcards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from server.broker.exchanges.base import Binding, Exchange
from server.protocol.content import BasicProperties

if TYPE_CHECKING:
    from server.broker.queue import Queue

_ONE_WORD = "*"
_ANY_WORDS = "#"


class TopicExchange(Exchange):
    """Routing key matches the binding key's pattern."""

    type = "topic"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._root = _Node(keeps_words=False)

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Queue | Exchange]:  # noqa: ARG002
        # Dictionaries for their order: a set's would differ from run to run.
        reached = {self._root: None}
        _add_empty_matches(reached)
        for word in _words(routing_key):
            following: dict[_Node, None] = {}
            for node in reached:
                if node.keeps_words:
                    following[node] = None
                for step in (word, _ONE_WORD):
                    if child := node.children.get(step):
                        following[child] = None
            _add_empty_matches(following)
            reached = following
        return [destination for node in reached for destination in node.destinations]

    def _add(self, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.routing_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(keeps_words=word == _ANY_WORDS)
            node = child
        node.destinations.append(binding.destination)

    def _remove(self, binding: Binding) -> None:
        node = self._root
        path = []
        for word in _words(binding.routing_key):
            path.append((node, word))
            node = node.children[word]
        node.destinations.remove(binding.destination)
        for parent, word in reversed(path):
            if node.destinations or node.children:
                return
            del parent.children[word]
            node = parent


class _Node:
    """What a binding key's first words lead to. `keeps_words` where the last of them is `#`."""

    __slots__ = ("children", "destinations", "keeps_words")

    def __init__(self, *, keeps_words: bool) -> None:
        self.keeps_words = keeps_words
        self.children: dict[str, _Node] = {}
        self.destinations: list[Queue | Exchange] = []


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _add_empty_matches(nodes: dict[_Node, None]) -> None:
    """Add the nodes that a `#` for zero words leads to from these, and from those in turn."""
    found = list(nodes)
    while found:
        child = found.pop().children.get(_ANY_WORDS)
        if child and child not in nodes:
            nodes[child] = None
            found.append(child)
