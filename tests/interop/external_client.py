"""Clients that are not Python packages: found, or the test is skipped, and run."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NoReturn

import pytest

RUN_TIMEOUT_S = 60.0


def need(command: str, install: str) -> str:
    """The path of a command. Without it the test is skipped, in CI (CI=true) it fails."""
    path = shutil.which(command)
    if path is None:
        missing(f"{command} is not installed: {install}")
    return path


def missing(reason: str) -> NoReturn:
    """Skip, or in CI fail, for something that is not on this machine."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def run(
    command: Sequence[str],
    input_bytes: bytes = b"",
    exit_code: int = 0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end, within RUN_TIMEOUT_S, and check the exit code."""
    finished = subprocess.run(
        command,
        input=input_bytes,
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        env=None if environment is None else {**os.environ, **environment},
    )
    assert finished.returncode == exit_code, (
        f"{command}: exit code {finished.returncode}\n"
        f"{finished.stdout.decode(errors='replace')}\n{finished.stderr.decode(errors='replace')}"
    )
    return finished
