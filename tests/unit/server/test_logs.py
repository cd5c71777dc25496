"""Log lines: one event each, whatever names and clients say."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore_server import logs
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.logs import LogfmtFormatter

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
    logs.set_up("info", "text")
    yield root
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture
def json_root(root: logging.Logger) -> logging.Logger:
    """The root logger, as the broker sets it up for JSON."""
    logs.set_up("info", "json")
    return root


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


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        (1e9 + 0.25, "2001-09-09T01:46:40.250000Z"),
        (1e9 + 0.5, "2001-09-09T01:46:40.500000Z"),
        (1e9 + 1, "2001-09-09T01:46:41.000000Z"),
    ],
)
def test_a_line_has_the_time_of_its_record(created: float, expected: str) -> None:
    record = logging.makeLogRecord({"created": created, "msg": "done", "levelname": "INFO"})
    assert LogfmtFormatter().format(record) == f"timestamp={expected} level=info event=done"


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


@pytest.mark.parametrize("character", HARMFUL, ids=lambda one: f"{ord(one):04x}")
def test_json_is_one_line_of_ascii(json_root: logging.Logger, character: str) -> None:
    name = f"a{character}b"
    line = line_of(json_root, f"refused{character}", user=name)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert found["user"] == name
    assert found["event"] == f"refused{character}"
    assert list(found) == ["timestamp", "level", "event", "user"]


def test_json_keeps_values_and_the_traceback(json_root: logging.Logger) -> None:
    values: dict[str, Any] = {"none": None, "yes": True, "count": 3, "list": [1, "2"], "set": {1}}
    try:
        int("a\nb")
    except ValueError:
        found = json.loads(line_of(json_root, "it failed", exc_info=sys.exc_info(), **values))
    assert found["exception"].startswith("Traceback")
    assert {name: found[name] for name in values} == {**values, "set": "{1}"}


def test_lines_about_a_client_say_whom_they_are_about(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up("info", "text")
    first, second = ClientLog("1.2.3.4:5"), ClientLog("1.2.3.4:5")
    first.fields["user"] = "anna\nevent=forged"
    first.warning("closed", extra={"channel": 3})
    second.info("accepted")
    lines = [line.split("event=", 1)[1] for line in capsys.readouterr().err.splitlines()]
    number = first.fields["connection"]
    user = r'"anna\nevent=forged"'
    assert lines == [
        f"closed connection={number} peer=1.2.3.4:5 user={user} channel=3",
        f"accepted connection={number + 1} peer=1.2.3.4:5",
    ]
