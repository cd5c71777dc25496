"""The wheel, installed beside a project that has folders called `tools` and `server` of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROJECT = {
    "tools/__init__.py": "",
    "tools/numbers.py": "SEVEN = 7\n",
    "server/__init__.py": "",
    "server/app.py": """
import logging


def start():
    logging.getLogger(__name__).info("up")
""",
    "tests/test_own.py": """
import logging

from server.app import start
from tools.numbers import SEVEN


def test_the_projects_packages_are_its_own():
    assert SEVEN == 7


def test_the_projects_logger_is_its_own(amqp_broker, caplog):
    caplog.set_level(logging.INFO)
    start()
    assert ("server.app", logging.INFO, "up") in caplog.record_tuples
    assert logging.getLogger("server").propagate
""",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is in the repository, so that nothing is left in it."""
    source = tmp_path_factory.mktemp("source")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("amqpstore", "server", "tools"):
        shutil.copytree(ROOT / folder, source / folder, ignore=skipped)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([sys.executable, *build, "-w", source / "dist", source], check=True)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel installed, and sees what is installed here besides."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    install = ("-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps")
    subprocess.run([sys.executable, *install, wheel], check=True)
    # A .pth file that is on such a path is not read: nothing of the repository is imported.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *command: str | Path, **environment: str) -> str:
    """Run it in the project. Returns what it says on stdout; fails if it fails."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    kept.pop("PYTHONPATH", None)
    ended = subprocess.run(
        command, cwd=project, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_has_packages_of_our_own_names_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}
    metadata = {name for name in top if name.endswith((".dist-info", ".data"))}
    assert top - metadata == {"amqpstore", "amqpstore_server", "amqpstore_tools"}


def test_the_wheel_has_what_somebody_needs_who_installs_from_an_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    deploy = {f"share/amqpstore/deploy/{file.name}" for file in (ROOT / "server/deploy").iterdir()}
    pages = ["tools/README.md", *(f"server/{page.name}" for page in (ROOT / "server").glob("*.md"))]
    manual = {f"share/doc/amqpstore/{page}" for page in pages}
    assert {f"data/{name}" for name in deploy | manual} <= names
    static = "server/amqpstore_server/management/pages/static"
    assert {"licenses/LICENSE", f"licenses/{static}/LICENSES.txt"} <= names


def test_the_licenses_name_all_that_is_bundled() -> None:
    static = ROOT / "server/amqpstore_server/management/pages/static"
    text = (static / "LICENSES.txt").read_text("utf-8")
    bundled = [file.name for file in static.iterdir() if ".min." in file.name]
    assert len(bundled) == 3
    assert [name for name in bundled if name not in text] == []


@pytest.mark.parametrize(
    "command",
    [("-m", "pytest"), ("-m", "pytest", "--import-mode=importlib", "-p", "no:cacheprovider")],
)
def test_a_projects_tests_run_beside_it(
    python: Path, project: Path, command: tuple[str, ...]
) -> None:
    assert "2 passed" in run(project, python, *command)


def test_a_projects_tests_run_by_the_script_beside_it(python: Path, project: Path) -> None:
    """`pytest` itself: the project's folder is on the path only where a setting says so."""
    script = (
        "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main(['-o', 'pythonpath=.']))"
    )
    assert "2 passed" in run(project, python, "-c", script)


def test_the_command_runs_in_the_projects_folder(python: Path, project: Path) -> None:
    assert run(project, python.parent / "amqpstore", "--version").strip()
    assert run(project, python, "-m", "amqpstore_tools", "--version").strip()
    where = run(project, python, "-c", "import amqpstore_tools; print(amqpstore_tools.__file__)")
    assert Path(where.strip()).is_relative_to(python.parents[1])


@pytest.mark.parametrize(
    "door",
    [
        "from amqpstore_server.plugins import Exchange",
        "from amqpstore_tools.spark import register, session",
        "from amqpstore_tools.pika import XaResource, get",
        "from amqpstore_tools.testing import MemoryBroker",
    ],
)
def test_the_public_doors_open(python: Path, project: Path, door: str) -> None:
    run(project, python, "-W", "error", "-c", door)
