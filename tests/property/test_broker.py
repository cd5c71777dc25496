"""The broker core against a plain model, in whatever histories hypothesis comes up with.

What the broker promises is in `broker_model`; to read it, begin with `publish` there. And a guard
is trusted once it was seen to fail: with a bug in the broker, any of `broker_bugs`, it does.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import amqpstore.index_writer
import amqpstore.keeper
from tests.property.broker_bugs import BUGS, QUEUES
from tests.property.broker_machine import BrokerAgainstModel


@pytest.fixture(autouse=True)
def small_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files are full, and runs leave memory, after a few."""
    monkeypatch.setattr(amqpstore.index_writer, "ENTRIES_A_FILE", 4)
    monkeypatch.setattr(amqpstore.keeper, "_MOST_RUNS", 1)


TestBrokerAgainstModel = BrokerAgainstModel.TestCase
TestBrokerAgainstModel.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


class LongHistories(BrokerAgainstModel):
    """The same with more examples, of more steps."""


TestLongHistories = pytest.mark.long(pytest.mark.timeout(3600)(LongHistories.TestCase))
TestLongHistories.settings = settings(max_examples=10_000, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_broker_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithABug(BrokerAgainstModel):
        first_queues = QUEUES.get(bug)

    bug(monkeypatch)
    # Some bugs make the broker itself stumble, which is caught as well.
    with pytest.raises((AssertionError, LookupError, ValueError)):
        run_state_machine_as_test(
            WithABug,
            settings=settings(
                max_examples=600,
                stateful_step_count=30,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
