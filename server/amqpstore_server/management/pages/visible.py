"""Invisible characters are written out, so that no name looks like another one.

A name may turn around what follows it (U+202E), contain characters without a width, or begin or
end with a blank. The text of a page, whatever it shows, has a mark in the place of each; what forms
send and where links lead is left as it is. Names in a title or in a question are marked by the
template, and those in a sentence by `sentence`.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\xad"
    "\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)
"""Controls, marks of direction, blanks other than U+0020, and what has no width."""

_TEXT = re.compile(r"<(?P<tag>/?[a-zA-Z][a-zA-Z0-9]*)(?P<rest>[^>]*)>(?P<text>[^<]+)")
_SENT = frozenset({"textarea", "option", "script", "style"})
"""Elements whose text is not for people alone."""

_NAMING = frozenset({"a", "bdi", "code", "h1"})
"""Elements in which templates put a name, and no blank of their own around it."""

_BLANKS = re.compile("^[ \t\r\n]+|[ \t\r\n]+$|[\t\r\n]+| {2,}")
_QUOTED = re.compile(r"(?<!\w)'(.+?)'(?!\w)", re.DOTALL)
"""A name in a sentence of the broker. An apostrophe in a word begins none."""

_BLANK_MARK = "\N{OPEN BOX}"


def with_marks(page: str) -> str:
    """Return a page whose text has marks for invisible characters."""
    return _TEXT.sub(_marked, page)


def marked_name(name: str) -> str:
    """Return a name with marks, also for the blanks that a browser would leave out."""
    return _BLANKS.sub(_blank_marks, _HIDDEN.sub(_mark, name))


def sentence(text: object) -> Markup:
    """Return a sentence, in which each name between quotes is an element of its own: so its blanks
    are marked, and the direction of its letters does not turn around the rest.
    """
    parts = _QUOTED.split(str(text))
    return Markup().join(
        Markup("'<bdi>{}</bdi>'").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _marked(element: re.Match[str]) -> str:
    tag, text = element["tag"].lower(), element["text"]
    # What an option sends is its value, and its text only if it has none.
    is_shown_option = tag == "option" and " value=" in element["rest"]
    if tag in _SENT and not is_shown_option:
        return element[0]
    is_name = is_shown_option or tag in _NAMING
    marked = marked_name(text) if is_name else _HIDDEN.sub(_mark, text)
    return element[0] if marked == text else f"<{element['tag']}{element['rest']}>{marked}"


def _mark(character: re.Match[str]) -> str:
    return f"[U+{ord(character[0]):04X}]"


def _blank_marks(blanks: re.Match[str]) -> str:
    return "".join(_BLANK_MARK if one == " " else f"[U+{ord(one):04X}]" for one in blanks[0])
