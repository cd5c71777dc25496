"""The examples in the packages' docstrings, and in the README, run and say what they say."""

import doctest
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

import amqpstore
import amqpstore.shared
from amqpstore import SharedStore
from amqpstore.options import DEFAULTS

MIB = 1 << 20
README = Path(__file__).parents[3] / "amqpstore" / "README.md"


@pytest.mark.parametrize("package", [amqpstore, amqpstore.shared])
def test_the_example_of_the_package_runs(package: ModuleType) -> None:
    failed, tried = doctest.testmod(package)
    assert failed == 0
    assert tried >= 3


def test_the_examples_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the examples one after the other, in one directory, as a reader would try them."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    said = []
    for example in examples:
        exec(example, {"__name__": "__main__"})
        said.append(capsys.readouterr().out)
    assert len(said) == 5
    assert re.fullmatch(r"\d+ order 1\n", said[0])
    assert said[1] == "a parcel 1 0\n"
    assert said[2] == "[b'a', b'b', b'c', b'd']\n"
    assert said[3] == "1\n"
    assert "'orders'" in said[4]


def test_the_readme_says_what_a_store_takes(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    SharedStore.open(str(tmp_path / "store")).close()
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    taken = sum(file.stat().st_blocks * 512 for file in files)
    assert f"takes {math.ceil(taken / MIB)} MiB: 64 MiB of them are a reserve" in text
    least, reserve = DEFAULTS.least_free_bytes, DEFAULTS.reserve_bytes
    assert reserve == 64 * MIB
    assert f"needs {(least + reserve) // MIB} MiB of free disk, or {least // MIB} MiB" in text
    again = least * 5 // 4 + reserve
    assert f"needs {again // MIB} MiB ({round(again / 1e6)} MB), or {least * 5 // 4 // MIB}" in text
