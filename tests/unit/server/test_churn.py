"""What comes and goes leaves no objects that refer to each other: only a collection would free
them, and it comes seldom. `test_freed` has what one client leaves.
"""

import gc
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


@pytest.fixture(scope="module")
def only_what_is_new() -> Generator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def unreachable(only_what_is_new: None) -> Generator[Callable[[], Counter[str]]]:
    """Counts our objects that only a collection frees, by their types."""

    def counted() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage)
        return Counter({name: found[name] for name in found if name.startswith("amqpstore")})

    gc.collect()
    gc.disable()
    yield counted
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("churn", CHURN, ids=lambda churn: churn.__name__)
def test_churn_leaves_nothing_to_collect(
    broker: MemoryBroker, unreachable: Callable[[], Counter[str]], churn: Churn
) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        churn(broker.url, client)
    broker.advance(20)
    assert broker.queues() == []
    assert unreachable() == {}
