"""Fixtures for the fuzz tests."""

import logging
from collections.abc import Generator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Generator[None]:
    """Every bad client is worth a line in the log, and here nearly all are bad."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
