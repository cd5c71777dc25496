"""Wall clocks of processes, which tests set while they run. Monotonic clocks go on as they are."""

import glob
import os

import pytest

_LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"


class WallClock:
    """The wall clock of one process. Skips the test where there is no libfaketime.

    Args: path, a file for this clock alone.
    """

    def __init__(self, path: str) -> None:
        found = glob.glob(_LIBRARY)
        if not found:
            pytest.skip("libfaketime is missing: apt-get install libfaketime")
        self._path = path
        self.environment = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": path,
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        """Variables of the process."""
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Let it be so far ahead of the machine's from now on, or behind it."""
        with open(f"{self._path}.new", "w", encoding="ascii") as file:
            file.write(f"{ahead_s:+d}\n")
        os.replace(f"{self._path}.new", self._path)
