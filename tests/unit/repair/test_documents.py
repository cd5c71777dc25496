"""FINDINGS.md says what a repair does, as the code has it."""

import re
from pathlib import Path

from amqpstore_tools.check.findings import CODES, Severity
from amqpstore_tools.repair.fixes import FIXES

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `([a-z-]+)` \| ([^|]+)\. \|$", re.MULTILINE)


def test_the_document_says_what_is_done_about_each_finding() -> None:
    text = (
        (ROOT / "tools/amqpstore_tools/check/FINDINGS.md")
        .read_text("utf-8")
        .partition("## What `amqpstore rep")
    )
    said = {code: does[0].lower() + does[1:] for code, does in ROW.findall(text[2])}
    assert said == {code: does[0].lower() + does[1:] for code, does in FIXES.items()}


def test_something_is_done_about_every_error_and_warning() -> None:
    wrong = {code for code, severity in CODES.items() if severity is not Severity.NOTE}
    assert wrong <= FIXES.keys() <= CODES.keys()
