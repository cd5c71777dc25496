"""Fixtures of the tests of the broker's core."""

import pytest

from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return SimulatedBroker()


@pytest.fixture
def client(simulated: SimulatedBroker) -> Client:
    return Client(simulated)
