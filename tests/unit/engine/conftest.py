"""Fixtures of the tests of the engine."""

from pathlib import Path

import pytest

from tests.unit.engine.stores import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path / "store"))
