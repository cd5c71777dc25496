"""Patterns: the regular expressions that operators write for names and routing keys.

Clients choose the names. An engine that backtracks can take minutes for a name of 30 characters,
and the whole broker with it; RE2 takes time in proportion to the name, whatever the pattern.
"""

from __future__ import annotations

import logging

import re2

_log = logging.getLogger(__name__)

LACKING = "no look-ahead, look-behind, back references, atomic groups or repetitions above 1000"
"""What RE2 does not have of what RabbitMQ's expressions may have."""

_MAX_SHOWN = 200


class PatternError(ValueError):
    """An expression that is not one, or not one of RE2's. The message says what is the matter."""


class Pattern:
    """An expression that is searched for anywhere in a name. Raises: PatternError."""

    def __init__(self, expression: str) -> None:
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
        """Whether it is found in a name."""
        return self._compiled.search(name) is not None


def pattern_of(expression: str, owner: str) -> Pattern | None:
    """A pattern that was taken before; None, and logged with its owner, where it is none now."""
    try:
        return Pattern(expression)
    except PatternError as error:
        _log.error("pattern matches nothing", extra={"of": owner, "reason": str(error)})
        return None


def literal(text: str) -> str:
    """An expression for a text as it is."""
    return str(re2.escape(text))
