"""Patterns: the regular expressions that operators write for names and routing keys.

Clients choose the names. A backtracking engine can take minutes for a name of 30 characters, and
block the whole broker; RE2 takes time in proportion to the length of the name, whatever the
pattern.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

import re2

_log = logging.getLogger(__name__)

LACKING = (
    "no look-ahead but one that is negative, without groups and at the start, no look-behind, "
    "back references, atomic groups or repetitions above 1000"
)
"""Features of RabbitMQ's expressions that RE2 does not support."""

_MAX_SHOWN = 200


class PatternLimit(NamedTuple):
    """Limits of an expression: its `weight`, and the size that RE2 may make it, in bytes and in
    instructions: each of these may be looked at for each byte that is searched.
    """

    weight: int
    memory: int
    program: int


MAX_KEPT, MAX_ASKED = 64 << 10, 8 << 10

KEPT = PatternLimit(MAX_KEPT, 1 << 20, 1 << 20)
"""For expressions that are kept: those of permissions and policies."""

ASKED = PatternLimit(MAX_ASKED, 1 << 20, 2000)
"""For expressions in requests, which are matched with very many names, or with bodies."""

_ACCEPTED = PatternLimit(1 << 62, 8 << 20, 1 << 62)
"""For expressions that an earlier version accepted, and that a store still has. With that version
`a{0,999}`, written 100 times, took 11 s.
"""

_QUANTIFIER, _REPEATED, _ANY, _UNICODE = 64, 16, 16, 640
"""Weights of what weighs more than its bytes: each of `*+?`, each of the repetitions in `{n,m}`,
each `.` or `[^`, and each class of Unicode's. By this a long list of names is light; the heaviest
expressions that are kept take some 20 ms to compile, and those of requests 5 ms.
"""

_ESCAPED = re.compile(r"\\[^pPC]")
_COUNTED = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")

_EXCLUSION = re.compile(r"((?:\(\?i\))?)\^\(\?!((?:[^()\[\]\\]|\\.)*)\)(.*)", re.DOTALL)
"""A negative look-ahead at the start, after flags: flags, what it excludes, and what follows."""


class PatternError(ValueError):
    """An expression is invalid, or not supported by RE2. The message says why."""


class Pattern:
    """An expression that is searched for anywhere in a name. Raises: PatternError.

    RE2 has no look-ahead. A negative one at the start of a name is translated, as RabbitMQ's own
    documents write `^(?!amq\\.).*` for all queues but the broker's: no name may begin with it.
    """

    def __init__(self, expression: str, limit: PatternLimit = KEPT) -> None:
        if (weighs := weight(expression)) > limit.weight:
            raise _too_large(weighs, limit.weight)
        self._excluded: list[Pattern] = []
        # An alternative to the whole would not be excluded.
        while (exclusion := _EXCLUSION.fullmatch(expression)) and "|" not in exclusion[3]:
            flags, excluded, rest = exclusion.groups()
            self._excluded.append(Pattern(f"{flags}^(?:{excluded})", limit))
            expression = f"{flags}^{rest}"
        options = re2.Options()
        # RE2 would write to standard error, past the log.
        options.log_errors = False
        options.max_mem = limit.memory
        try:
            self._compiled = re2.compile(expression, options)
        except (re2.error, UnicodeError) as error:
            message = error.args[0] if error.args else error
            reason = message.decode(errors="replace") if isinstance(message, bytes) else str(error)
            shown = expression[:_MAX_SHOWN].encode(errors="replace").decode()
            raise PatternError(
                f"'{shown}' is not a regular expression of RE2's, which has {LACKING}: "
                f"{reason[:_MAX_SHOWN]}"
            ) from None
        if (size := self._compiled.programsize) > limit.program:
            raise _too_large(size, limit.program)

    def matches(self, name: str) -> bool:
        """Tell whether the expression is found in a name."""
        if any(one.matches(name) for one in self._excluded):
            return False
        return self._compiled.search(name) is not None


def weight(expression: str) -> int:
    """Return how much an expression weighs: what it may take to compile it, and to search for it,
    counted in bytes of text that is searched for as it is.
    """
    bare = _ESCAPED.sub("_", expression)
    counted = [max(map(int, filter(None, found))) for found in _COUNTED.findall(bare)]
    return (
        len(expression.encode(errors="replace"))
        + _QUANTIFIER * sum(map(bare.count, "*+?"))
        + _REPEATED * sum(counted)
        + _ANY * (bare.count(".") + bare.count("[^"))
        + _UNICODE * sum(map(bare.count, ("\\p", "\\P", "\\C")))
    )


def _too_large(size: int, most: int) -> PatternError:
    return PatternError(
        f"the expression is too long, or repeats too much: its weight is {size}, of {most} at most"
    )


def pattern_of(expression: str, owner: str) -> Pattern | None:
    """Return the pattern of an expression that was accepted before; None, and a log event with its
    owner, if it is not valid now.
    """
    try:
        return Pattern(expression, _ACCEPTED)
    except PatternError as error:
        _log.error("pattern matches nothing", extra={"of": owner, "reason": str(error)})
        return None


# A character that may be missing, as what follows it says, is not part of the text.
_LITERAL = re.compile(r"\^((?:[A-Za-z0-9_:/@-]|\\[.+*?$^()\[\]{}|/-])*)(?![*?{])")


def prefix_of(expression: str) -> str:
    """Return the text with which every name begins that an expression is found in; empty if it may
    be found in others.
    """
    found = None if "|" in expression else _LITERAL.match(expression)
    return found.group(1).replace("\\", "") if found else ""


def literal(text: str) -> str:
    """Return an expression that matches a text literally."""
    return str(re2.escape(text))
