"""Lists and forms of the pages, and what clients of the API ask for beside the rows themselves."""

import gzip
import json
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import pika
import pytest
import requests

from amqpstore_server.management.pages.choosing import cookie_of
from amqpstore_server.management.pages.columns import LISTS
from tests.broker_process import BrokerProcess
from tests.interop.test_page_sessions import PageVisitor
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

NODE = "rabbit@here"
QUEUES = 170
BINDINGS = 520


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("lists")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    process.environment["AMQPSTORE_NODE_NAME"] = NODE
    with process:
        process.start()
        with ManagementClient(management_url(process)) as api:
            api.put("/vhosts/other")
            api.put("/queues/other/elsewhere")
        client = pika.URLParameters(process.url)
        client.client_properties = {"connection_name": "billing-worker"}
        with pika.BlockingConnection(client) as connection:
            channel = connection.channel()
            for number in range(QUEUES):
                channel.queue_declare(f"q{number:03}", durable=True)
            for number in range(BINDINGS):
                channel.queue_bind("q000", "amq.topic", f"k.{number}")
            yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        yield client


@pytest.fixture
def visitor(broker: BrokerProcess) -> Generator[PageVisitor]:
    with PageVisitor(management_url(broker), "guest", "guest") as visitor:
        yield visitor


def shown(visitor: PageVisitor, path: str) -> str:
    answer = visitor.visit(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", answer.text))


def test_a_list_has_as_many_rows_as_are_asked_for_of_the_virtual_host(visitor: PageVisitor) -> None:
    assert f"1 to 50 of {QUEUES + 1}" in shown(visitor, "/queues")
    assert "101 to 171 of 171" in shown(visitor, "/queues?page_size=100&page=2")
    other = shown(visitor, "/queues?vhost=other")
    assert "elsewhere" in other
    assert "q000" not in other
    assert "billing-worker" in shown(visitor, "/connections?vhost=%2F")
    assert "billing-worker" not in shown(visitor, "/connections?vhost=other")
    # What was chosen stays when it is sorted, and on the next page.
    page = visitor.visit("/queues?vhost=%2F&page_size=100&sort=messages").text
    assert 'href="?page=2&amp;sort=messages&amp;vhost=%2F&amp;page_size=100"' in page


def test_a_list_that_has_become_shorter_shows_its_last_page(visitor: PageVisitor) -> None:
    assert "151 to 171 of 171" in shown(visitor, "/queues?page=42")
    assert "No queue matches" in shown(visitor, "/queues?page=42&name=nothing")


def test_any_page_of_a_list_can_be_named(visitor: PageVisitor) -> None:
    page = visitor.visit("/queues?page=2&name=q&sort=messages").text
    (form,) = re.findall('<form class="inline" method="get"><input.*?</form>', page)
    assert 'name="page" min="1" max="4" value="2"' in form
    kept = dict(re.findall('type="hidden" name="(.*?)" value="(.*?)"', form))
    assert kept == {"name": "q", "sort": "messages"}
    assert "151 to 170 of 170" in shown(visitor, "/queues?name=q&sort=messages&page=4")
    assert "Go" not in shown(visitor, "/queues?vhost=other")


def test_each_column_of_a_list_shows_a_field_of_the_api(
    broker: BrokerProcess, visitor: PageVisitor, api: ManagementClient
) -> None:
    fan = {"pattern": "^own ex", "apply-to": "exchanges", "definition": {"alternate-exchange": "x"}}
    limits = {"pattern": "^own", "apply-to": "queues", "definition": {"max-length": 9}}
    policies = [f"/{kind}/%2F/limits" for kind in ("policies", "operator-policies")]
    for path in policies:
        api.put(path, limits)
    api.put("/policies/%2F/fan", fan)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("own exchange", "fanout", auto_delete=True)
        single = {"x-single-active-consumer": True}
        channel.queue_declare("own queue", exclusive=True, arguments=single)
        channel.queue_bind("own queue", "own exchange")
        channel.basic_consume("own queue", lambda *_message: None, consumer_tag="of the queue")
        path = "/queues/%2F/own%20queue"
        wait_until(lambda: "idle_since" in api.get(path), "the queue is idle")
        # As Go's exporters read it: 2006-01-02T15:04:05.999-07:00.
        since = api.get(path)["idle_since"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", since)
        for name, columns in LISTS.items():
            chosen = [("column", column.key) for column in columns]
            post(visitor, f"/columns/{name}", f"/{name}", data=chosen)
            filtered = "?name=own" if name in ("queues", "exchanges") else ""
            page = visitor.visit(f"/{name}{filtered}").text
            sorted_by = [column.sort for column in columns if column.sort]
            rows = api.get(f"/{name}", columns=",".join(sorted_by))
            for column in columns:
                assert f">{column.label}<" in page
            for path in sorted_by:
                is_rate = path.startswith("message_stats")
                assert is_rate or any(has(row, path.split(".")) for row in rows), path
            if name == "queues":
                for text in ("of the queue", "limits", "x-single-active-consumer"):
                    assert text in page
    for path in (*policies, "/policies/%2F/fan"):
        api.delete(path)


def has(row: Any, path: list[str]) -> bool:
    """Whether a row has a field at a path."""
    for name in path:
        if not isinstance(row, dict) or name not in row:
            return False
        row = row[name]
    return True


def test_columns_are_chosen_of_lists_by_pages_of_this_site(visitor: PageVisitor) -> None:
    chosen = {"column": "ready"}
    url = f"{visitor.url}/columns/queues"
    answer = visitor.session.post(url, chosen, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert post(visitor, "/columns/users", "/users", data=chosen).status_code == 404
    assert visitor.session.cookies.get(cookie_of("queues")) is None
    page = post(visitor, "/columns/queues", "/queues?sort=messages", data=chosen)
    # No script can read it, and no other site can use it.
    (cookie,) = [one for one in visitor.session.cookies if one.name == cookie_of("queues")]
    assert (cookie.path, cookie.get_nonstandard_attr("SameSite")) == ("/", "strict")
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.expires
    assert page.url.endswith("/queues?sort=messages")
    assert "Ready" in page.text.partition("<thead>")[2]
    assert "Total" not in page.text.partition("<thead>")[2]
    page = post(visitor, "/columns/queues", "/queues", data={**chosen, "usual": ""})
    assert "Total" in page.text.partition("<thead>")[2]
    assert visitor.session.cookies.get(cookie_of("queues")) is None


def test_any_bytes_are_published_by_a_page(visitor: PageVisitor, api: ManagementClient) -> None:
    path = "/act/POST/api/exchanges/%2F/amq.default/publish"
    sent = {"payload_encoding": "base64", "payload": "/wCA", "routing_key": "q001"}
    assert 'name="payload_encoding"' in visitor.visit("/queues/%2F/q001").text
    post(visitor, path, "/queues/%2F/q001", data=sent)
    get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (got,) = api.post("/queues/%2F/q001/get", get)
    assert (got["payload"], got["payload_encoding"]) == ("/wCA", "base64")


def test_an_invalid_expression_is_told_above_the_list(visitor: PageVisitor) -> None:
    page = shown(visitor, "/queues?use_regex=true&name=((")
    assert "is not a regular expression" in page
    assert "Declare a queue" in page
    assert "q000" not in page
    assert "1 to 50 of 171" in shown(visitor, f"/queues?use_regex=true&name={quote('^(?!amq)')}")


def test_connections_are_found_by_what_is_shown_of_them(visitor: PageVisitor) -> None:
    for path in ("/connections", "/channels"):
        page = shown(visitor, path)
        address = re.search(r"127\.0\.0\.1:\d+", page)
        assert address
        assert "billing-worker" in page
        for name in ("billing", "BILLING-worker", address[0]):
            assert "billing-worker" in shown(visitor, f"{path}?name={quote(name)}")
        assert "billing-worker" not in shown(visitor, f"{path}?name=payroll")


def test_a_page_that_shows_some_of_the_bindings_says_so(visitor: PageVisitor) -> None:
    # One of them is to the default exchange.
    assert "21 more bindings are not shown" in shown(visitor, "/queues/%2F/q000")
    assert "20 more bindings are not shown" in shown(visitor, "/exchanges/%2F/amq.topic")


def post(visitor: PageVisitor, path: str, came_from: str, **sent: Any) -> requests.Response:
    headers = {"origin": visitor.url, "referer": f"{visitor.url}{came_from}"}
    return visitor.session.post(f"{visitor.url}{path}", headers=headers, timeout=60, **sent)


def test_a_refused_form_keeps_what_was_typed_but_passwords(visitor: PageVisitor) -> None:
    path = "/act/POST/api/exchanges/%2F/amq.default/publish"
    typed = {"properties.headers:json": "{oops", "payload": "<a long text>", "routing_key": "q000"}
    page = post(visitor, path, "/queues/%2F/q000", data=typed).text
    assert "Refused" in page
    assert f'data-action="{path}"' in page
    assert "&lt;a long text&gt;" in page or "\\u003ca long text\\u003e" in page
    assert "a long text" not in visitor.visit("/queues/%2F/q000").text
    path = "/act/PUT/api/users/:name"
    page = post(visitor, path, "/users", data={"name": "", "password": "typed secret"}).text
    assert f'data-action="{path}"' in page
    assert "typed secret" not in page


def test_an_open_page_that_renews_itself_does_not_take_what_the_next_one_is_to_say(
    visitor: PageVisitor,
) -> None:
    page, form = "/queues/%2F/q000", {"payload": "typed", "properties.headers:json": "{oops"}
    path = "/act/POST/api/exchanges/%2F/amq.default/publish"
    post(visitor, path, page, data=form, allow_redirects=False)
    renewed = visitor.session.get(
        f"{visitor.url}{page}", headers={"HX-Request": "true"}, timeout=60
    )
    assert renewed.status_code == 200
    shown_next = visitor.visit(page).text
    assert "Refused" in shown_next
    assert f'data-action="{path}"' in shown_next
    assert "Refused" not in shown(visitor, page)


def test_definitions_are_exported_and_imported_by_a_page(
    visitor: PageVisitor, api: ManagementClient
) -> None:
    exported = visitor.visit("/definitions")
    assert "attachment" in exported.headers["content-disposition"]
    found = exported.json()
    assert len(found["queues"]) == QUEUES + 1
    found["queues"] = [{**found["queues"][0], "name": "imported"}]
    content = b"\xef\xbb\xbf" + json.dumps(found).encode()
    page = post(visitor, "/definitions", "/", files={"file": ("d.json", content)}).text
    assert "Definitions imported" in page
    assert api.get("/queues/%2F/imported")["durable"]
    api.delete("/queues/%2F/imported")
    for wrong in (b"{", b"[]"):
        assert "Refused" in post(visitor, "/definitions", "/", files={"file": ("d", wrong)}).text
    headers = {"origin": "https://evil.example"}
    answer = visitor.session.post(
        f"{visitor.url}/definitions", headers=headers, files={"file": ("d", content)}, timeout=60
    )
    assert answer.status_code == 403


def test_a_long_answer_is_compressed_for_who_accepts_that(api: ManagementClient) -> None:
    def asked(path: str, accepted: str) -> requests.Response:
        answer = api.session.get(
            f"{api.url}{path}", headers={"accept-encoding": accepted}, stream=True, timeout=60
        )
        assert answer.status_code == 200
        return answer

    for path in ("/api/queues", "/metrics", "/static/app.js"):
        plain = asked(path, "identity")
        packed = asked(path, "br, gzip;q=0.5")
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
        content = packed.raw.read(decode_content=False)
        assert int(packed.headers["content-length"]) == len(content)
        assert len(content) < int(plain.headers["content-length"]) / 2
        if path == "/static/app.js":
            assert gzip.decompress(content) == plain.content
        for refused in ("gzip;q=0", "identity", "br;q=1, gzip; q=0.0"):
            assert "content-encoding" not in asked(path, refused).headers
    assert "content-encoding" not in asked("/api/whoami", "gzip").headers


def test_the_node_has_the_name_that_it_is_given(api: ManagementClient) -> None:
    (node,) = api.get("/nodes")
    assert node["name"] == api.get("/overview")["node"] == NODE
    assert api.get("/queues/%2F/q000")["node"] == NODE
    assert "memory" not in api.get(f"/nodes/{NODE}")
    memory = api.get(f"/nodes/{NODE}", memory="true")["memory"]
    assert memory == api.get(f"/nodes/{NODE}/memory")["memory"] | {
        name: memory[name] for name in ("total", "queue_procs", "other_proc")
    }
    assert api.get("/shovels") == api.get("/shovels/%2F") == []
    assert api.get("/federation-links") == api.get("/federation-links/%2F") == []
