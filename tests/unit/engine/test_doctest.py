"""The examples in the packages' docstrings, and in the README, run and say what they say."""

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest

import amqpstore
import amqpstore.shared

README = Path(__file__).parents[3] / "amqpstore" / "README.md"


@pytest.mark.parametrize("package", [amqpstore, amqpstore.shared])
def test_the_example_of_the_package_runs(package: ModuleType) -> None:
    failed, tried = doctest.testmod(package)
    assert failed == 0
    assert tried >= 3


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = README.read_text("utf-8").partition("\n## As a library\n")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert example
    exec(example[1], {})
    assert re.fullmatch(r"\d+ order 1\n", capsys.readouterr().out)
