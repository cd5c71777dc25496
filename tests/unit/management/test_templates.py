"""Templates of the pages, as texts."""

import re
from importlib.resources import files

ABSOLUTE = re.compile(r"""\b(?:href|src|action|hx-\w+|data-stream|data-select)=["']/""")


def test_no_link_forgets_that_a_proxy_may_serve_the_pages_below_a_path() -> None:
    pages = files("amqpstore_server.management.pages")
    templates = [*pages.joinpath("templates").iterdir()]
    assert len(templates) > 20
    for template in templates:
        assert not ABSOLUTE.findall(template.read_text()), template.name
    script = pages.joinpath("static", "app.js").read_text()
    assert not re.search(r"""["'`]/[a-z]""", re.sub(r"//.*", "", script))
