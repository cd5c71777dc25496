"""Tests run with the interpreter's options that were given, wherever they run."""

import sys

import pytest


def test_workers_have_the_options_of_the_process_that_starts_them(
    pytestconfig: pytest.Config,
) -> None:
    given = getattr(pytestconfig, "workerinput", {}).get("flags", [*sys.flags])
    assert [*sys.flags] == given
