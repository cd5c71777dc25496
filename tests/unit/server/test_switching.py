"""The interpreter's switch interval is short, and long while a round leaves clients waiting."""

import sys
from collections.abc import Iterator

import pytest

from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.switching import SwitchInterval

SHORT_S, LONG_S = LOOP_LIMITS.switch_s, LOOP_LIMITS.busy_switch_s


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The interval of the test's process, as it was."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_it_is_long_while_the_broker_is_busy_and_for_a_second_after() -> None:
    interval = SwitchInterval(LOOP_LIMITS)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S)
    interval.after_round(10.0, is_busy=False)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S)
    interval.after_round(10.0, is_busy=True)
    interval.after_round(10.9, is_busy=True)
    interval.after_round(11.8, is_busy=False)
    assert sys.getswitchinterval() == pytest.approx(LONG_S)
    interval.after_round(12.0, is_busy=False)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S)
    interval.after_round(12.1, is_busy=True)
    assert sys.getswitchinterval() == pytest.approx(LONG_S)
