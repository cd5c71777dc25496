"""Many topic patterns matched at once, one word at a time, by arithmetic on bits.

A pattern is a sequence of items, each a word or `*`, which stands for any one word. It has a state
for each number of its items that the words so far may have matched; a state that is followed by a
`#` remains set whatever word comes. Each state is a bit. So one step of all patterns, with all
their states, is: move every state to the next if the item between them accepts the word, and keep
those that remain (the Shift-And algorithm of Baeza-Yates and Gonnet). However the wildcards are
mixed, a key costs its words x the bits, at many bits a nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from amqpstore_server.broker.exchanges.base import Destination, Destinations

ONE_WORD = "*"
ANY_WORDS = "#"

_BLOCK_BITS = 4096
"""The states that are stepped together. Each word has a bit set of this size in each block; larger
blocks cost less per state.
"""


class TopicPattern(NamedTuple):
    """The items of a pattern. `stays` has the states, by the number of items before them, that a
    `#` follows.

    Patterns that match the same words are equal, however often a `#` is repeated and on whichever
    side of a `*` it stands.
    """

    items: tuple[str, ...]
    stays: frozenset[int]

    @classmethod
    def of(cls, words: Sequence[str]) -> TopicPattern:
        """Return the pattern of a binding key's words."""
        items: list[str] = []
        stays = set()
        is_open = False  # whether there was a `#` among the wildcards at the end so far
        for word in words:
            if word == ANY_WORDS:
                is_open = True
                continue
            if word != ONE_WORD:
                if is_open:
                    stays.add(len(items))
                is_open = False
            items.append(word)
        if is_open:
            stays.add(len(items))
        return cls(tuple(items), frozenset(stays))


class Patterns:
    """Patterns, and the destinations that each leads to."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._block_of: dict[TopicPattern, _Block] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, pattern: TopicPattern, destination: Destination) -> None:
        """Add a binding's pattern."""
        block = self._block_of.get(pattern)
        if block is None:
            block = self._blocks[-1] if self._blocks else None
            if block is None or not block.has_room(pattern):
                block = _Block()
                self._blocks.append(block)
            block.add(pattern, Destinations())
            self._block_of[pattern] = block
        block.destinations[pattern].add(destination)

    def remove(self, pattern: TopicPattern, destination: Destination) -> None:
        """Remove a binding's pattern that was added."""
        block = self._block_of[pattern]
        destinations = block.destinations[pattern]
        destinations.remove(destination)
        if not destinations:
            del self._block_of[pattern]
            block.remove(pattern)
            if not block.destinations:
                self._blocks.remove(block)

    def match(self, words: Sequence[str]) -> Iterator[Destination]:
        """Yield the destinations of the patterns that match these words."""
        for block in self._blocks:
            yield from block.match(words)


class _Block:
    """Some of the patterns. Removed patterns keep their bits until they are half of the block."""

    def __init__(self) -> None:
        self.destinations: dict[TopicPattern, Destinations] = {}
        self._clear()

    def _clear(self) -> None:
        self._bit_count = self._live_bits = 0
        self._first: dict[TopicPattern, int] = {}
        self._last: dict[int, TopicPattern] = {}
        # Sets of states as bits: the starts and ends of patterns, the states that stay, and those
        # that can be reached by any word, or by one.
        self._begins = self._ends = self._stay = self._any = 0
        self._by_word: dict[str, int] = {}

    def has_room(self, pattern: TopicPattern) -> bool:
        return self._bit_count + len(pattern.items) < _BLOCK_BITS

    def add(self, pattern: TopicPattern, destinations: Destinations) -> None:
        first = self._bit_count
        last = first + len(pattern.items)
        self._bit_count = last + 1
        self._live_bits += last + 1 - first
        self.destinations[pattern] = destinations
        self._first[pattern] = first
        self._last[last] = pattern
        self._begins |= 1 << first
        self._ends |= 1 << last
        self._stay |= _bits(first + state for state in pattern.stays)
        by_word: dict[str, list[int]] = {}
        for state, item in enumerate(pattern.items, first + 1):
            by_word.setdefault(item, []).append(state)
        self._any |= _bits(by_word.pop(ONE_WORD, ()))
        for word, states in by_word.items():
            self._by_word[word] = self._by_word.get(word, 0) | _bits(states)

    def remove(self, pattern: TopicPattern) -> None:
        del self.destinations[pattern]
        first = self._first.pop(pattern)
        last = first + len(pattern.items)
        del self._last[last]
        # A pattern that never starts is never reached.
        self._begins &= ~(1 << first)
        self._ends &= ~(1 << last)
        self._live_bits -= last + 1 - first
        if self._live_bits * 2 < self._bit_count:
            left = list(self.destinations.items())
            self._clear()
            for kept, destinations in left:
                self.add(kept, destinations)

    def match(self, words: Sequence[str]) -> Iterator[Destination]:
        states, stay, any_word, by_word = self._begins, self._stay, self._any, self._by_word
        for word in words:
            moved = states << 1
            states = (moved & any_word) | (states & stay)
            if its_states := by_word.get(word):
                states |= moved & its_states
            if not states:
                return
        reached = states & self._ends
        while reached:
            last = reached.bit_length() - 1
            yield from self.destinations[self._last[last]]
            reached ^= 1 << last


def _bits(indexes: Iterable[int]) -> int:
    number = 0
    for index in indexes:
        number |= 1 << index
    return number
