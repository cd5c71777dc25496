"""The broker core against a plain model, in every history that hypothesis comes up with."""

import pytest
from hypothesis import settings

import amqpstore.index_writer
import amqpstore.keeper
from tests.property.broker_machine import BrokerAgainstModel


@pytest.fixture(autouse=True)
def small_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files are full, and runs leave memory, after a few."""
    monkeypatch.setattr(amqpstore.index_writer, "ENTRIES_A_FILE", 4)
    monkeypatch.setattr(amqpstore.keeper, "_MOST_RUNS", 1)


TestBrokerAgainstModel = BrokerAgainstModel.TestCase
TestBrokerAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
