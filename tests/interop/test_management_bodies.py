"""Fields of requests that nothing reads: they are taken with a note, by every road. A field that is
read and has a wrong type is refused by its name.
"""

from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from amqpstore_server.management.resources import ROUTES
from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url

PUBLISHED = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
DEFINED = {"pattern": "^p", "definition": {"max-length": 5}}

BODIES: dict[tuple[str, str], tuple[str, dict[str, Any], tuple[str, Any]]] = {
    ("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"): (
        "/bindings/%2F/e/amq.topic/q/q",
        {
            "vhost": "/",
            "source": "amq.topic",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "k",
            "arguments": {},
        },
        ("routing_key", 5),
    ),
    ("PUT", "/api/exchanges/{vhost}/{exchange}"): (
        "/exchanges/%2F/e",
        {"vhost": "/", "name": "e", "type": "topic", "durable": True, "arguments": {}},
        ("internal", "maybe"),
    ),
    ("PUT", "/api/vhost-limits/{vhost}/{limit}"): (
        "/vhost-limits/%2F/max-queues",
        {"vhost": "/", "name": "max-queues", "value": 5000},
        ("value", "many"),
    ),
    ("PUT", "/api/user-limits/{user}/{limit}"): (
        "/user-limits/guest/max-channels",
        {"user": "guest", "name": "max-channels", "value": 5000},
        ("value", "many"),
    ),
    ("PUT", "/api/cluster-name"): ("/cluster-name", {"name": "here"}, ("name", 5)),
    ("PUT", "/api/parameters/{component}/{vhost}/{parameter}"): (
        "/parameters/operator_policy/%2F/p",
        {"component": "operator_policy", "vhost": "/", "name": "p", "value": DEFINED},
        ("value", 5),
    ),
    ("PUT", "/api/global-parameters/{parameter}"): (
        "/global-parameters/g",
        {"name": "g", "value": {"anything": 1}},
        ("value", None),
    ),
    ("PUT", "/api/policies/{vhost}/{policy}"): (
        "/policies/%2F/p",
        {"vhost": "/", "name": "p", "apply-to": "queues", "priority": 1, **DEFINED},
        ("priority", "high"),
    ),
    ("PUT", "/api/operator-policies/{vhost}/{policy}"): (
        "/operator-policies/%2F/p",
        {"vhost": "/", "name": "p", "apply-to": "queues", "priority": 1, **DEFINED},
        ("definition", "max"),
    ),
    ("POST", "/api/exchanges/{vhost}/{exchange}/publish"): (
        "/exchanges/%2F/amq.default/publish",
        {"vhost": "/", "name": "amq.default", "properties": {"delivery_mode": 2}, **PUBLISHED},
        ("payload", 5),
    ),
    ("POST", "/api/queues/{vhost}/{queue}/get"): (
        "/queues/%2F/q/get",
        {"vhost": "/", "name": "q", "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        ("count", "all"),
    ),
    ("PUT", "/api/queues/{vhost}/{queue}"): (
        "/queues/%2F/q",
        {
            "vhost": "/",
            "name": "q",
            "type": "classic",
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "arguments": {},
            "node": None,
        },
        ("durable", "maybe"),
    ),
    ("POST", "/api/queues/{vhost}/{queue}/actions"): (
        "/queues/%2F/q/actions",
        {"vhost": "/", "name": "q", "action": "sync"},
        ("action", 5),
    ),
    ("POST", "/api/queues/{vhost}/{name}/purge/undo"): ("/queues/%2F/q/purge/undo", {}, ("", None)),
    ("POST", "/api/exchanges/{vhost}/{exchange}/explain"): (
        "/exchanges/%2F/amq.default/explain",
        {"vhost": "/", "routing_key": "q", "properties": {}},
        ("routing_key", 5),
    ),
    ("POST", "/api/users/bulk-delete"): ("/users/bulk-delete", {"users": []}, ("users", "guest")),
    ("POST", "/api/auth/hash_password"): (
        "/auth/hash_password",
        {"password": "secret"},
        ("password", 5),
    ),
    ("PUT", "/api/users/{user}"): (
        "/users/u",
        {"name": "", "password": "secret", "tags": "", "limits": {"max-channels": 7}},
        ("limits", 5),
    ),
    ("PUT", "/api/permissions/{vhost}/{user}"): (
        "/permissions/%2F/guest",
        {"vhost": "/", "user": "guest", "configure": ".*", "write": ".*", "read": ".*"},
        ("read", 5),
    ),
    ("PUT", "/api/topic-permissions/{vhost}/{user}"): (
        "/topic-permissions/%2F/guest",
        {"vhost": "/", "user": "guest", "exchange": "amq.topic", "write": ".*", "read": ".*"},
        ("exchange", 5),
    ),
    ("PUT", "/api/vhosts/{vhost}"): (
        "/vhosts/v",
        {"name": "v", "description": "d", "tags": "a,b", "default_queue_type": "classic"},
        ("tracing", "maybe"),
    ),
}
"""Requests by method and path: the path of a request, a body as programs for RabbitMQ send it, and
a field with a wrong value.
"""

UNDO = ("POST", "/api/queues/{vhost}/{name}/purge/undo")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("bodies")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with process:
        process.start()
        yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        client.put("/queues/%2F/q", {}, status=201 if "q" not in names(client) else 204)
        yield client


def names(api: ManagementClient) -> list[str]:
    return [queue["name"] for queue in api.get("/queues/%2F")]


def noted(api: ManagementClient, method: str, path: str, body: Any) -> str:
    """Return the notes on a request that is taken."""
    if path.endswith("/undo"):
        api.post("/exchanges/%2F/amq.default/publish", PUBLISHED)
        api.put("/policies/%2F/undo", {"pattern": "^q$", "definition": {"purge-undo-seconds": 60}})
        api.delete("/queues/%2F/q/contents")
    answer = api.request(method, path, json=body)
    assert answer.status_code in (200, 201, 204), answer.text
    if path.endswith("/undo"):
        api.delete("/policies/%2F/undo")
    return str(answer.headers.get("x-amqpstore-notes", ""))


def test_every_route_with_a_body_is_here() -> None:
    """Bodies that are missing here refuse unknown fields."""
    found = {
        (route.method, route.path)
        for route in ROUTES
        if isinstance(route.body, type)
        and issubclass(route.body, msgspec.Struct)
        and not route.body.__struct_config__.forbid_unknown_fields
    }
    assert found == set(BODIES)


@pytest.mark.parametrize("route", BODIES)
def test_an_unknown_field_is_noted(api: ManagementClient, route: tuple[str, str]) -> None:
    path, body, _ = BODIES[route]
    usual = noted(api, route[0], path, body)
    assert "field" not in usual
    more = noted(api, route[0], path, {**body, "sparkles": {"a": 1}})
    assert "field 'sparkles' has no effect: nothing reads it" in more
    if "vhost" in body:
        assert "field 'vhost' has no effect: the path" in noted(
            api, route[0], path, {**body, "vhost": "another"}
        )


@pytest.mark.parametrize("route", [route for route in BODIES if route != UNDO])
def test_a_field_of_a_wrong_type_is_refused_by_its_name(
    api: ManagementClient, route: tuple[str, str]
) -> None:
    path, body, (field, wrong) = BODIES[route]
    reason = api.expect(400, route[0], path, {**body, field: wrong})["reason"]
    assert field in reason


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        ("/queues/%2F/m", "arguements", "arguments"),
        ("/queues/%2F/m", "auto-delete", "auto_delete"),
        ("/exchanges/%2F/m", "intrenal", "internal"),
        ("/policies/%2F/m", "apply_to", "apply-to"),
        ("/vhosts/m", "default-queue-type", "default_queue_type"),
    ],
)
def test_what_a_misspelt_field_may_mean_is_said(
    api: ManagementClient, path: str, field: str, meant: str
) -> None:
    body = DEFINED if "policies" in path else {}
    told = noted(api, "PUT", path, {**body, field: {}})
    assert told == f"field '{field}' has no effect: is '{meant}' meant?"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/queues/%2F/n", {"exclusive": True}, "field 'exclusive' has no effect: an exclusive"),
        ("/queues/%2F/n", {"type": "quorum"}, "field 'type' has no effect: the argument 'x-que"),
        ("/queues/%2F/n", {"node": "other@h"}, "field 'node' has no effect: there is no other"),
        ("/vhosts/n", {"metadata": {"a": 1}}, "field 'metadata' has no effect"),
        (
            "/parameters/operator_policy/%2F/n",
            {"value": {**DEFINED, "aply-to": "queues"}},
            "field 'aply-to' has no effect: is 'apply-to' meant?",
        ),
    ],
)
def test_a_known_field_that_does_nothing_here_is_noted(
    api: ManagementClient, path: str, body: dict[str, Any], told: str
) -> None:
    assert told in noted(api, "PUT", path, body)


