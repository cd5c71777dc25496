"""The web pages, in a real browser on a real broker with traffic.

Past 600 lines because all of them share that browser and that broker.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    ViewportSize,
    expect,
)

from amqpstore_server.management.pages.columns import LISTS
from amqpstore_server.management.pages.reading import PAGES
from amqpstore_server.management.pages.sessions import COOKIE
from amqpstore_tools.drill import report as drill_report
from amqpstore_tools.drill.verdict import Account, DrillFinding, Step
from tests.broker_process import BrokerProcess
from tests.interop.browsers import chromium, heard, log_in, log_in_here
from tests.interop.external_client import missing
from tests.management_client import (
    PASSWORD,
    ManagementClient,
    keep_management_port,
    managed,
    management_url,
)

AXE = Path(__file__).parent / "nodejs" / "node_modules" / "axe-core" / "axe.min.js"
WIDE, NARROW, HUGE = (
    ViewportSize(width=1280, height=900),
    ViewportSize(width=380, height=800),
    ViewportSize(width=3840, height=2160),
)
ZONE = "Asia/Kolkata"
HOSTILE = "<img src=x onerror=alert(1)>\"'/%2F&amp;"
QUOTED = quote(HOSTILE, safe="")
GET = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
RIGHTS = ("configure", "write", "read")
CHART_WIDTH = "document.querySelector('.chart').clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of the pages of a broker with queues, messages, hostile names and traffic."""
    directory = tmp_path_factory.mktemp("pages")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        account = Account(HOSTILE, "7", Counter(kills=2), Counter(I1=5), seconds=1.5)
        account.findings.append(DrillFinding("I1", HOSTILE, HOSTILE, HOSTILE))
        account.timeline.append(Step(1, 1, HOSTILE, 5, 4, 5, is_violated=True))
        drill_report.write([account], broker.data_directory)
        with ManagementClient(management_url(broker)) as api:
            define_hostile_names(api)
        client = pika.URLParameters(broker.url)
        client.credentials = pika.PlainCredentials(HOSTILE, "password")
        client.client_properties = dict.fromkeys(("connection_name", "product", HOSTILE), HOSTILE)
        stop = threading.Event()
        ready = threading.Event()
        traffic = threading.Thread(target=publish_and_consume, args=(client, ready, stop))
        traffic.start()
        try:
            assert ready.wait(60)
            yield management_url(broker)
        finally:
            stop.set()
            traffic.join()


def define_hostile_names(api: ManagementClient) -> None:
    """Give everything that has a name, or a text of an operator, one that would be code."""
    everything, hostile = (dict.fromkeys(RIGHTS, one) for one in (".*", HOSTILE))
    api.put(f"/vhosts/{QUOTED}", {"description": HOSTILE, "tags": [HOSTILE]})
    api.put(f"/users/{QUOTED}", {**PASSWORD, "tags": HOSTILE})
    api.put(f"/permissions/%2F/{QUOTED}", everything)
    api.put(f"/permissions/{QUOTED}/{QUOTED}", hostile)
    api.put(f"/topic-permissions/{QUOTED}/{QUOTED}", {**hostile, "exchange": HOSTILE})
    for kind, definition in (
        ("policies", {"dead-letter-exchange": HOSTILE}),
        ("operator-policies", {"message-ttl": 10**9}),
    ):
        policy = {"pattern": HOSTILE, "definition": definition}
        api.put(f"/{kind}/%2F/{QUOTED}", policy)
        api.put(f"/{kind}/%2F/effective", {**policy, "pattern": "^<img", "apply-to": "queues"})


