"""Templates of the pages, as texts."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

PAGES = files("amqpstore_server.management.pages")
ABSOLUTE = re.compile(r"""\b(?:href|src|action|hx-\w+|data-stream|data-select)=["']/""")

UNVALUED = re.compile(r"<option(?![^>]* value=)[^>]*>\{\{")
SAID = re.compile(r"""data-confirm="([^"]*)"|block title %\}(.*?)\{% endblock""")
UNMARKED = re.compile(
    r"\{\{(?! report\.time_ms \| moment | problem\.status )(?![^}]*\| marked \}\})[^}]*\}\}"
)

IN_TEXT = re.compile(r"<(/?[a-z]+[1-6]?)(?:[^<>{}]|\{\{[^}]*\}\})*>([^<]*\{\{[^<]*)")
NAMED = re.compile(
    r"\{\{ (?:[a-z_]+\.)*(?:name|vhost|queue|exchange|user|connection|policy|operator_policy|"
    r"consumer_tag|routing_key|destination|source|target)(?: or [^}|]*)? \}\}"
)
NAMING = ("a", "bdi", "code", "h1", "option")


def templates() -> list[Traversable]:
    found = [*PAGES.joinpath("templates").iterdir()]
    assert len(found) > 20
    return found


def test_an_option_that_is_a_name_sends_all_of_it() -> None:
    """A browser sends the text of an option without a value, but not the blanks around it."""
    for template in templates():
        assert not UNVALUED.findall(template.read_text()), template.name


def test_names_in_titles_and_questions_are_marked() -> None:
    said = ["".join(found) for one in templates() for found in SAID.findall(one.read_text())]
    assert sum("| marked" in text for text in said) > 10
    assert [text for text in said if UNMARKED.search(text)] == []


def test_no_link_forgets_that_a_proxy_may_serve_the_pages_below_a_path() -> None:
    for template in templates():
        assert not ABSOLUTE.findall(template.read_text()), template.name
    script = PAGES.joinpath("static", "app.js").read_text()
    assert not re.search(r"""["'`]/[a-z]""", re.sub(r"//.*", "", script))


def test_names_in_the_text_of_pages_are_elements_of_their_own() -> None:
    """Elements mark the blanks at the ends of their names, and end their directions of letters."""
    names = 0
    for template in templates():
        page = re.sub(r"\{%.*?%\}", "", template.read_text())
        for element, text in IN_TEXT.findall(page):
            assert not NAMED.search(text) or element in NAMING, (template.name, element, text)
            names += element in NAMING
    assert names > 50
