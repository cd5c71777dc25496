import shutil
from pathlib import Path

import pytest

from tests.unit.offline.stores import make_busy


@pytest.fixture(scope="session")
def busy_original(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_busy(str(tmp_path_factory.mktemp("spark") / "store"))


@pytest.fixture
def busy(busy_original: str, tmp_path: Path) -> str:
    """A store with several segments, index files, a compacted segment, and a log behind that."""
    return str(shutil.copytree(busy_original, tmp_path / "busy"))
