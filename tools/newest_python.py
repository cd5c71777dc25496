"""Prints the newest Python here that amqpstore is tested on: `python3 tools/newest_python.py`.

It looks for `python3.N` on PATH, and for those that pyenv has installed, whose names on PATH work
only while pyenv is told to use them. Nothing is printed where there is none.

The Makefile asks it before anything is installed: it needs the standard library alone, of any
Python 3. A Python that cannot make virtual environments is passed over.
"""

import glob
import os
import subprocess
import sys

OLDEST, NEWEST = 11, 13
"""The minor versions of Python 3 that README names."""

_VERSION = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


def candidates(minor: int) -> list[str]:
    """Return the paths at which there may be a Python of this version."""
    name = f"python3.{minor}"
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    found = [os.path.join(directory, name) for directory in os.get_exec_path()]
    return found + sorted(glob.glob(os.path.join(pyenv, "versions", "*", "bin", name)))


def is_usable(path: str, minor: int) -> bool:
    """Tell whether there is a Python of this version that makes virtual environments."""
    try:
        run = subprocess.run(  # noqa: S603 - what PATH names is what a shell would run
            [path, "-I", "-c", _VERSION], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return run.returncode == 0 and run.stdout.split() == ["3", str(minor)]


def main() -> None:
    """Print a path, if there is one."""
    for minor in range(NEWEST, OLDEST - 1, -1):
        for path in candidates(minor):
            if is_usable(path, minor):
                sys.stdout.write(path)
                return


if __name__ == "__main__":
    main()
