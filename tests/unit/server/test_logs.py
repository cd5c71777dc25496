"""Log lines: one event each, whatever names and clients say."""

import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore_server import logs

HARMFUL = "".join(
    [
        *map(chr, (*range(32), 0x7F, *range(0x80, 0xA0))),  # NEL and all other C0 and C1 controls
        *("\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\u200e", "\u061c", "\ufeff"),
        *("\xad", "\xa0", "\U000e0001"),
    ]
)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as the broker sets it up."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    logs.set_up("info")
    yield root
    root.handlers = handlers
    root.setLevel(level)


def line_of(root: logging.Logger, text: str, *, exc_info: Any = None, **extra: str) -> str:
    record = root.makeRecord(
        "amqpstore_server", logging.INFO, "", 0, text, (), exc_info, extra=extra
    )
    return root.handlers[0].format(record)


@pytest.mark.parametrize("character", HARMFUL, ids=lambda one: f"{ord(one):04x}")
def test_a_character_that_does_not_print_is_an_escape(root: logging.Logger, character: str) -> None:
    line = line_of(root, f"refused{character}", user=f"a{character}b", reason=f"a {character} b")
    assert line.isprintable()
    assert re.search(r"user=\"?a\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])b", line)


def test_what_prints_stays_as_it_is(root: logging.Logger) -> None:
    assert 'event=naïve queue="größe 東京"' in line_of(root, "naïve", queue="größe 東京")


def test_a_value_is_quoted_where_it_would_be_read_as_several(root: logging.Logger) -> None:
    line = line_of(root, "done", a="x=y", b='say "no"', c="back\\slash", d="back \\ slash", e="")
    assert line.endswith(
        r'level=info event=done a="x=y" b="say \"no\"" c=back\slash d="back \\ slash" e='
    )


def test_values_that_are_no_text(root: logging.Logger) -> None:
    values: dict[str, Any] = {"none": None, "yes": True, "no": False, "count": 3, "list": [1, 2]}
    line = line_of(root, "done", **values)
    assert line.endswith('event=done none= yes=true no=false count=3 list="[1, 2]"')


def test_a_traceback_is_one_line(root: logging.Logger) -> None:
    try:
        int("a\x1b[2J\nb")
    except ValueError:
        line = line_of(root, "it failed", exc_info=sys.exc_info())
    assert line.isprintable()
    assert "Traceback" in line
