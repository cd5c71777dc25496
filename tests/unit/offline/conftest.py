import shutil
from pathlib import Path

import pytest

from tests.unit.offline.stores import Command, Outcome, make_busy, run_command


@pytest.fixture(scope="session")
def busy_original(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_busy(str(tmp_path_factory.mktemp("busy") / "store"))


@pytest.fixture
def busy(busy_original: str, tmp_path: Path) -> str:
    """A store with several segments, index files, a compacted segment, and a log behind that."""
    return str(shutil.copytree(busy_original, tmp_path / "busy"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `amqpstore` with arguments, 80 columns wide."""

    def run(*arguments: str) -> Outcome:
        return run_command(monkeypatch, capsys, *arguments)

    return run