def publish_and_consume(
    client: pika.URLParameters, ready: threading.Event, stop: threading.Event
) -> None:
    """Declare what the pages show, then publish and consume until told to stop."""
    with pika.BlockingConnection(client) as connection:
        channel = connection.channel()
        for name in ("orders", "moved", "purged", HOSTILE):
            channel.queue_declare(name, durable=True)
        channel.exchange_declare("events", "topic", durable=True)
        channel.exchange_declare(HOSTILE, "fanout", durable=True)
        channel.queue_bind("orders", "events", "eu.#")
        channel.queue_bind(HOSTILE, HOSTILE, HOSTILE, arguments={HOSTILE: HOSTILE})
        properties = pika.BasicProperties(delivery_mode=2, headers={HOSTILE: HOSTILE})
        channel.basic_publish(HOSTILE, HOSTILE, HOSTILE.encode(), properties)
        for name in ("many", "all of them", "copies"):
            channel.queue_declare(name, durable=True)
        for number in range(2500):
            odd = pika.BasicProperties(type="odd" if number % 2 else None)
            channel.basic_publish("", "many", str(number).encode(), odd)
        channel.queue_declare("dead", durable=True)
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("dying", durable=True, arguments=dying)
        channel.basic_publish("events", "eu.de", b"rejected", properties)
        channel.queue_bind("dying", "events", "us")
        channel.basic_publish("events", "us", b"rejected", properties)
        fetched, _, _ = channel.basic_get("dying")
        channel.basic_reject(fetched.delivery_tag, requeue=False)  # type: ignore[arg-type,union-attr]
        for number in range(60):
            body = f"{number} <script>alert(1)</script>".encode()
            channel.basic_publish("", "orders", body, properties)
        channel.queue_declare("busy")
        channel.basic_consume("busy", lambda *_message: None, auto_ack=True)
        channel.queue_declare("consumed", durable=True)
        channel.queue_bind("consumed", HOSTILE, HOSTILE)
        channel.basic_consume("consumed", lambda *_message: None, consumer_tag=HOSTILE)
        ready.set()
        while not stop.wait(0.02):
            channel.basic_publish("", "busy", b"message")
            connection.process_data_events(time_limit=0)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Generator[BrowserContext]:
    """A browser without cookies."""
    with browser.new_context(viewport=WIDE) as context:
        yield context


@pytest.fixture(scope="module")
def session(browser: Browser, site: str) -> Generator[BrowserContext]:
    """A browser of a user who has logged in once, as checks of passwords are slow on purpose."""
    with browser.new_context(viewport=WIDE, timezone_id=ZONE) as context:
        with context.new_page() as page:
            log_in(page, site)
        yield context


@pytest.fixture
def page(session: BrowserContext) -> Generator[Page]:
    """A page of a user who is logged in. Any complaint in its console fails the test."""
    with session.new_page() as page:
        complaints = heard(page)
        yield page
        assert complaints == []


def address(path: str, page: Page, site: str) -> str:
    """Return the address of a page, with things of the tests' broker for the names in its path."""
    if path == "/connections/{name}":
        page.goto(f"{site}/connections")
        return page.get_attribute("tbody th a", "href") or ""
    named = {"{vhost}": "%2F", "{name}": QUOTED, "{position}": "1"}
    if path == "/reports/{name}":
        page.goto(f"{site}/reports")
        return page.get_attribute("tbody a", "href") or ""
    for place, text in named.items():
        path = path.replace(place, text)
    asked = {"/explain": f"exchange={QUOTED}&routing_key={QUOTED}", "/queues": "name=%3Cimg"}
    return f"{path}?{asked[path]}" if path in asked else path


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_each_page_shows_hostile_names_as_text_and_fits(page: Page, site: str, path: str) -> None:
    """No name is run as code, and a phone does not scroll sideways."""
    if not shows(page, site, path):
        return
    for size in (NARROW, HUGE, WIDE):
        page.set_viewport_size(size)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], f"{path} is {width} wide"
    assert page.title()


@pytest.mark.long
@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_each_page_has_what_a_screen_reader_needs(page: Page, site: str, path: str) -> None:
    if shows(page, site, path):
        assert violations(page) == []


def shows(page: Page, site: str, path: str) -> bool:
    """Go to a page, and see that no name in it is code. Returns whether it is a whole page, and no
    part for one that asks for it.
    """
    answer = page.goto(f"{site}{address(path, page, site)}")
    assert answer is not None
    assert answer.status == 200, page.inner_text("body")
    assert "<img" not in answer.text()
    if "<html" not in answer.text():
        return False
    if path.endswith("/{position}"):
        page.wait_for_selector("h2:has-text('What cannot be known')", timeout=60_000)
    return True


