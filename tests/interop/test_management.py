"""The management door of a real broker: logins, foreign pages, bodies, limits, and its stop."""

import base64
import gzip
import hashlib
import http.client
import json
import os
import socket
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.broker_process import BrokerProcess, BrokerStartError
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@pytest.fixture(scope="module")
def managed_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        yield broker


@pytest.fixture
def api(managed_broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(managed_broker)) as client:
        yield client


def raw(api: ManagementClient, request: bytes) -> tuple[int, bytes]:
    """Send bytes; returns the status and the body of the answer, 0 without one."""
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as client:
        client.sendall(request)
        answer = http.client.HTTPResponse(client)
        try:
            answer.begin()
        except (http.client.HTTPException, ConnectionError):
            return 0, b""
        return answer.status, answer.read()


def test_a_login_is_needed_and_its_tags(api: ManagementClient) -> None:
    assert api.get("/whoami")["tags"] == ["administrator"]
    with api.as_user("guest", "wrong") as wrong, api.as_user("nobody") as nobody:
        for client in (wrong, nobody):
            answer = client.request("GET", "/whoami")
            assert answer.status_code == 401
            # Programs look up their password by the realm, so it has to be RabbitMQ's.
            realm = 'Basic realm="RabbitMQ Management"'
            assert answer.headers["www-authenticate"] == realm
            assert answer.json() == {"error": "not_authorized", "reason": "Not_Authorized"}
    for header in ("Basic", "Basic !", "Basic Zw==", "Bearer x", "Digest x", "Bearer"):
        answer = api.session.get(
            f"{api.url}/api/whoami", headers={"authorization": header}, auth=_no_auth, timeout=60
        )
        assert answer.status_code in (400, 401), header


def _no_auth(request: Any) -> Any:
    return request


def test_every_answer_has_the_security_headers(api: ManagementClient) -> None:
    for method, path in (("GET", "/whoami"), ("GET", "/x"), ("PATCH", "/whoami"), ("GET", "/auth")):
        headers = api.request(method, path).headers
        assert {name: headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_methods_that_a_path_has_not_are_named(api: ManagementClient) -> None:
    answer = api.request("DELETE", "/whoami")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert api.request("OPTIONS", "/whoami").headers["allow"] == "GET, HEAD, OPTIONS"
    head, get = api.request("HEAD", "/vhosts"), api.request("GET", "/vhosts")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_what_a_request_says_is_in_no_header_of_its_answer(api: ManagementClient) -> None:
    """A line break in a name must not begin a header (CVE-2014-9650)."""
    forged = "a%0d%0aX-Injected:%201"
    for path in (f"/definitions?download={forged}", f"/queues/{forged}", f"/{forged}"):
        answer = api.request("GET", path)
        assert answer.status_code in (200, 404)
        assert "x-injected" not in answer.headers
        assert not any("njected" in value for value in answer.headers.values())


def test_a_body_is_not_decompressed(api: ManagementClient) -> None:
    body = gzip.compress(b"{}" + b" " * 1_000_000)
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = api.request("PUT", "/queues/%2F/compressed", data=body, headers=headers)
    assert answer.status_code == 415
    assert answer.json() == {
        "error": "unsupported_media_type",
        "reason": "the body has the content coding 'gzip': send it without one",
    }
    assert answer.headers["accept-encoding"] == "identity"
    api.expect(404, "GET", "/queues/%2F/compressed")


def test_an_empty_password_is_none(api: ManagementClient) -> None:
    """An empty password is refused even if it is the right one (CVE-2016-9877)."""
    salted = base64.b64encode(b"salt" + hashlib.sha256(b"salt").digest()).decode()
    for user, password_hash in (("without", ""), ("empty", salted)):
        api.put(f"/users/{user}", {"password_hash": password_hash, "tags": "administrator"})
    for user in ("guest", "without", "empty", ""):
        with api.as_user(user, "") as nobody:
            nobody.expect(401, "GET", "/whoami")
    for user in ("without", "empty"):
        api.delete(f"/users/{user}")


@pytest.mark.parametrize(
    "path", ["/vhosts/nothing", "/queues/%00", "/queues/%FF", "/queues/%2f/x/y/z"]
)
def test_what_is_not_there_is_404(api: ManagementClient, path: str) -> None:
    answer = api.request("GET", path)
    assert answer.status_code == 404
    found = answer.json()
    assert found.pop("detail")
    assert found == {"error": "Object Not Found", "reason": "Not Found"}


def test_what_is_no_http_ends_the_connection_and_nothing_else(api: ManagementClient) -> None:
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
        b"GET /api/whoami\r\n\r\n",
        b"GET /api/whoami HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
        b"GET http://x/api/whoami HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //x/../api/whoami HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        assert raw(api, request)[0] in (0, 303, 400, 401, 404, 431), request[:40]
    assert api.get("/whoami")["name"] == "guest"


def test_a_broker_whose_address_is_in_use_does_not_start(
    managed_broker: BrokerProcess, tmp_path: Any
) -> None:
    port = urlsplit(management_url(managed_broker)).port
    other = BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))
    other.environment["AMQPSTORE_MANAGEMENT_LISTEN"] = f"127.0.0.1:{port}"
    with pytest.raises(BrokerStartError) as caught:
        other.start()
    assert caught.value.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in caught.value.stderr


def test_a_stop_lets_requests_finish_and_takes_no_more(tmp_path: Any) -> None:
    with managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))) as broker:
        broker.start()
        url = management_url(broker)
        with ManagementClient(url) as api:
            assert api.get("/whoami")["name"] == "guest"
            # The connection is kept alive, and a silent one is open besides.
            silent = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
            with silent:
                assert broker.terminate() == 0
                assert silent.recv(1) == b""
    assert "Traceback" not in broker.stderr


def test_the_description_names_each_route(api: ManagementClient) -> None:
    found = api.get("/openapi.json")
    assert found["openapi"] == "3.1.0"
    assert "get" in found["paths"]["/api/queues/{vhost}"]
    ids = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))
    assert json.dumps(found)


def test_strangers_with_silent_connections_keep_nobody_out(managed_broker: BrokerProcess) -> None:
    """The API limits clients that have not logged in as the AMQP port does: see
    unit/server/test_doors.py.
    """
    url = urlsplit(management_url(managed_broker))
    silent = [socket.create_connection((url.hostname, url.port)) for _ in range(20)]
    try:
        with ManagementClient(management_url(managed_broker)) as api:
            wait_until(lambda: api.get("/whoami")["name"] == "guest")
    finally:
        for one in silent:
            one.close()
