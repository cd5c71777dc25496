"""Tests of what signals do with a tool that runs."""

import signal

import pytest

from amqpstore_tools.offline.exits import run_tool


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_tool_cleans_up_when_it_is_to_end(number: signal.Signals) -> None:
    done = []

    def tool() -> None:
        try:
            signal.raise_signal(number)
        finally:
            done.append("cleaned up")

    before = signal.getsignal(number)
    assert run_tool("copy", tool) == 130
    assert done == ["cleaned up"]
    assert signal.getsignal(number) is before


def test_under_nohup_the_end_of_the_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_tool("copy", lambda: signal.raise_signal(signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