@pytest.mark.parametrize(
    "path",
    [
        f"/login?next={QUOTED}",
        f"/queues?name={QUOTED}",
        f"/queues?use_regex=true&name={quote('(<img')}",
        f"/queues/%2F/{QUOTED}/messages?filter={QUOTED}",
        f"/queues/%2F/{QUOTED}/messages?start={QUOTED}",
        f"/queues/%2F/{QUOTED}%20/messages",
        f"/explain?exchange={QUOTED}&routing_key={QUOTED}&headers={QUOTED}",
        f"/explain?vhost=%2F&exchange={QUOTED}%20&routing_key=x",
        "/queues/%2F/consumed",
        f"/{QUOTED}",
    ],
)
def test_what_an_address_says_is_text(session: BrowserContext, site: str, path: str) -> None:
    answer = session.request.get(f"{site}{path}")
    assert "<html" in answer.text()
    assert "<img" not in answer.text()


def violations(page: Page) -> list[str]:
    """Return what axe finds; in the dark theme it looks at the colours alone, and on a phone at
    whether the keyboard reaches what scrolls.
    """
    if not AXE.exists():
        missing("axe-core is not installed: make test")
    findings: list[str] = []
    # Through the protocol of the browser, which no content policy forbids.
    page.evaluate(AXE.read_text())
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    for theme, size, options in (
        ("light", WIDE, "{}"),
        ("dark", WIDE, "{runOnly: ['color-contrast']}"),
        ("phone", NARROW, "{runOnly: ['scrollable-region-focusable']}"),
    ):
        page.set_viewport_size(size)
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        results = page.evaluate(f"axe.run({options})")
        findings += [
            f"{theme}: {one['id']}: {node['html'][:200]}"
            for one in results["violations"]
            for node in one["nodes"]
        ]
    return findings


def test_a_login_is_needed_and_ends(context: BrowserContext, site: str) -> None:
    """A page that is open when the session ends says so, and leads to the login and back."""
    page, other = context.new_page(), context.new_page()
    page.goto(f"{site}/queues?name=orders")
    assert page.inner_text("h1") == "Log in"
    assert page.query_selector(".notice") is None
    log_in(other, site)
    page.goto(f"{site}/queues?name=orders")
    assert page.inner_text("h1") == "Queues"
    other.click("text=Log out")
    assert other.query_selector(".notice") is None
    context.add_cookies([{"name": COOKIE, "value": "of a session that ended", "url": site}])
    page.click("text=Log in again")
    assert "session has ended" in page.inner_text(".notice")
    log_in_here(page)
    assert page.input_value("input[type=search]") == "orders"


def test_a_wrong_password_is_told(context: BrowserContext, site: str) -> None:
    page = context.new_page()
    log_in(page, site, "guest", "wrong")
    assert "wrong" in page.inner_text(".notice")
    page.goto(f"{site}/queues")
    assert page.inner_text("h1") == "Log in"


def test_the_session_is_a_cookie_that_no_script_reads(
    page: Page, session: BrowserContext, site: str
) -> None:
    page.goto(site)
    (cookie,) = session.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""


