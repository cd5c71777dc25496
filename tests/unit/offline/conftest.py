import pytest

from tests.unit.offline.stores import Command, Outcome, make_busy, run_command


@pytest.fixture
def busy(data_directory: str) -> str:
    """A store with several segments, index files, a compacted segment, and a log behind that."""
    return make_busy(data_directory)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `amqpstore` with arguments, 80 columns wide."""

    def run(*arguments: str) -> Outcome:
        return run_command(monkeypatch, capsys, *arguments)

    return run
