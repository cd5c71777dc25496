"""Logins to the web pages: which outlive a restart of the broker, and which end at once."""

import re
import stat
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
import requests
import trustme

from amqpstore_server.management.pages.kept_sessions import FILE
from amqpstore_server.management.pages.reading import PAGES
from amqpstore_server.management.pages.sessions import COOKIE
from tests.broker_process import BrokerProcess
from tests.management_client import (
    PASSWORD,
    ManagementClient,
    keep_management_port,
    managed,
    management_url,
)
from tests.token_issuer import ALL as ALL_SCOPES
from tests.token_issuer import Issuer
from tests.waiting import wait_until

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}
FORWARDED = {
    "/x?y=%09": "/x?y=%09",
    "//evil.example": "/",
    "/\\evil.example": "/",
    "/\t/evil.example": "/",
    "/\x0b/evil": "/",
    "/\r\nX-Injected: 1": "/",
    "/\u20ac": "/",
    "https://evil.example": "/",
    "": "/",
}
FORM = re.compile(r'<form[^>]* action="([^"]*)"')


@pytest.fixture
def issuer() -> Generator[Issuer]:
    found = Issuer(trustme.CA())
    yield found
    found.close()


class PageVisitor:
    """A browser without scripts, of a user who has logged in."""

    def __init__(self, url: str, user: str, secret: str = "password") -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        form = {"user": user, "password": secret, "next": "/queues"}
        answer = self.session.post(
            f"{url}/login", form, headers={"origin": url}, allow_redirects=False, timeout=60
        )
        assert answer.headers.get("location") == "/queues", answer.text

    def __enter__(self) -> "PageVisitor":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.session.close()

    def visit(self, path: str) -> requests.Response:
        return self.session.get(f"{self.url}{path}", allow_redirects=False, timeout=60)

    @property
    def is_logged_in(self) -> bool:
        return self.visit("/queues").status_code == 200


def test_a_password_s_session_outlives_a_restart_and_nothing_else(
    stopped_broker: BrokerProcess,
) -> None:
    """The session of a user who logs out, is deleted or gets another password ends, in the file
    too.
    """
    broker = managed(stopped_broker)
    broker.start()
    keep_management_port(broker)
    url = management_url(broker)
    with ExitStack() as stack, ManagementClient(url) as api:
        users = ("stays", "leaves", "deleted", "changed", "demoted")
        for user in users:
            api.put(f"/users/{user}", {**PASSWORD, "tags": "administrator"})
        visitors = {user: stack.enter_context(PageVisitor(url, user)) for user in users}
        path = Path(broker.data_directory, FILE)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        kept = path.read_bytes()
        for visitor in visitors.values():
            assert str(visitor.session.cookies[COOKIE]).encode() not in kept
        assert b"password" not in kept.replace(b'"password":', b"")
        broker.kill()
        broker.start()
        assert all(visitor.is_logged_in for visitor in visitors.values())
        leaving = visitors["leaves"].session
        cookie = leaving.cookies[COOKIE]
        leaving.post(f"{url}/logout", headers={"origin": url}, timeout=60)
        leaving.cookies.set(COOKIE, cookie)
        api.delete("/users/deleted")
        api.put("/users/deleted", {"password": "password", "tags": "administrator"})
        api.put("/users/changed", {"password": "another", "tags": "administrator"}, 204)
        row = api.get("/users/demoted")
        api.put("/users/demoted", {**row, "tags": []}, 204)
        left = {user for user, visitor in visitors.items() if visitor.is_logged_in}
        assert left == {"stays"}
        broker.kill()
        broker.start()
        left = {user for user, visitor in visitors.items() if visitor.is_logged_in}
        assert left == {"stays"}


def test_a_token_s_session_ends_with_the_token(
    stopped_broker: BrokerProcess, issuer: Issuer
) -> None:
    """Tokens are in no file, so such a session also ends with the process."""
    broker = managed(stopped_broker)
    keys = Path(f"{broker.data_directory}.keys")
    keys.mkdir()
    (keys / "first.pem").write_bytes(issuer.public_pem())
    broker.environment |= {
        "AMQPSTORE_OAUTH_RESOURCE_SERVER_ID": "broker",
        "AMQPSTORE_OAUTH_KEYS": str(keys),
        "AMQPSTORE_OAUTH_LEEWAY_S": "0",
    }
    broker.start()
    keep_management_port(broker)
    url = management_url(broker)
    scope = f"{ALL_SCOPES} broker.tag:management"
    short, long = issuer.token(scope=scope, lasts_s=5), issuer.token(scope=scope)
    with PageVisitor(url, "", short) as brief, PageVisitor(url, "ignored", long) as visitor:
        assert "anna" in visitor.visit("/queues").text
        assert visitor.visit("/users").status_code == 401
        stream = brief.session.get(f"{url}/stream/tables", stream=True, timeout=60)
        assert b"event: ended" in stream.content
        assert not brief.is_logged_in
        assert visitor.is_logged_in
        assert Path(broker.data_directory, FILE).read_bytes() == b"[]"
        broker.restart()
        assert not visitor.is_logged_in


def forms_of(visitor: PageVisitor, paths: list[str]) -> set[str]:
    """Return where the forms of pages post to that ask the API for something."""
    found = set()
    for path in paths:
        answer = visitor.visit(path)
        if answer.status_code == 200:
            found |= set(FORM.findall(answer.text))
    return {one for one in found if one != "/logout" and not one.startswith("/columns/")}