def test_the_overview_is_live(page: Page, site: str) -> None:
    """Figures and charts come with the stream of events, without a reload."""
    page.goto(f"{site}/")
    page.wait_for_selector(".chart canvas")
    # Not by a script: the content policy forbids the one that would wait.
    expect(page.locator("[data-figure=publish]")).to_have_text(re.compile("/s$"), timeout=60_000)
    charts = page.get_by_role("img", name=re.compile("now: .*[0-9]"))
    expect(charts).to_have_count(6, timeout=60_000)
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_a_chart_has_the_times_of_its_samples(page: Page, site: str) -> None:
    """Each once, from the first value on, and not more than it can show; in local time."""
    page.goto(f"{site}/")
    page.wait_for_selector(".chart canvas")
    (few, more, most, last, label) = page.evaluate(
        """() => {
            const [[element, {spec, columns}]] = charts;
            const [[key]] = spec.series;
            const add = (times, values) => {
                addSamples({times, [key]: values});
                return columns.slice(0, 2).map((column) => [...column]);
            };
            columns.forEach((column) => (column.length = 0));
            const found = [add([1, 2, 3], [null, 5, null]), add([2, 3, 4], [6, 6, 6])];
            const times = Array.from({length: 800}, (_, at) => at);
            const [all] = add(times, times);
            return [...found, all.length, all.at(-1), element.getAttribute("aria-label")];
        }"""
    )
    assert few == [[2, 3], [5, None]]
    assert more == [[2, 3, 4], [5, None, 6]]
    assert (most, last) == (720, 799)
    assert "now: Published 799/s, Delivered -," in label
    shown = page.evaluate(
        """async () => {
            const [{spec, columns}] = charts.values();
            columns.forEach((column) => (column.length = 0));
            addSamples({times: [1700000000], [spec.series[0][0]]: [1]});
            const times = async () => {
                await null;  // it draws in a microtask
                const [{plot}] = charts.values();
                return [plot.scales.x.min, plot.scales.x.max];
            };
            const found = [await times()];
            drawCharts();  // as for another theme or width
            return [...found, await times()];
        }"""
    )
    assert shown == [[1700000000 - 60, 1700000000]] * 2
    ticks = "[clocks([1700000000, 1700000005]), clocks([1700000000, 1700000060])]"
    assert page.evaluate(ticks) == [["03:43:20", "03:43:25"], ["03:43", "03:44"]]
    written = page.evaluate(
        """() => [
            ...[0, 0.1234, 9999, 12_345, 2_500_000, 7e9].map(UNITS.count),
            ...[1023, 1536, 5 * 1024 ** 3].map(UNITS.bytes),
            ...[0.00123, 0.5, 1.5, 250].map(UNITS.seconds),
            UNITS.rate(12.34), UNITS.rate_bytes(2048), written(null, UNITS.count),
        ]"""
    )
    assert written == [
        *("0", "0.123", "9999", "12.3k", "2.5M", "7G", "1023 B", "1.5 KiB", "5 GiB"),
        *("1.23 ms", "500 ms", "1.5 s", "250 s", "12.3/s", "2 KiB/s", "-"),
    ]


def test_the_theme_is_chosen_and_stays(context: BrowserContext, site: str) -> None:
    """The system's at first; then the other one, in colours of charts, too."""
    page = context.new_page()
    log_in(page, site)
    ground = "getComputedStyle(document.body).backgroundColor"
    light, blue = page.evaluate(f"[{ground}, colour('chart-1')]")
    page.click("[data-theme-toggle]")
    dark, pale = page.evaluate(f"[{ground}, colour('chart-1')]")
    assert light != dark
    assert blue != pale
    page.wait_for_selector(".chart canvas")
    drawn = "[...charts.values()].map(({plot}) => plot.series[1].stroke())"
    assert set(page.evaluate(drawn)) == {pale}
    page.reload()
    assert page.evaluate(ground) == dark
    page.click("[data-theme-toggle]")
    assert page.evaluate(ground) == light


def test_a_chart_is_as_wide_as_its_card(page: Page, site: str) -> None:
    page.goto(f"{site}/")
    plots = page.locator(".chart .uplot")
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        expect(plots.first).to_have_css("width", f"{page.evaluate(CHART_WIDTH)}px")


def test_a_queue_is_declared_bound_published_to_and_deleted(page: Page, site: str) -> None:
    page.goto(f"{site}/queues")
    page.click("text=Declare a queue")
    page.fill("form[method=post] input[name=name]", "of the page")
    page.fill("textarea", '{"x-max-length": 100}')
    page.click("button:has-text('Declare')")
    assert page.inner_text(".notice.good") == "The queue is declared."
    page.click("th a:has-text('of the page')")
    expect(page.locator("main")).to_contain_text("x-max-length", use_inner_text=True)
    page.click("text=Bind it to an exchange")
    page.fill("input[name=source]", "events")
    page.fill("input[name=routing_key]", "page.*")
    page.click("button:text-is('Bind')")
    assert page.inner_text(".notice.good") == "The queue is bound."
    page.click("text=Publish a message to this queue")
    page.fill("textarea[name=payload]", "from the page")
    page.click("button:has-text('Publish')")
    page.wait_for_selector(".notice.good")
    page.click("text=Browse messages")
    page.wait_for_selector("td:has-text('from the page')")
    page.go_back()
    page.click("button:has-text('Delete')")
    page.click("dialog button[value=no]")
    page.click("button:has-text('Delete')")
    page.click("dialog button[value=yes]")
    page.wait_for_selector("text=The queue is deleted.")


