"""The pytest plug-in: fixtures that give a test a broker of its own, and show its log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from amqpstore_tools.testing.broker import MemoryBroker

_BROKERS = pytest.StashKey[list["MemoryBroker"]]()


@pytest.fixture
def amqp_broker_factory(request: pytest.FixtureRequest) -> Generator[Callable[..., MemoryBroker]]:
    """Start further AMQP brokers in this process; keyword arguments are settings of the
    configuration file.

    All of them end with the test, which fails if one had an internal error.
    """
    # Imported here, so that a run without such a test starts without the broker.
    from amqpstore_tools.testing.broker import MemoryBroker

    brokers = request.node.stash.setdefault(_BROKERS, [])

    def make(**settings: Any) -> MemoryBroker:
        broker = MemoryBroker(**settings)
        brokers.append(broker)
        return broker

    yield make
    errors = []
    for broker in brokers:
        try:
            broker.close()
        except Exception as error:  # noqa: BLE001 (the others are closed first)
            errors.append(error)
    if errors:
        raise errors[0]


@pytest.fixture
def amqp_broker(amqp_broker_factory: Callable[..., MemoryBroker]) -> MemoryBroker:
    """Start an AMQP broker in this process, on a disk in memory, whose time stands still: `url`,
    `crash()`, `reopen()`, `advance(seconds)`, `messages(queue)`.
    """
    return amqp_broker_factory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show below a failed test what its brokers have logged."""
    report = yield
    brokers = item.stash.get(_BROKERS, [])
    if report.failed:
        report.sections += [(f"amqp broker {broker.port}", broker.log) for broker in brokers]
    if call.when == "teardown":
        brokers.clear()  # items stay until the end of the run, disks need not
    return report
