"""FINDINGS.md and the code say the same; what findings are as JSON."""

import re
from pathlib import Path

import pytest

from amqpstore_tools.check.findings import CODES, Findings, Severity

DIRECTORY = Path(__file__).parents[3] / "tools" / "amqpstore_tools" / "check"
ROW = re.compile(r"^\| `([a-z-]+)` \| (\w+) \| .+\.? \|$", re.MULTILINE)


def test_the_document_lists_every_code_with_its_severity_in_order() -> None:
    text = (DIRECTORY / "FINDINGS.md").read_text("utf-8")
    assert ROW.findall(text) == [(code, str(severity)) for code, severity in CODES.items()]


def test_every_code_is_used() -> None:
    source = "".join(
        path.read_text("utf-8") for path in DIRECTORY.glob("*.py") if path.name != "findings.py"
    )
    assert [code for code in CODES if f'"{code}"' not in source] == []


def test_a_finding_says_what_is_known_of_it() -> None:
    findings = Findings()
    findings.names[3] = "/orders"
    findings.add("message-lost", "a", "gone", 0, queue_id=3, message_id=5, sequence=2, messages=1)
    findings.add("file-unknown", "b", "no name of ours")
    lost, unknown = findings
    assert lost.as_json() == {
        "code": "message-lost",
        "severity": "error",
        "file": "a",
        "text": "gone",
        "offset": 0,
        "queue_id": 3,
        "queue": "/orders",
        "message_id": 5,
        "sequence": 2,
        "messages": 1,
    }
    assert unknown.as_json() == {
        "code": "file-unknown",
        "severity": "warning",
        "file": "b",
        "text": "no name of ours",
    }
    assert findings.of(Severity.ERROR) == [lost]


def test_a_code_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError):
        Findings().add("no-such-code", "a", "b")