def test_messages_are_moved_by_selection(page: Page, site: str) -> None:
    page.goto(f"{site}/queues/%2F/orders/messages")
    page.check("[data-check-all]")
    expect(page.locator("tbody input:checked")).to_have_count(50)
    page.uncheck("[data-check-all]")
    for box in page.query_selector_all("tbody input")[:3]:
        box.check()
    page.fill("input[name='target:optional']", "moved")
    page.click("button:has-text('Move')")
    page.wait_for_selector(".notice.good")
    page.goto(f"{site}/queues/%2F/moved/messages")
    assert len(page.query_selector_all("tbody tr")) == 3
    page.check("tbody tr:first-child input")
    page.click("button:has-text('Delete')")
    question = "Delete the selected messages? This cannot be undone."
    expect(page.locator("#question p")).to_have_text(question)
    page.click("#question button[value=no]")
    assert len(page.query_selector_all("tbody tr")) == 3


def test_a_whole_queue_is_moved_in_pieces(page: Page, session: BrowserContext, site: str) -> None:
    """Each is a line of the answer, from which the page shows how far it is."""
    copied = session.request.post(
        f"{site}/select/%2F/many",
        form={"action": "copy", "target:optional": "copies"},
        headers={"origin": site},
    )
    lines = [json.loads(line) for line in copied.text().splitlines()]
    assert lines == [{"seen": seen, "of": 2500} for seen in (1000, 2000, 2500)]
    page.goto(f"{site}/queues/%2F/copies")
    assert page.inner_text(".notice.good") == "2,500 messages copied."
    # Messages that arrive meanwhile are left alone, even those of this selection itself.
    for asked, count in (({}, "2,500"), ({"filter": '{"properties": {"type": "odd"}}'}, "2,500")):
        session.request.post(
            f"{site}/select/%2F/copies",
            form={"action": "copy", "target:optional": "copies", **asked},
            headers={"origin": site},
        )
        page.goto(f"{site}/queues/%2F/copies")
        assert page.inner_text(".notice.good") == f"{count} messages copied."
    page.goto(f"{site}/queues/%2F/many/messages?limit=5")
    page.select_option("select[name='which:optional']", "all")
    page.fill("input[name='target:optional']", "all of them")
    page.click("button:has-text('Move')")
    page.click("#question button[value=yes]")
    page.wait_for_selector(".notice.good", timeout=60_000)
    assert page.inner_text(".notice.good") == "2,500 messages moved."
    page.goto(f"{site}/queues/%2F/all%20of%20them/messages?limit=1000")
    expect(page.locator("tbody tr")).to_have_count(1000)
    assert page.inner_text("tbody tr:first-child summary") == "0"


def test_a_selection_of_all_can_be_stopped(page: Page, site: str) -> None:
    """The request is cancelled, and the page shows the queue as it is."""
    page.goto(f"{site}/queues/%2F/dead/messages")
    page.select_option("select[name='which:optional']", "all")
    page.route("**/select/**", lambda _route: None)  # it takes long
    page.click("button:has-text('Delete')")
    assert "Delete: all messages of this queue?" in page.inner_text("#question")
    with page.expect_request("**/select/**"):
        page.click("#question button[value=yes]")
    with page.expect_event("requestfailed", lambda one: "/select/" in one.url):
        page.click("#progress button")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_selection_of_all_tells_why_it_is_refused(page: Page, site: str) -> None:
    page.goto(f"{site}/queues/%2F/dead/messages")
    page.select_option("select[name='which:optional']", "all")
    page.fill("input[name='target:optional']", "none of that name")
    page.click("button:has-text('Move')")
    page.click("#question button[value=yes]")
    assert "none of that name" in page.inner_text(".notice.bad")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_only_what_matches_the_filter_is_selected(page: Page, site: str) -> None:
    with ManagementClient(site) as api:
        api.put("/queues/%2F/filtered", {"durable": True})
        for kind in ("a", "b", "a"):
            message = {"routing_key": "filtered", "payload": kind, "payload_encoding": "string"}
            message |= {"properties": {"type": kind}}  # type: ignore[dict-item]
            api.post("/exchanges/%2F/amq.default/publish", message)
    page.goto(f"{site}/queues/%2F/filtered/messages")
    page.fill("input[name=filter]", '{"properties": {"type": "a"}}')
    page.click("button:text-is('Show')")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.select_option("select[name='which:optional']", "all")
    page.fill("input[name='target:optional']", "moved")
    page.click("button:has-text('Move')")
    expect(page.locator("#question p")).to_have_text("Move: all messages that match the filter?")
    page.click("#question button[value=yes]")
    expect(page.locator(".notice.good")).to_have_text("2 messages moved.")
    page.goto(f"{site}/queues/%2F/filtered/messages")
    assert page.inner_text("tbody tr summary") == "b"


