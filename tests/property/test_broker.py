"""The broker core against a plain model, in whatever histories hypothesis comes up with.

What the broker promises is in `broker_model`; to read it, begin with `publish` there. And a guard
is trusted once it was seen to fail: with a bug in the broker, any of `broker_bugs`, it does.
"""

from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import get_state_machine_test, run_state_machine_as_test

from tests.property.broker_bugs import BUGS, FOUND, HISTORIES
from tests.property.broker_machine import BrokerAgainstModel

# Hypothesis takes up to five minutes to make a history short in which they disagree.
TestBrokerAgainstModel = pytest.mark.timeout(600)(BrokerAgainstModel.TestCase)
TestBrokerAgainstModel.settings = settings(
    max_examples=250,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


UNTIL_IT_FAILS = settings(
    max_examples=2_000,
    stateful_step_count=30,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
"""The examples are always the same, and there are far more than a bug needs to show."""


LONG_HISTORIES = settings(max_examples=600, stateful_step_count=60)


@pytest.mark.long
@pytest.mark.rounds(10)
def test_long_histories(seed: int) -> None:
    run = get_state_machine_test(BrokerAgainstModel, settings=LONG_HISTORIES)
    hypothesis.seed(seed)(run)()


@pytest.mark.parametrize(
    "history", dict.fromkeys((*HISTORIES.values(), *FOUND)), ids=lambda told: told.__name__
)
def test_without_a_bug_a_history_is_as_it_should_be(
    history: Callable[[BrokerAgainstModel], None],
) -> None:
    told(history)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_broker_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    # Some bugs make the broker itself stumble, which is caught as well.
    with pytest.raises((AssertionError, LookupError, ValueError)):
        if bug in HISTORIES:
            told(HISTORIES[bug])
        else:
            run_state_machine_as_test(BrokerAgainstModel, settings=UNTIL_IT_FAILS)


def told(history: Callable[[BrokerAgainstModel], None]) -> None:
    broker = BrokerAgainstModel()
    history(broker)
    broker.teardown()
