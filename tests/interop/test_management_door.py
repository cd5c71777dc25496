"""The door of the management API: TLS, pages of other origins, large bodies."""

from collections.abc import Generator
from pathlib import Path

import pytest
import requests

from tests.broker_process import BrokerProcess
from tests.interop.tls_files import TlsFiles
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

PAGE = "https://ops.example"
MAX_BODY_BYTES = 2000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(str(tmp_path_factory.mktemp("tls") / "files"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    settings = {
        "MANAGEMENT_LISTEN": "",
        "MANAGEMENT_TLS_LISTEN": "127.0.0.1:0",
        "MANAGEMENT_CORS_ORIGINS": PAGE,
        "MANAGEMENT_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
    }
    environment = {f"AMQPSTORE_{name}": value for name, value in settings.items()}
    environment |= files.environment()
    with BrokerProcess(
        str(directory / "data"), str(directory / "log"), environment=environment
    ) as process:
        process.start()
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def api(broker: BrokerProcess, files: TlsFiles) -> Generator[ManagementClient]:
    url = management_url(broker).replace("127.0.0.1", "localhost")
    with ManagementClient(url) as client:
        client.session.verify = files.path("ca.pem")
        yield client


def test_it_is_served_over_tls_and_only_so(api: ManagementClient, broker: BrokerProcess) -> None:
    assert api.url.startswith("https://")
    assert api.get("/whoami")["name"] == "guest"
    with pytest.raises(requests.ConnectionError):
        requests.get(api.url.replace("https", "http"), timeout=60)
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{api.url}/api/whoami", timeout=60)  # it is of no known CA
    listeners = {(one["protocol"], one["tls"]) for one in api.get("/overview")["listeners"]}
    assert ("https", True) in listeners
    assert "http" not in {name for name, _ in listeners}


def test_a_page_of_an_allowed_origin_may_ask_without_credentials(api: ManagementClient) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "PUT"}
    # A browser asks first, and without a login.
    answer = requests.options(
        f"{api.url}/api/queues/%2F/q", headers=asked, verify=api.session.verify, timeout=60
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    for headers, allowed in (
        ({"origin": PAGE}, PAGE),
        ({"origin": f"{PAGE}.evil.example"}, None),
        ({"origin": "http://ops.example"}, None),
        ({"origin": "null"}, None),
        ({"origin": "*"}, None),
        ({}, None),
    ):
        answer = api.request("GET", "/whoami", headers=headers)
        assert answer.headers.get("access-control-allow-origin") == allowed, headers
        # What it may keep is for this origin only, and never with a login that the browser knows.
        assert answer.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in answer.headers
    from_page = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    api.expect(201, "PUT", "/queues/%2F/ours", {}, headers=from_page)
    for origin in ("https://evil.example", f"{PAGE}.evil.example", PAGE.removesuffix("e")):
        foreign = {"origin": origin, "sec-fetch-site": "cross-site"}
        api.expect(403, "PUT", "/queues/%2F/theirs", {}, headers=foreign)
    # The scheme and the port are a part of an origin.
    other = {"origin": api.url.replace("https", "http")}
    api.expect(403, "PUT", "/queues/%2F/theirs", {}, headers=other)


FORM = (
    b"--x\r\nContent-Disposition: form-data; name=file; filename=d.json\r\n"
    b"Content-Type: application/json\r\n\r\n%s\r\n--x--\r\n"
)
BODY = b'{"auto_delete": true, "arguments": {"x-max-length": 7}}'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain;charset=UTF-8", BODY),  # fetch of a text, StringContent of .NET
        ("application/x-www-form-urlencoded", BODY),  # curl -d
        ("multipart/form-data; boundary=x", FORM % BODY),  # curl -F file=@definitions.json
        ("multipart/form-data; boundary=x", FORM.replace(b"; filename=d.json", b"") % BODY),
        ("application/json", b"\xef\xbb\xbf" + BODY),
        ("", BODY),
    ],
)
def test_a_body_is_json_whatever_it_says_to_be(
    api: ManagementClient, kind: str, body: bytes
) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = api.request("PUT", "/queues/%2F/formed", headers=headers, data=body)
    assert answer.status_code == 201, answer.text
    assert api.get("/queues/%2F/formed")["arguments"] == {"x-max-length": 7}
    api.delete("/queues/%2F/formed")
    # A form needs no permission of the browser, whatever the page: only where it comes from counts.
    for foreign in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        answer = api.request("PUT", "/queues/%2F/formed", headers=headers | foreign, data=body)
        assert answer.status_code == 403
    assert api.request("GET", "/queues/%2F/formed").status_code == 404


@pytest.mark.parametrize("body", [b"", b"--x--", FORM % BODY + FORM % BODY, b"{}"])
def test_a_form_without_one_file_is_refused(api: ManagementClient, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    if body.count(b"--x\r\n") > 1:
        body = body.replace(b"--x--\r\n", b"", 1)
    answer = api.request("PUT", "/queues/%2F/formed", headers=headers, data=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"


def test_a_body_is_read_up_to_its_limit(api: ManagementClient) -> None:
    def filled(byte_count: int) -> bytes:
        return b'{"durable":true' + b" " * (byte_count - 16) + b"}"

    api.expect(201, "PUT", "/queues/%2F/full", None, data=filled(MAX_BODY_BYTES))
    # The answer to a much larger body may be lost: see attack/test_management.py.
    for size in (MAX_BODY_BYTES + 1, 2 * MAX_BODY_BYTES):
        whole = filled(size)
        # By its length, and in chunks, whose number is not announced.
        for data in (whole, iter([whole[:1000], whole[1000:]])):
            answer = api.request("PUT", "/queues/%2F/over", data=data)
            assert answer.status_code == 400
            assert f"body size limit of {MAX_BODY_BYTES} bytes" in answer.json()["reason"]
    assert {row["name"] for row in api.get("/queues/%2F")} >= {"full"}
    assert api.request("GET", "/queues/%2F/over").status_code == 404


def test_parameters_and_names_are_there_after_a_restart(tmp_path: Path) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"}
    with managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))) as process:
        process.start()
        with ManagementClient(management_url(process)) as api:
            api.put("/parameters/operator_policy/%2F/up%2F1", {"value": policy})
            api.put("/global-parameters/mqtt_port_to_vhost_mapping", {"value": {"1": "/"}})
            api.put("/cluster-name", {"name": "ours"}, 204)
            api.put("/vhost-limits/%2F/max-queues", {"value": 7}, 204)
            api.put("/vhosts/v%2F1", {"description": "d", "tags": "a,b"})
            paths = ("/parameters", "/global-parameters", "/cluster-name", "/vhost-limits")
            described = ("name", "description", "tags", "metadata")
            before = [api.get(path) for path in paths]
            vhost = api.get("/vhosts/v%2F1", columns=",".join(described))
        process.kill()
        process.start()
        wait_until(lambda: process.stderr.count('event="management API"') == 2)
        with ManagementClient(management_url(process)) as api:
            assert [api.get(path) for path in paths] == before
            assert api.get("/vhosts/v%2F1", columns=",".join(described)) == vhost
            assert vhost["tags"] == ["a", "b"]
            assert api.get("/parameters/operator_policy/%2F/up%2F1")["value"] == policy
