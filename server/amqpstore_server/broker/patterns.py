"""Patterns: the regular expressions that operators write for names and routing keys.

Clients choose the names. A backtracking engine can take minutes for a name of 30 characters, and
block the whole broker; RE2 takes time in proportion to the length of the name, whatever the
pattern.
"""

from __future__ import annotations

import logging
import re

import re2

_log = logging.getLogger(__name__)

LACKING = (
    "no look-ahead but one that is negative, without groups and at the start, no look-behind, "
    "back references, atomic groups or repetitions above 1000"
)
"""Features of RabbitMQ's expressions that RE2 does not support."""

_MAX_SHOWN = 200

_EXCLUSION = re.compile(r"((?:\(\?i\))?)\^\(\?!((?:[^()\[\]\\]|\\.)*)\)(.*)", re.DOTALL)
"""A negative look-ahead at the start, after flags: flags, what it excludes, and what follows."""


class PatternError(ValueError):
    """An expression is invalid, or not supported by RE2. The message says why."""


class Pattern:
    """An expression that is searched for anywhere in a name. Raises: PatternError.

    RE2 has no look-ahead. A negative one at the start of a name is translated, as RabbitMQ's own
    documents write `^(?!amq\\.).*` for all queues but the broker's: no name may begin with it.
    """

    def __init__(self, expression: str) -> None:
        self._excluded: list[Pattern] = []
        # An alternative to the whole would not be excluded.
        while (exclusion := _EXCLUSION.fullmatch(expression)) and "|" not in exclusion[3]:
            flags, excluded, rest = exclusion.groups()
            self._excluded.append(Pattern(f"{flags}^(?:{excluded})"))
            expression = f"{flags}^{rest}"
        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled = re2.compile(expression, options)
        except (re2.error, UnicodeError) as error:
            found = error.args[0] if error.args else error
            reason = found.decode(errors="replace") if isinstance(found, bytes) else str(error)
            shown = expression[:_MAX_SHOWN].encode(errors="replace").decode()
            raise PatternError(
                f"'{shown}' is not a regular expression of RE2's, which has {LACKING}: "
                f"{reason[:_MAX_SHOWN]}"
            ) from None

    def matches(self, name: str) -> bool:
        """Tell whether the expression is found in a name."""
        if any(one.matches(name) for one in self._excluded):
            return False
        return self._compiled.search(name) is not None


def pattern_of(expression: str, owner: str) -> Pattern | None:
    """Return the pattern of an expression that was accepted before; None, and a log event with its
    owner, if it is not valid now.
    """
    try:
        return Pattern(expression)
    except PatternError as error:
        _log.error("pattern matches nothing", extra={"of": owner, "reason": str(error)})
        return None


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
