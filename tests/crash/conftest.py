"""All histories of the crash tests run under small limits."""

import pytest

from tests.small_limits import set_small_limits


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    set_small_limits(monkeypatch, entries_a_file=6, most_runs=2)
