"""Tests of what the Makefile takes from the user's environment, and what it installs and needs."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODEJS = "tests/interop/nodejs"

CHANGES_A_VERDICT = {
    "PIP_USER": "1",
    "PIP_TARGET": "/nowhere",
    "PIP_PREFIX": "/nowhere",
    "PIP_NO_DEPS": "1",
    "PIP_REQUIRE_HASHES": "1",
    "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere",
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "ignore",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "3",
    "PYTEST_ADDOPTS": "-k nothing",
    "PYTEST_PLUGINS": "nothing",
    "HYPOTHESIS_PROFILE": "ci",
}
SAYS_WHERE_PACKAGES_ARE = {
    "PIP_INDEX_URL": "https://pypi.invalid/simple",
    "PIP_FIND_LINKS": "/opt/wheels",
    "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
}

if shutil.which("make") is None:
    pytest.skip("needs make", allow_module_level=True)


def make(
    *arguments: str, directory: Path = ROOT, environment: Mapping[str, str] | None = None
) -> str:
    """Return what make prints."""
    run = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=directory,
        env={"PATH": os.environ["PATH"], **(environment or {})},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.stdout


def test_a_users_settings_of_python_and_pip_do_not_reach_a_target() -> None:
    given = {**CHANGES_A_VERDICT, **SAYS_WHERE_PACKAGES_ARE}
    lines = make("--eval", "print: ; @env", "print", environment=given).splitlines()
    found = dict(line.split("=", 1) for line in lines if line.partition("=")[0] in given)
    assert found == {**SAYS_WHERE_PACKAGES_ARE, "PIP_USER": "0"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh one, as far as make sees it."""
    (tmp_path / NODEJS).mkdir(parents=True)
    pinned = [f"{NODEJS}/{name}.json" for name in ("package", "package-lock")]
    for name in ("Makefile", "pyproject.toml", "constraints.txt", *pinned):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def installs(directory: Path, target: str) -> list[str]:
    """Return what a target would install."""
    lines = make("-n", target, "PYTHON=python3", directory=directory).splitlines()
    return [line.split()[-1].strip("'") for line in lines if " pip install " in line]


def done(directory: Path, *stamps: str) -> None:
    """Make as if these had been made, in this order."""
    for stamp in stamps:
        (directory / ".venv").mkdir(exist_ok=True)
        (directory / ".venv" / stamp).touch()


def test_a_broker_is_served_without_what_the_tests_need(checkout: Path) -> None:
    assert installs(checkout, "serve") == ["setuptools", "."]
    assert installs(checkout, "test") == ["setuptools", ".", ".[dev]"]
    done(checkout, ".serves")
    assert installs(checkout, "serve") == []
    assert installs(checkout, "test") == [".[dev]"]
    done(checkout, ".ready")
    assert installs(checkout, "serve") == installs(checkout, "test") == []


def test_what_is_pinned_anew_is_installed_for_both(checkout: Path) -> None:
    done(checkout, ".serves", ".ready")
    # A file system may count in seconds.
    os.utime(checkout / "constraints.txt", (4_000_000_000, 4_000_000_000))
    assert installs(checkout, "serve") == ["setuptools", "."]
    assert installs(checkout, "test") == ["setuptools", ".", ".[dev]"]


def test_an_environment_that_was_moved_with_its_checkout_is_made_anew(checkout: Path) -> None:
    done(checkout, ".serves", ".ready")
    (checkout / ".venv/.serves").write_text(f"{checkout.resolve()}\n")
    done(checkout, ".ready")
    assert installs(checkout, "serve") == installs(checkout, "test") == []
    moved = checkout.rename(checkout.with_name("a name with blanks"))
    assert installs(moved, "serve") == ["setuptools", "."]
    assert installs(moved, "test") == ["setuptools", ".", ".[dev]"]
    assert "-m venv --clear .venv" in make("-n", "serve", "PYTHON=python3", directory=moved)


def test_a_long_proof_has_the_seed_that_is_given_and_the_share_has_its_own(checkout: Path) -> None:
    done(checkout, ".serves", ".ready")
    last = make("-n", "prove", "SEED=7", directory=checkout).splitlines()[-1]
    assert last.startswith("PYTHONHASHSEED=7 ")
    assert last.endswith(" --seed 7")
    drawn = {make("-n", "prove", directory=checkout).split()[-1] for _ in range(5)}
    assert len(drawn) > 1
    for target in ("test", "proofs"):
        last = make("-n", target, directory=checkout).splitlines()[-1]
        assert last.startswith("PYTHONHASHSEED=0 ")
        assert "--seed" not in last