def test_a_message_says_where_it_came_from(page: Page, site: str) -> None:
    page.goto(f"{site}/queues/%2F/dead/messages")
    page.click("tbody a")
    expect(page.locator("pre").first).to_have_text("rejected")
    page.wait_for_selector("h3:has-text('Dead-lettered')", timeout=60_000)
    assert page.inner_text("section:has-text('Where it came from') tbody a") == "dead"
    page.goto(f"{site}/queues/%2F/dying/messages/1")
    assert "no longer in this queue" in page.inner_text("main")
    page.wait_for_selector("h2:has-text('It became message')", timeout=60_000)
    clients = page.inner_text("section:has-text('Who had to do with it')")
    assert all(what in clients for what in ("Published it", "Got it", "Rejected it"))


def test_what_a_drill_found_is_shown(page: Page, site: str) -> None:
    page.goto(f"{site}/store")
    page.click("text=Reports of earlier starts")
    page.wait_for_selector("tbody:has-text('promise broken')")
    page.click("tbody a")
    expect(page.locator("h2").first).to_have_text(HOSTILE)
    assert page.inner_text(".notice.bad pre") == HOSTILE
    page.click("summary")
    assert "4 to 5" in page.inner_text("details tbody")


def test_a_question_is_answered_by_keyboard(page: Page, site: str) -> None:
    """The first stop leads to the content; Escape says no, and one is back where one was."""
    page.goto(f"{site}/queues/%2F/purged")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    for _ in range(4):  # the way to the list, browsing, purging, deleting
        page.keyboard.press("Tab")
    focused = page.locator("*:focus")
    assert focused.inner_text() == "Delete"
    assert focused.evaluate("(element) => getComputedStyle(element).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open] *:focus")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert focused.inner_text() == "Delete"
    assert page.goto(f"{site}/queues/%2F/purged").ok  # type: ignore[union-attr]


def test_what_is_refused_is_told_as_text(session: BrowserContext, site: str) -> None:
    answer = session.request.post(
        f"{site}/act/DELETE/api/queues/%2F/{QUOTED}%20refused", headers={"origin": site}
    )
    assert "Refused: no queue" in answer.text()
    assert "<img" not in answer.text()


def test_what_scripts_write_is_text(page: Page, site: str) -> None:
    """The question before what cannot be undone, and what became of what a page shows."""
    name = f"{HOSTILE} asked"
    with ManagementClient(site) as api:
        api.put(f"/queues/%2F/{QUOTED}%20asked", {"durable": True})
        page.goto(f"{site}/queues/%2F/{QUOTED}%20asked")
        page.click("button:has-text('Delete')")
        expect(page.locator("#question p")).to_have_text(f"Delete {name} with all of its messages?")
        page.click("#question button[value=no]")
        api.delete(f"/queues/%2F/{QUOTED}%20asked")
        state = page.locator("#connection-state")
        expect(state).to_contain_text(f"no queue '{name}'", timeout=60_000)


def test_a_refusal_is_told_and_changes_nothing(page: Page, site: str) -> None:
    page.goto(f"{site}/queues")
    page.click("text=Declare a queue")
    page.fill("form[method=post] input[name=name]", "refused")
    page.fill("textarea", "{not json")
    page.click("button:has-text('Declare')")
    assert "not valid JSON" in page.inner_text(".notice.bad")
    assert page.query_selector("th a:has-text('refused')") is None


def test_the_routing_explainer_says_where_and_why(page: Page, site: str) -> None:
    page.goto(f"{site}/explain")
    page.fill("input[name=exchange]", "events")
    page.fill("input[name=routing_key]", "eu.de")
    page.click("button:has-text('Explain')")
    expect(page.locator("main")).to_contain_text("1 queue", use_inner_text=True)
    assert "orders" in page.inner_text(".tree")


