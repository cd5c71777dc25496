"""Prints the Python that is to run the broker: `python3 tools/fastest_python.py`.

Distributions build their Python with profile-guided optimization; pyenv, by default, does not. The
broker does a fifth more with one that is. So of those named python3 on PATH, the fastest is taken
that has the version of the first: which version is the user's choice, which build is not.

The Makefile asks it before anything is installed: it needs the standard library alone, of any
Python 3. A Python that cannot make virtual environments is passed over.
"""

import os
import subprocess
import sys

_FASTER = 0.9
"""What may be noise is no reason to take another than the first."""

_TIMED = """
import ensurepip, sys, time, venv

def work():
    counts = {}
    for number in range(30_000):
        key = number * 7 % 1000
        counts[key] = counts.get(key, 0) + len(str(number)[1:])

def seconds():
    began = time.process_time()
    work()
    return time.process_time() - began

print(*sys.version_info[:2], min(seconds() for _ in range(9)))
"""


def main() -> None:
    """Print a path; nothing if no Python on PATH can make a virtual environment."""
    version = None
    best = ""
    least = 0.0
    for directory in os.get_exec_path():
        candidate = os.path.join(directory, "python3")
        try:
            run = subprocess.run(  # noqa: S603 - what PATH names is what a shell would run
                [candidate, "-I", "-c", _TIMED], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if run.returncode:
            continue
        *its_version, seconds = run.stdout.split()
        if not best or (its_version == version and float(seconds) < least * _FASTER):
            version, best, least = its_version, candidate, float(seconds)
    sys.stdout.write(best)


if __name__ == "__main__":
    main()