def test_nobody_is_shown_a_form_that_the_api_refuses(stopped_broker: BrokerProcess) -> None:
    broker = managed(stopped_broker)
    broker.start()
    url = management_url(broker)
    with ManagementClient(url) as api, ExitStack() as stack:
        for user, tag, rights in (
            ("all", "administrator", ALL),
            ("reader", "management", {**NOTHING, "read": ".*"}),
            ("writer", "management", {**NOTHING, "write": ".*"}),
            ("maker", "policymaker,monitoring", NOTHING),
            ("declarer", "management", {**NOTHING, "configure": "^own"}),
            ("outsider", "management", {**NOTHING, "configure": "^$"}),
            ("monitor", "monitoring", None),
        ):
            api.put(f"/users/{user}", {**PASSWORD, "tags": tag})
            if rights is not None:
                api.put(f"/permissions/%2F/{user}", rights)
        api.put("/queues/%2F/q", {"durable": True})
        api.put("/exchanges/%2F/e", {"type": "fanout"})
        api.post("/bindings/%2F/e/e/q/q", {}, 201)
        api.put("/vhosts/other")
        for kind in ("policies", "operator-policies"):
            for vhost in ("%2F", "other"):
                policy = {"pattern": "x", "definition": {"max-length": 9}}
                api.put(f"/{kind}/{vhost}/p", policy)
        message = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
        api.post("/exchanges/%2F/amq.default/publish", {**message, "properties": {}})
        connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(broker.url)))
        wait_until(lambda: api.get("/connections"))
        assert connection.is_open
        (of_guest,) = api.get("/connections")
        names = {"{vhost}": "%2F", "{position}": "1"}
        paths = []
        for page in PAGES:
            path = page.path
            own = {"/exchanges": "e", "/connect": quote(of_guest["name"]), "/users/{": "reader"}
            name = next((own[one] for one in own if path.startswith(one)), "q")
            for place, text in {**names, "{name}": name}.items():
                path = path.replace(place, text)
            paths.append(path)
        forms = {
            user: forms_of(stack.enter_context(PageVisitor(url, user)), paths)
            for user in ("all", "reader", "writer", "maker", "monitor", "declarer", "outsider")
        }
    queue, exchange = "/api/queues/%2F/q", "/api/exchanges/%2F/e"
    declare = {"/act/PUT/api/queues/:vhost/:name", "/act/PUT/api/exchanges/:vhost/:name"}
    assert forms["monitor"] == set()
    assert forms["outsider"] == set()
    assert forms["declarer"] == declare
    assert forms["maker"] == {
        "/act/PUT/api/policies/:vhost/:name",
        "/act/DELETE/api/policies/%2F/p",
    }
    assert forms["reader"] == {
        f"/act/DELETE{queue}/contents",
        f"/act/POST{queue}/messages/:action",
        "/act/POST/api/bindings/%2F/e/e/:kind/:destination",
    }
    assert forms["writer"] == {
        "/act/POST/api/bindings/%2F/e/:source/q/q",
        f"/act/POST{exchange}/publish",
        "/act/POST/api/exchanges/%2F/amq.default/publish",
    }
    everything = declare | forms["reader"] | forms["writer"] | forms["maker"]
    assert forms["all"] >= everything | {
        f"/act/DELETE{queue}",
        f"/act/DELETE{exchange}",
        "/act/DELETE/api/bindings/%2F/e/e/q/q/~",
        "/act/DELETE/api/policies/other/p",
        "/act/DELETE/api/operator-policies/other/p",
        "/act/PUT/api/operator-policies/:vhost/:name",
        f"/act/DELETE/api/connections/{quote(of_guest['name'], safe='')}",
        "/act/PUT/api/users/:name",
        "/act/POST/api/store/check",
    }


def test_who_logs_in_again_and_again_ends_own_sessions_only(tmp_path: Path) -> None:
    sessions = "amqpstore_server.management.pages.sessions"
    (tmp_path / "sitecustomize.py").write_text(f"import {sessions}\n{sessions}._MAX_SESSIONS = 4\n")
    with managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))) as broker:
        broker.environment["PYTHONPATH"] = str(tmp_path)
        broker.start()
        url = management_url(broker)
        with ManagementClient(url) as api, PageVisitor(url, "guest", "guest") as guest:
            api.put("/users/u", {**PASSWORD, "tags": "management"})
            with ExitStack() as stack:
                others = [stack.enter_context(PageVisitor(url, "u")) for _ in range(6)]
                seen = [one.session.get(f"{url}/queues", timeout=60) for one in (guest, *others)]
    stays = [answer.url.endswith("/queues") for answer in seen]
    assert stays == [True, *[False] * 3, *[True] * 3]


def test_after_a_login_comes_a_page_of_this_site(tmp_path: Path) -> None:
    """A browser leaves out tabs and ends of lines in an address, and then it begins with two
    slashes: another site.
    """
    with managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))) as broker:
        broker.start()
        url = management_url(broker)
        for asked, expected in FORWARDED.items():
            form = {"user": "guest", "password": "guest", "next": asked}
            answer = requests.post(f"{url}/login", form, allow_redirects=False, timeout=60)
            assert (answer.status_code, answer.headers["location"]) == (303, expected)
        assert "Traceback" not in broker.stderr