@pytest.mark.long
def test_an_open_page_comes_back_when_the_broker_does(
    context: BrowserContext, stopped_broker: BrokerProcess
) -> None:
    """The page needs no new login, has the same charts, and its forms work."""
    broker = managed(stopped_broker)
    broker.start()
    keep_management_port(broker)
    site = management_url(broker)
    page = context.new_page()
    with ManagementClient(site) as api:
        api.put("/queues/%2F/lasting", {"durable": True})
        log_in(page, site)
        page.goto(f"{site}/queues/%2F/lasting")
        state = page.locator("#connection-state")
        chart = page.get_by_role("img", name=re.compile("now: Ready 0"))
        expect(chart).to_be_visible(timeout=60_000)
        broker.kill()
        expect(state).to_contain_text("does not answer", timeout=60_000)
        broker.start()
        expect(state).to_be_empty(timeout=60_000)
        message = {"routing_key": "lasting", "payload": "x", "payload_encoding": "string"}
        api.post("/exchanges/%2F/amq.default/publish", {**message, "properties": {}})
        expect(page.locator("[data-figure=messages_ready]")).to_have_text("1", timeout=60_000)
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
        times = page.evaluate("[...charts.values()].map(({columns}) => columns[0])")
        assert all(column == sorted(set(column)) for column in times)
        page.click("button:has-text('Purge')")
        page.click("dialog button[value=yes]")
        page.wait_for_selector("text=The queue is purged.")
        api.put("/users/guest", {"password": "another", "tags": "administrator"}, 204)
        expect(state).to_contain_text("session has ended", timeout=60_000)


def test_a_foreign_page_cannot_act(session: BrowserContext, page: Page, site: str) -> None:
    """The cookie is not sent from elsewhere, and a request that says it is from elsewhere is
    refused.
    """
    for headers in ({"origin": "http://elsewhere"}, {"sec-fetch-site": "cross-site"}):
        answer = session.request.delete(f"{site}/api/queues/%2F/orders", headers=headers)
        assert answer.status in (401, 403)
        answer = session.request.post(
            f"{site}/act/DELETE/api/queues/%2F/orders", headers=headers, max_redirects=0
        )
        assert answer.status == 403
        answer = session.request.post(
            f"{site}/select/%2F/orders", form={"action": "delete"}, headers=headers
        )
        assert answer.status == 403
    assert page.goto(f"{site}/queues/%2F/orders").ok  # type: ignore[union-attr]


def test_who_may_not_see_it_does_not(context: BrowserContext, page: Page, site: str) -> None:
    page.goto(f"{site}/users")
    page.click("text=Add a user")
    page.fill("input[name=name]", "guest-of-ours")
    page.fill("input[name=password]", "secret")
    page.fill("input[name='tags:list']", "management")
    page.click("button:text-is('Add')")
    other = context.new_page()
    log_in(other, site, "guest-of-ours", "secret")
    assert other.goto(f"{site}/queues").ok  # type: ignore[union-attr]
    assert "orders" not in other.inner_text("main")
    assert "Users" not in other.inner_text("nav")
    assert other.goto(f"{site}/users").status in (401, 403)  # type: ignore[union-attr]
    # The same user, who from now on may see everything, and read no message.
    page.goto(f"{site}/users/guest-of-ours")
    page.fill("input[name='tags:list']", "monitoring")
    page.click("button:text-is('Change the tags')")
    other.goto(f"{site}/queues/%2F/orders")
    assert other.inner_text("h1") == "orders"
    for path in ("/messages", "/messages/1"):
        answer = other.goto(f"{site}/queues/%2F/orders{path}")
        assert answer.status == 401  # type: ignore[union-attr]


