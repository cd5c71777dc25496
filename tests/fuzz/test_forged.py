"""Files that say something else under right checksums: they are used, or refused with a reason.

Nothing ends in a traceback, takes more than a GiB of memory or a minute of processor time, or
writes outside its directory; and what a repair has mended is whole.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 600


def forged(tmp_path: Path, seed: int, count: int, first: int = 0) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-bb",
            "-m",
            "tests.fuzz.forged",
            str(tmp_path),
            f"{seed}",
            f"{first}",
            f"{count}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"seed {seed}:\n{ended.stdout}"


def test_some_forged_files(tmp_path: Path) -> None:
    forged(tmp_path, 1, 24)


def test_messages_of_an_index_file_that_the_log_has_again(tmp_path: Path) -> None:
    forged(tmp_path, 747815463, 1, first=13)


@pytest.mark.long
@pytest.mark.rounds(10)
def test_more_forged_files(tmp_path: Path, seed: int) -> None:
    forged(tmp_path, seed, 60)
