"""JSON on stdout: one object, whose lists may be longer than memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def write_json(facts: Mapping[str, Any]) -> None:
    """Write an object. Iterators in it are written as lists, item by item."""
    out = sys.stdout
    separator = "{\n"
    for key, value in facts.items():
        out.write(f"{separator} {json.dumps(key)}: ")
        if isinstance(value, Iterator):
            before = "[\n  "
            for item in value:
                out.write(f"{before}{json.dumps(item)}")
                before = ",\n  "
            out.write("[]" if before.startswith("[") else "\n ]")
        else:
            out.write(json.dumps(value, indent=1).replace("\n", "\n "))
        separator = ",\n"
    out.write("\n}\n" if facts else "{}\n")


def write_line(facts: Mapping[str, Any]) -> None:
    """Write an object in one line, at once."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