@pytest.mark.parametrize("name", LISTS)
def test_the_columns_of_a_list_are_chosen_and_stay(page: Page, site: str, name: str) -> None:
    def heads() -> list[str]:
        return [text.strip() for text in page.locator("thead th").all_inner_texts()]

    page.goto(f"{site}/{name}")
    usual = heads()
    page.click("summary:text-is('Columns')")
    for box in page.locator("input[name=column]").all():
        box.check()
    page.click("button:text-is('Show these')")
    every = [column.label for column in LISTS[name]]
    expect(page.locator("thead th")).to_have_count(len(every))
    assert heads() == every
    assert page.url == f"{site}/{name}"
    assert "<img" not in page.content()
    # On a phone, too, which does not scroll sideways for it; and where the list is renewed.
    for size in (NARROW, WIDE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        expect(page.locator("thead th:visible")).to_have_count(len(every))
    with page.expect_response(lambda one: one.request.headers.get("hx-request") == "true"):
        page.evaluate("document.body.dispatchEvent(new CustomEvent('tick'))")
    assert heads() == every
    page.goto(f"{site}/{name}?sort=name")
    assert heads() == every
    page.click("summary:text-is('Columns')")
    page.click("button:text-is('Show the usual ones')")
    expect(page.locator("thead th")).to_have_count(len(usual))
    assert heads() == usual
    assert page.url == f"{site}/{name}?sort=name"


def test_a_virtual_host_whose_name_has_blanks_at_its_ends_is_chosen(page: Page, site: str) -> None:
    with ManagementClient(site) as api:
        api.put("/vhosts/%20odd%20")
        page.goto(f"{site}/queues")
        page.click("summary:has-text('Declare')")
        page.select_option("form[method=post] select[name=vhost]", label="\u2423odd\u2423")
        page.fill("input[name=name][required]", "there")
        page.click("button:text-is('Declare')")
        page.wait_for_selector("text=The queue is declared.")
        assert api.get("/queues/%20odd%20/there")["durable"]
        page.goto(f"{site}/vhosts")
        page.click("tr:has(bdi:text-is('\u2423odd\u2423')) >> button:text-is('Delete')")
        question = page.inner_text("dialog[open] p")
        assert question.startswith("Delete \u2423odd\u2423 with all")
        page.click("dialog[open] >> button:text-is('Delete')")
        page.wait_for_selector("text=The virtual host is deleted.")


def test_names_in_sentences_have_marks_and_fit(page: Page, site: str) -> None:
    for name in (" blanks  ", "x" * 255):
        with ManagementClient(site) as api:
            api.put(f"/queues/%2F/{quote(name)}")
            page.goto(f"{site}/queues")
            page.click("summary:has-text('Declare')")
            page.fill("input[name=name][required]", name)
            page.fill("[name='arguments:merge']", '{"x-max-length": 5}')
            page.click("button:text-is('Declare')")
            page.wait_for_selector(f".notice bdi:text-is('{name.replace(' ', chr(0x2423))}')")
            page.goto(f"{site}/queues/%2F/{quote(name)}")
            page.click("button:text-is('Delete')")
            dialog = page.locator("dialog[open]")
            assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth")
            api.delete(f"/queues/%2F/{quote(name)}")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("disguised\u202eredro", "disguised[U+202E]redro"),
        ("disguised\u2066\u200bx", "disguised[U+2066][U+200B]x"),
        (" disguised  ", "\u2423disguised\u2423\u2423"),
        ("disguised\u00a0x\ty", "disguised[U+00A0]x[U+0009]y"),
        ("..", ".."),
        (".", "."),
    ],
)
def test_a_name_that_would_disguise_itself_is_seen_and_opens(
    page: Page, site: str, name: str, shown: str
) -> None:
    with ManagementClient(site) as api:
        path = f"/queues/%2F/{quote(name, safe='').replace('.', '%2E')}"
        api.put(path)
        page.goto(f"{site}/queues?name={quote('disguised' if 'dis' in name else name)}")
        page.click(f"tbody a:text-is('{shown}')")
        page.wait_for_url("**/queues/%2F/*")
        expect(page.locator("h1")).to_have_text(shown)
        page.click("text=Browse messages")
        page.click(f"a.crumb:text-is('{shown}')")
        # A form finds it, too.
        page.click("summary:has-text('Publish')")
        page.fill("textarea[name=payload]", "found")
        page.click("button:text-is('Publish')")
        page.wait_for_selector("text=The message is published.")
        (got,) = api.post(f"{path}/get", GET)
        assert got["payload"] == "found"
        api.delete(path)
