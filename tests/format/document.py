"""FORMAT.md as a test reads it: its tables by heading, and the bytes of its examples."""

import os
import re
from typing import NamedTuple

import amqpstore

PATH = os.path.join(os.path.dirname(amqpstore.__file__), "FORMAT.md")

_HEX_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2}) *\| .+")


class Row(NamedTuple):
    """One row of a table: its cells, and the line of the document that it is on (from 0)."""

    line: int
    cells: dict[str, str]


def text() -> str:
    """The document."""
    with open(PATH, encoding="utf-8") as file:
        return file.read()


def table(document: str, heading: str) -> list[Row]:
    """The rows of the first table under a heading. Fails where there is none."""
    lines = document.splitlines()
    starts = [at for at, line in enumerate(lines) if line.lstrip("#").strip() == heading]
    assert len(starts) == 1, f"{len(starts)} headings {heading!r}"
    at = starts[0] + 1
    while not lines[at].startswith("|"):
        assert not lines[at].startswith("#"), f"no table under {heading!r}"
        at += 1
    names = _cells(lines[at])
    rows = []
    for number in range(at + 2, len(lines)):
        if not lines[number].startswith("|"):
            break
        cells = _cells(lines[number])
        assert len(cells) == len(names), lines[number]
        rows.append(Row(number, dict(zip(names, cells, strict=True))))
    return rows


def code(cell: str) -> str:
    """Return the text in backticks at the start of a cell."""
    found = re.match(r"`([^`]+)`", cell)
    assert found, f"{cell!r} does not start with code"
    return found[1]


def examples(document: str) -> list[bytes]:
    """The bytes of the hex examples. Fails where the offsets in one are not those of its bytes."""
    return [_example(block) for block in re.findall(r"```hex\n(.*?)```", document, re.DOTALL)]


def _example(block: str) -> bytes:
    content = b""
    for line in block.splitlines():
        if line.strip() and not line.strip().startswith("record"):
            found = _HEX_LINE.fullmatch(line)
            assert found, line
            assert int(found[1], 16) == len(content), line
            content += bytes.fromhex(found[2])
    return content


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
