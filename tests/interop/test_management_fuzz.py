"""The API against its own description: no request that schemathesis draws is an internal error."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from schemathesis import openapi

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url

UNTOUCHED = ("/api/users/{user}", "/api/vhosts/{vhost}")
"""Whoever deletes at random would delete the user who asks."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    directory = tmp_path_factory.mktemp("management")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        yield management_url(broker)
        assert "management request failed" not in broker.stderr


def try_all(url: str, examples: int) -> int:
    """Send drawn requests to each path. Returns how many operations there are."""
    with ManagementClient(url) as client:
        described = openapi.from_dict(client.get("/openapi.json"))
        count = 0
        for result in described.get_all_operations():
            found: Any = result
            operation = found.ok()
            count += 1
            if operation.path not in UNTOUCHED:
                send(client, operation, examples)
        return count


def send(client: ManagementClient, operation: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def sending(case: Any) -> None:
        answer = case.call(base_url=client.url, session=client.session, timeout=60)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text

    sending()


@pytest.mark.long
def test_no_request_is_an_internal_error(url: str) -> None:
    assert try_all(url, 30) > 100
