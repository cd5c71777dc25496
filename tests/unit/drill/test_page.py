"""The report's page loads nothing and executes nothing, whatever names are in it."""

import json
import re
from html.parser import HTMLParser

from amqpstore_tools.drill.page import page
from amqpstore_tools.drill.report import as_json
from amqpstore_tools.drill.verdict import Account, DrillFinding, Step

EVIL = "<script>alert('\"&')</script>"


def account() -> Account:
    found = Account("kill", EVIL)
    found.checked(["I1"], 3)
    found.findings.append(DrillFinding("I1", EVIL, EVIL, f"amqpstore drill --seed {EVIL}"))
    found.timeline = [
        Step(1, number, EVIL, 3, 2, 4, is_violated=number == 2) for number in range(3)
    ]
    return found


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "polyline", "polygon"):
            assert self.open.pop() == tag


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    text = page([account()])
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "object"}
    assert not tags.attributes & {"src", "href", "onload", "onerror"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;script&gt;" in text


def test_a_violated_step_is_marked_in_chart_and_table() -> None:
    text = page([account()])
    assert text.count("<circle") == 1
    assert text.count('<span class="violated">&lt;script') == 1


def test_a_page_about_nothing_is_a_page() -> None:
    assert "no violations" in page([Account("kill", "1")])


def test_the_json_has_every_verdict_finding_and_step() -> None:
    plain = json.loads(as_json([account()]))
    assert plain["violated"] is True
    (scenario,) = plain["scenarios"]
    assert scenario["verdicts"]["I1"] == "violated"
    assert scenario["verdicts"]["I2"] == "not exercised"
    assert scenario["checks"] == {"I1": 3}
    assert scenario["findings"][0]["text"] == EVIL
    assert [step["number"] for step in scenario["timeline"]] == [0, 1, 2]


def test_what_is_counted_at_steps_is_drawn_as_steps() -> None:
    text = page([account()])
    lines = re.findall(r'<polyline class="(?:least|promised)" points="([^"]+)"', text)
    assert len(lines) == 2
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert len(points) == 2 * len(account().timeline)
        pairs = list(zip(points[::2], points[1::2], strict=True))
        assert all(left[1] == right[1] and left[0] < right[0] for left, right in pairs)


def test_a_scenario_that_was_left_out_says_why() -> None:
    left_out = Account("power-cut", "1", left_out="too <large>")
    assert "Left out: too &lt;large&gt;" in page([left_out])
    assert json.loads(as_json([left_out]))["scenarios"][0]["left_out"] == "too <large>"
