"""The limit of a table's entries is the same by whatever way it comes, and so is a pattern's
limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

import pika
import pika.exceptions
import pytest
import requests

from amqpstore_server.protocol.bounds import MAX_ARGUMENTS_DEPTH, MAX_BODY_ENTRIES, MAX_ENTRIES
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import connect
from tests.management_client import ManagementClient, managed_broker, management_url


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with managed_broker(tmp_path_factory.mktemp("bounds")) as process:
        yield process


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        client.put("/queues/%2F/q")
        yield client


Table = dict[str, Any]
Road = Callable[[BrokerProcess, ManagementClient, Table], str]
"""Sends a table. Returns why it was refused; empty if it was not."""


def publish(broker: BrokerProcess, _api: ManagementClient, table: Table) -> str:
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", "q", b"x", pika.BasicProperties(headers=table))
        except pika.exceptions.AMQPError as error:
            return str(error)
        channel.queue_purge("q")
        return ""


def declare(broker: BrokerProcess, _api: ManagementClient, table: Table) -> str:
    with connect(broker.url) as connection:
        channel = connection.channel()
        try:
            channel.queue_declare("declared", arguments=table)
        except pika.exceptions.AMQPError as error:
            return str(error)
        channel.queue_delete("declared")
        return ""


def refusal(api: ManagementClient, method: str, path: str, body: Any) -> str:
    answer = api.request(method, path, json=body)
    return answer.json()["reason"] if answer.status_code == 400 else ""


def publish_by_http(_broker: BrokerProcess, api: ManagementClient, table: Table) -> str:
    message = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    body = {**message, "properties": {"headers": table}}
    found = refusal(api, "POST", "/exchanges/%2F/amq.default/publish", body)
    api.delete("/queues/%2F/q/contents")
    return found


def declare_by_http(_broker: BrokerProcess, api: ManagementClient, table: Table) -> str:
    found = refusal(api, "PUT", "/queues/%2F/declared", {"arguments": table})
    if not found:
        api.delete("/queues/%2F/declared")
    return found


def bind_by_http(_broker: BrokerProcess, api: ManagementClient, table: Table) -> str:
    return refusal(api, "POST", "/bindings/%2F/e/amq.headers/q/q", {"arguments": table})


def explain(_broker: BrokerProcess, api: ManagementClient, table: Table) -> str:
    body = {"routing_key": "q", "headers": table}
    return refusal(api, "POST", "/exchanges/%2F/amq.headers/explain", body)


def import_(_broker: BrokerProcess, api: ManagementClient, table: Table) -> str:
    queue = {"name": "declared", "vhost": "/", "durable": True, "auto_delete": False}
    found = refusal(api, "POST", "/definitions", {"queues": [{**queue, "arguments": table}]})
    if not found:
        api.delete("/queues/%2F/declared")
    return found


ROADS = [publish, declare, publish_by_http, declare_by_http, bind_by_http, explain, import_]


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
def test_a_table_has_as_many_entries_by_each_road(
    broker: BrokerProcess, api: ManagementClient, road: Road
) -> None:
    def table(count: int) -> Table:
        # Most are inside: by whatever way an entry counts, it counts once.
        return {"x-note": [True] * (count - 3), "x-inside": {"x": 1}}

    assert road(broker, api, table(MAX_ENTRIES)) == ""
    assert f"more than {MAX_ENTRIES} entries" in road(broker, api, table(MAX_ENTRIES + 1))


@pytest.mark.parametrize("road", ROADS[1:], ids=lambda road: road.__name__)
def test_a_table_is_nested_as_deeply_by_each_road(
    broker: BrokerProcess, api: ManagementClient, road: Road
) -> None:
    def table(depth: int) -> Table:
        inside: Table = {}
        for _ in range(depth - 1):
            inside = {"x-note": inside}
        return inside

    assert road(broker, api, table(MAX_ARGUMENTS_DEPTH)) == ""
    assert "nested more than" in road(broker, api, table(MAX_ARGUMENTS_DEPTH + 1))


MANY = {str(number): 1 for number in range(MAX_BODY_ENTRIES)}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/queues/%2F/q/messages/delete", {"filter": {"headers": MANY}}),
        ("POST", "/queues/%2F/q/messages/move", {"positions": [1] * 20_000, "target": "q"}),
        ("PUT", "/users/u", {"password": "p", "tags": "", "x": MANY}),
        ("PUT", "/global-parameters/p", {"value": MANY}),
        ("POST", "/users/bulk-delete", {"users": ["u"] * 20_000}),
    ],
)
def test_a_body_has_a_limited_number_of_entries(
    api: ManagementClient, method: str, path: str, body: Table
) -> None:
    assert f"more than {MAX_BODY_ENTRIES} entries" in refusal(api, method, path, body)
    # Text does not count as entries, however many commas it has.
    text = json.dumps(body, indent=1)
    answer = api.request(method, path, data=json.dumps({"x": text}))
    assert "entries" not in answer.text


@pytest.mark.parametrize(
    "expression", ["a{0,999}" * 20, "(a*)*$" * 200, r"\pL" * 100, "[a]" * 3000]
)
def test_an_expression_of_a_request_takes_little_time(
    api: ManagementClient, expression: str
) -> None:
    query = {"page": "1", "use_regex": "true", "name": expression}
    answer = api.request("GET", "/queues", params=query)
    assert answer.status_code == 400
    assert "too long, or repeats too much" in answer.json()["reason"]
    wanted = {"filter": {"body": {"pattern": expression}}}
    assert "repeats too much" in refusal(api, "POST", "/queues/%2F/q/messages/delete", wanted)
    policy = {"pattern": expression * 8, "definition": {"max-length": 5}}
    assert "repeats too much" in refusal(api, "PUT", "/policies/%2F/p", policy)


def test_strangers_send_no_more_than_a_login(api: ManagementClient) -> None:
    for size, status in ((10_000, 401), (30_000, 400)):
        form = f"user=nobody&next=/&password={'%41' * size}"
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = requests.post(f"{api.url}/login", data=form, headers=headers, timeout=60)
        assert answer.status_code == status
