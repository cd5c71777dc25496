"""Who may see and do what over HTTP: each verb needs its tag, and permissions where it works."""

from collections.abc import Generator

import pytest

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[ManagementClient]:
    directory = tmp_path_factory.mktemp("management")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        with ManagementClient(management_url(broker)) as client:
            client.put("/vhosts/other")
            for tag in ("none", "management", "policymaker", "monitoring", "administrator"):
                body = {"password": "password", "tags": "" if tag == "none" else tag}
                client.put(f"/users/{tag}", body)
                client.put(f"/permissions/%2F/{tag}", ALL)
            client.put("/users/poor", {"password": "password", "tags": "management"})
            client.put("/permissions/%2F/poor", NOTHING)
            client.put("/queues/other/secret")
            client.put("/queues/%2F/own")
            yield client


@pytest.mark.parametrize(
    ("user", "path", "status"),
    [
        ("none", "/whoami", 401),
        ("management", "/whoami", 200),
        ("management", "/queues/%2F/own", 200),
        ("management", "/queues/other/secret", 401),
        ("management", "/users", 401),
        ("management", "/nodes", 401),
        ("management", "/policies", 401),
        ("management", "/definitions", 401),
        ("policymaker", "/policies/%2F", 200),
        ("policymaker", "/policies/other", 401),
        ("policymaker", "/users", 401),
        ("monitoring", "/queues/other/secret", 200),
        ("monitoring", "/nodes", 200),
        ("monitoring", "/users", 401),
        ("administrator", "/users", 200),
        ("administrator", "/definitions", 200),
    ],
)
def test_what_may_be_seen(api: ManagementClient, user: str, path: str, status: int) -> None:
    with api.as_user(user) as client:
        client.expect(status, "GET", path)


def test_lists_have_what_may_be_seen(api: ManagementClient) -> None:
    with api.as_user("management") as client:
        assert [row["name"] for row in client.get("/queues")] == ["own"]
        assert [row["name"] for row in client.get("/vhosts")] == ["/"]
        assert {row["vhost"] for row in client.get("/bindings")} == {"/"}
    with api.as_user("monitoring") as client:
        assert {row["name"] for row in client.get("/queues")} == {"own", "secret"}


@pytest.mark.parametrize("user", ["management", "policymaker", "monitoring"])
def test_what_takes_an_administrator(api: ManagementClient, user: str) -> None:
    with api.as_user(user) as client:
        for method, path in (
            ("PUT", "/users/new"),
            ("DELETE", "/users/guest"),
            ("POST", "/users/bulk-delete"),
            ("PUT", "/vhosts/new"),
            ("DELETE", "/vhosts/other"),
            ("PUT", f"/permissions/other/{user}"),
            ("PUT", "/operator-policies/%2F/p"),
            ("PUT", "/vhost-limits/%2F/max-queues"),
            ("PUT", "/user-limits/guest/max-connections"),
            ("POST", "/definitions"),
            ("PUT", "/cluster-name"),
            ("DELETE", "/connections/username/guest"),
            ("PUT", "/queues/other/new"),
            ("DELETE", "/queues/other/secret"),
            ("DELETE", "/queues/other/secret/contents"),
            ("POST", "/queues/other/secret/get"),
            ("POST", "/exchanges/other/amq.default/publish"),
        ):
            client.expect(401, method, path, {})


def test_permissions_count_as_they_do_for_amqp(api: ManagementClient) -> None:
    message = {"routing_key": "own", "payload": "x", "payload_encoding": "string"}
    got = {"ackmode": "ack_requeue_false"}
    with api.as_user("poor") as client:
        client.put("/queues/%2F/new", status=401)
        client.delete("/queues/%2F/own", status=401)
        client.delete("/queues/%2F/own/contents", status=401)
        client.post("/exchanges/%2F/amq.default/publish", message, status=401)
        client.post("/queues/%2F/own/get", got, status=401)
        client.post("/bindings/%2F/e/amq.topic/q/own", {"routing_key": "x"}, status=401)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    api: ManagementClient, headers: dict[str, str]
) -> None:
    for method, path in (("PUT", "/queues/%2F/forged"), ("DELETE", "/queues/%2F/own")):
        api.expect(403, method, path, {}, headers=headers)
    assert [row["name"] for row in api.get("/queues/%2F")] == ["own"]
    own = {"origin": api.url, "sec-fetch-site": "same-origin"}
    api.expect(204, "PUT", "/queues/%2F/own", {}, headers=own)
