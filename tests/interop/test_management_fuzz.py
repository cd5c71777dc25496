"""The API against its own description: its answers to requests that schemathesis draws, and to
requests for what exists, are as described, and never an internal error.
"""

from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from schemathesis import openapi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.broker_process import BrokerProcess
from tests.interop.pika_client import connect
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

UNTOUCHED = ("/api/users/{user}", "/api/vhosts/{vhost}")
"""Paths that are left alone: random deletes would delete the user who asks."""

CONFORMANCE: Any = [
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]

EXISTING = {
    **dict.fromkeys(("queue", "name", "destination"), "q"),
    **dict.fromkeys(("exchange", "source"), "amq.topic"),
    **dict.fromkeys(("policy", "parameter"), "p"),
    "vhost": "/",
    "user": "guest",
    "position": "1",
    "kind": "q",
    "properties_key": "k",
    "within": "1",
    "unit": "months",
    "protocol": "amqp",
    "component": "operator_policy",
    "password": "secret",
    "pattern": "^q",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    with managed(BrokerProcess(str(directory / "data"), str(directory / "log"))) as broker:
        broker.start()
        yield broker
        assert "management request failed" not in broker.stderr


def quoted(name: str) -> str:
    return quote(name, safe="")


def operations(client: ManagementClient) -> list[Any]:
    described: Any = openapi.from_dict(client.get("/openapi.json"))
    return [found.ok() for found in described.get_all_operations()]


def test_what_exists_is_shown_as_it_is_described(broker: BrokerProcess) -> None:
    url = management_url(broker)
    with ManagementClient(url) as client, connect(broker.url) as connection:
        names = define_all(client, connection)
        missing = set()
        for operation in operations(client):
            if operation.method.upper() != "GET":
                continue
            wanted = {
                one.name: quoted(names.get(one.name, "")) for one in operation.path_parameters
            }
            queries: list[dict[str, Any]] = [{}]
            if any(one.name == "page" for one in operation.query):
                queries.append({"page": 1})
            for query in queries:
                case = operation.Case(path_parameters=wanted, query=query)
                answer = case.call(base_url=url, session=client.session, timeout=60)
                case.validate_response(answer, checks=CONFORMANCE)
                if answer.status_code != 200:
                    missing.add(operation.path)
        assert missing == {
            "/api/messages/{id}/provenance",
            "/api/queues/quorum/{vhost}/{queue}/status",  # of a classic one
            "/api/store/reports/{name}",
        }


def define_all(api: ManagementClient, connection: pika.BlockingConnection) -> dict[str, str]:
    """Define one of each thing. Returns their names."""
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "k")
    channel.basic_publish("", "q", b"message")
    channel.basic_consume("q", lambda *_message: None)
    api.put("/policies/%2F/p", {"pattern": "x", "definition": {"max-length": 9}})
    api.put("/operator-policies/%2F/p", {"pattern": "x", "definition": {"max-length": 9}})
    api.put("/global-parameters/p", {"value": 1})
    rights = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
    api.put("/topic-permissions/%2F/guest", rights)
    wait_until(lambda: api.get("/channels"), "the channel")
    names = {**EXISTING}
    for kind in ("connection", "channel", "node"):
        (row,) = api.get(f"/{kind}s")
        names[kind] = row["name"]
    listeners = api.get("/overview")["listeners"]
    names["port"] = next(str(one["port"]) for one in listeners if one["protocol"] == "amqp")
    return names


def send(client: ManagementClient, operation: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def sending(case: Any) -> None:
        answer = case.call(base_url=client.url, session=client.session, timeout=60)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        case.validate_response(answer, checks=CONFORMANCE)

    sending()


@pytest.mark.long
def test_no_request_is_an_internal_error(broker: BrokerProcess) -> None:
    """Each request is answered as described."""
    with ManagementClient(management_url(broker)) as client:
        found = operations(client)
        assert len(found) > 100
        for operation in found:
            if operation.path not in UNTOUCHED:
                send(client, operation, 30)
