"""Memory over days: whatever comes and goes, the broker's memory does not grow."""

import statistics
from pathlib import Path

import pytest

from tests.attack.attacker import resident_bytes
from tests.broker_process import CostlyPasswordsBroker
from tests.churn import CHURN
from tests.conformance.wire_client import WireClient
from tests.management_client import PASSWORD, ManagementClient, managed, management_url
from tests.waiting import wait_until

SETTLES, ROUNDS = 30, 100
"""Rounds after which caches and the allocator have what they need, and all of them."""

MEASURED = 10
"""The number of rounds in which memory is measured: it goes up and down by some MiB."""

MOST = 1.1


def administers(client: ManagementClient, which: int) -> None:
    """Do an operator's work: create, look at and delete things, under names that are new each
    time.
    """
    user, vhost = f"user-{which}", f"vhost-{which}"
    client.put(f"/vhosts/{vhost}", {})
    client.put(f"/users/{user}", {**PASSWORD, "tags": "management"})
    rights = {"configure": f"^{user}", "write": ".*", "read": ".*"}
    client.put(f"/permissions/{vhost}/{user}", rights)
    policy = {"pattern": f"^{user}", "definition": {"max-length": 5}}
    client.put(f"/policies/{vhost}/policy", policy)
    client.put(f"/queues/{vhost}/queue", {"durable": True})
    message = {"routing_key": "queue", "payload": "x", "payload_encoding": "string"}
    client.post(f"/exchanges/{vhost}/amq.default/publish", {**message, "properties": {}})
    for path in ("queues", "connections", "overview", "exchanges", f"queues/{vhost}/queue"):
        client.get(f"/{path}")
    client.delete(f"/vhosts/{vhost}")
    client.delete(f"/users/{user}")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_memory_is_flat_whatever_comes_and_goes(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    settled: list[int] = []
    last: list[int] = []
    with managed(CostlyPasswordsBroker(store, f"{store}.log")) as broker:
        broker.start()
        for number in range(ROUNDS):
            with WireClient.connected(broker.url, channels=1) as client:
                for churn in CHURN:
                    churn(broker.url, client)
            with ManagementClient(management_url(broker)) as operator:
                administers(operator, number)
            if SETTLES <= number < SETTLES + MEASURED:
                settled.append(resident_bytes(broker))
            last = [*last[1 - MEASURED :], resident_bytes(broker)]
        with ManagementClient(management_url(broker)) as operator:
            wait_until(lambda: not operator.get("/queues"), "the last queues have expired")
        assert "Traceback" not in broker.stderr, broker.log_tail()
    assert statistics.median(last) < MOST * statistics.median(settled), (settled, last)