def test_a_property_that_a_message_does_not_have_is_noted(api: ManagementClient) -> None:
    body = {**PUBLISHED, "properties": {"delivery-mode": 2}}
    told = noted(api, "POST", "/exchanges/%2F/amq.default/publish", body)
    assert told == "field 'delivery-mode' of properties has no effect: is 'delivery_mode' meant?"


def test_limits_of_a_user_act(api: ManagementClient) -> None:
    body = {"password": "secret", "tags": "", "limits": {"max-connections": 3}}
    assert noted(api, "PUT", "/users/limited", body) == ""
    assert api.get("/users/limited")["limits"] == {"max-connections": 3}
    del body["limits"]
    assert noted(api, "PUT", "/users/limited", body) == ""
    assert api.get("/users/limited")["limits"] == {"max-connections": 3}
    wrong = {**body, "limits": {"max-connectoins": 3}}
    assert "max-connections" in api.put("/users/limited", wrong, 400)["reason"]


def test_what_of_a_user_has_no_effect_is_noted(api: ManagementClient) -> None:
    body = {"password": "x", "tags": "monitoring,own"}
    body["hashing_algorithm"] = "rabbit_password_hashing_sha512"
    told = noted(api, "PUT", "/users/tagged", body)
    assert told == (
        "tag 'own' of a user has no effect: there are administrator, monitoring, policymaker, "
        "management, impersonator; field 'hashing_algorithm' has no effect: it is of "
        "`password_hash`, and a password is hashed with argon2"
    )
    assert api.get("/users/tagged")["tags"] == ["monitoring", "own"]


def test_what_a_delete_is_asked_beside_its_parameters_is_noted(api: ManagementClient) -> None:
    api.put("/queues/%2F/gone", {})
    reason = api.expect(400, "DELETE", "/queues/%2F/gone?if-unused=1")["reason"]
    assert "if-unused" in reason
    told = noted(api, "DELETE", "/queues/%2F/gone?if_empty=true", {"if-unused": True, "vhost": "/"})
    assert told == (
        "parameter 'if_empty' has no effect: is 'if-empty' meant?; "
        "field 'if-unused' has no effect: nothing reads it"
    )


def test_an_import_notes_what_nothing_reads(api: ManagementClient) -> None:
    queues = [{"name": "i", "vhost": "/", "arguements": {}}]
    told = noted(api, "POST", "/definitions", {"rabbit_version": "4.1.0", "queues": queues})
    assert told == "field 'arguements' of queue 'i' has no effect: is 'arguments' meant?"
    told = noted(api, "POST", "/definitions/%2F", {"users": [{"name": "x"}], "queues": queues})
    assert told.endswith("; field 'users' has no effect: the definitions are of vhost '/' alone")
