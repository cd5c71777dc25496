"""Clients that come and go leave no objects that refer to each other: only a collection would free
them, and it comes seldom. `test_freed` has what one client leaves.
"""

from collections import Counter
from collections.abc import Callable, Generator

import pytest

from amqpstore_tools.testing.broker import MemoryBroker
from tests.churn import CHURN, Churn
from tests.conformance.wire_client import WireClient


@pytest.fixture(scope="module")
def broker() -> Generator[MemoryBroker]:
    with MemoryBroker() as running:
        yield running


@pytest.mark.parametrize("churn", CHURN, ids=lambda churn: churn.__name__)
def test_churn_leaves_nothing_to_collect(
    broker: MemoryBroker, unreachable: Callable[[], Counter[str]], churn: Churn
) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        churn(broker.url, client)
    broker.advance(20)
    assert broker.queues() == []
    assert unreachable() == {}
