"""Dead letters that go at least once, with pika and the management API, through a kill."""

from collections.abc import Generator
from typing import Any

import pytest
import requests
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.conformance.topology import session
from tests.interop.pika_client import drain, publish_confirmed
from tests.management_client import (
    ManagementClient,
    keep_management_port,
    managed,
    management_url,
)
from tests.waiting import wait_until

ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-overflow": "reject-publish",
    "x-dead-letter-strategy": "at-least-once",
    "x-dead-letter-exchange": "dlx",
}
BODIES = [b"%d" % number for number in range(60)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("letters")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with process:
        process.start()
        keep_management_port(process)
        yield process


def row(broker: BrokerProcess, name: str = "work") -> dict[str, Any]:
    with ManagementClient(management_url(broker)) as api:
        found: dict[str, Any] = api.get(f"/queues/%2F/{name}")
        return found


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    return [one.body for one in drain(channel, queue)]


def test_letters_wait_through_a_kill_and_arrive_once(broker: BrokerProcess) -> None:
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("work", durable=True, arguments=ARGUMENTS)
        publish_confirmed(channel, "work", BODIES)
        for _ in BODIES:
            method, _, _ = channel.basic_get("work")
            assert method is not None
            channel.basic_reject(method.delivery_tag or 0, requeue=False)
        wait_until(lambda: row(broker)["messages_dlx"] == 60, "the letters")
        counts = row(broker)
        assert (counts["messages"], counts["messages_ready"]) == (60, 0)
        assert counts["message_bytes_dlx"] == sum(map(len, BODIES))
        assert counts["messages_dlx_reasons"] == {"there is no exchange 'dlx'": 60}
        channel.exchange_declare("dlx", "fanout", durable=True)
        full = {"x-max-length": 30, "x-overflow": "reject-publish"}
        for name, arguments in (("half", full), ("all", {})):
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_bind(name, "dlx")
        reasons = {"queue 'half' is full": 30}
        wait_until(lambda: row(broker)["messages_dlx_reasons"] == reasons, "the first half")
        broker.kill()
    broker.restart()
    with session(broker.url) as connection:
        channel = connection.channel()
        first = bodies(channel, "half")
        wait_until(lambda: row(broker)["messages_dlx"] == 0, "the second half")
        # Until their transaction is durable, letters on their way are in neither queue.
        rest: list[bytes] = []

        def arrives() -> bool:
            rest.extend(bodies(channel, "half"))
            return len(rest) >= len(BODIES) - len(first)

        wait_until(arrives, "the second half")
        assert first + rest == BODIES
        assert bodies(channel, "all") == BODIES
    assert row(broker)["messages"] == 0


def test_what_lacks_something_is_noted_where_it_is_asked_for(broker: BrokerProcess) -> None:
    asked: dict[str, Any] = {
        "durable": True,
        "arguments": {"x-dead-letter-strategy": "at-least-once"},
    }
    url = f"{management_url(broker)}/api/queues/%2F/lacking"
    answer = requests.put(url, json=asked, auth=("guest", "guest"), timeout=60)
    assert "at-least-once" in answer.headers["x-amqpstore-notes"]
    (note,) = row(broker, "lacking")["notes"]
    assert note in answer.headers["x-amqpstore-notes"]
