"""The pages behind a proxy that ends TLS, or serves them below a path: nginx and Chromium."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import requests
from playwright.sync_api import Browser, expect

from amqpstore_server.management.pages.reading import PAGES
from amqpstore_server.management.pages.sessions import COOKIE
from tests.broker_process import BrokerProcess
from tests.interop.browsers import chromium, heard, log_in_here
from tests.interop.nginx import Nginx
from tests.interop.tls_files import TlsFiles
from tests.management_client import ManagementClient, managed, management_url

PREFIX = "/rabbit"
NAME = "a/b c"
PAGE = "/overview/alarms"
"""A path that a page asks for, and that is not a page by itself."""
LINKS = """
() => [...document.querySelectorAll("[href],[src],[action],[hx-get],[data-stream],[data-select]")]
    .flatMap((element) => ["href", "src", "action", "hx-get", "data-stream", "data-select"]
    .map((name) => element.getAttribute(name)).filter((value) => value !== null))
"""


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(str(tmp_path_factory.mktemp("tls") / "files"))


def started(stack: ExitStack, directory: Path, **settings: str) -> BrokerProcess:
    """Start a broker with a queue whose name needs a proxy that leaves paths as they are."""
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    broker.environment |= {f"AMQPSTORE_{name.upper()}": text for name, text in settings.items()}
    stack.enter_context(broker)
    broker.start()
    with ManagementClient(management_url(broker)) as api:
        api.put(f"/queues/%2F/{quote(NAME, safe='')}")
    return broker


def kept(url: str) -> str:
    """Serve below a path, which the broker has to know, with Host as it came."""
    return f"""
        location {PREFIX}/ {{
            proxy_pass {url};
            proxy_set_header Host $http_host;
        }}"""


def stripped(url: str) -> str:
    """Take the path away and say so, with nginx's own Host."""
    return f"""
        location {PREFIX}/ {{
            rewrite ^ $request_uri;
            rewrite ^{PREFIX}(/.*)$ $1 break;
            proxy_pass {url}$uri;
            proxy_set_header X-Forwarded-Prefix {PREFIX};
        }}"""


@pytest.mark.parametrize("way", [kept, stripped])
def test_the_pages_work_behind_a_proxy_with_tls_and_a_path(
    browser: Browser, files: TlsFiles, tmp_path: Path, way: Callable[[str], str]
) -> None:
    settings = {"management_path_prefix": PREFIX} if way is kept else {}
    with ExitStack() as stack:
        broker = started(stack, tmp_path, **settings)
        locations = way(management_url(broker))
        nginx = stack.enter_context(Nginx(tmp_path / "nginx", files, locations))
        context = stack.enter_context(browser.new_context(ignore_https_errors=True))
        page = context.new_page()
        complaints = heard(page)
        site = f"{nginx.url}{PREFIX}"
        page.goto(f"{site}/queues")
        assert urlsplit(page.url).path == f"{PREFIX}/login"
        log_in_here(page)
        assert page.url == f"{site}/queues", page.inner_text("body")
        cookie = next(one for one in context.cookies() if one.get("name") == COOKIE)
        assert (cookie.get("secure"), cookie.get("path")) == (True, PREFIX)

        # By links alone, as a person goes: to a queue, and on to a change of it.
        page.click(f"tbody a:has-text('{NAME}')")
        page.wait_for_url(f"{site}/queues/%2F/{quote(NAME, safe='')}")
        page.click("text=Publish a message to this queue")
        page.fill("[name=payload]", "by a proxy")
        page.click("button:has-text('Publish')")
        page.wait_for_selector(".notice.good")
        assert page.url == f"{site}/queues/%2F/{quote(NAME, safe='')}"
        # The stream tells of it, through nginx, within its first parts.
        expect(page.locator('[data-figure="messages_ready"]').first).to_have_text("1")
        page.click("text=Browse messages")
        page.wait_for_selector("td:has-text('by a proxy')")

        whole = [one.path for one in PAGES if "{" not in one.path and one.path != PAGE]
        for path in whole:
            answer = page.goto(f"{site}{path}")
            assert answer is not None
            assert answer.status == 200, path
            for link in page.evaluate(LINKS):
                is_below = link.startswith((f"{PREFIX}/", "?", "#"))
                assert is_below, f"{path} has a link to {link}"
        page.goto(f"{site}/")
        page.click("text=Log out")
        page.wait_for_selector("[name=password]")
        assert urlsplit(page.url).path == f"{PREFIX}/login"
        assert not context.cookies()
        assert complaints == []
        assert " [error] " not in nginx.log


def test_a_login_behind_a_proxy_without_tls_or_a_path(
    browser: Browser, files: TlsFiles, tmp_path: Path
) -> None:
    """Chromium sends no Sec-Fetch-Site without TLS, except to localhost."""
    with ExitStack() as stack:
        broker = started(stack, tmp_path)
        locations = f"location / {{ proxy_pass {management_url(broker)}; }}"
        nginx = stack.enter_context(Nginx(tmp_path / "nginx", files, locations, has_tls=False))
        page = stack.enter_context(browser.new_context()).new_page()
        page.goto(f"{nginx.url}/login")
        log_in_here(page)
        assert page.url == f"{nginx.url}/"
        form = {"user": "guest", "password": "guest"}
        for origin, status in ((nginx.url, 403), ("", 303)):
            headers = {"origin": origin} if origin else {}
            answer = requests.post(
                f"{nginx.url}/login", form, headers=headers, allow_redirects=False, timeout=60
            )
            assert answer.status_code == status, answer.text
