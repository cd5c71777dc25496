"""Runs an archive again and again, each time killed one call to the system later than before.

Prints how many of these moments there are. What each leaves is archived once more, and has to be
the same as what a run makes that is not killed.
"""

import os
import shutil
import sys
from collections import Counter

from tests.unit.jobs.archives import (
    Event,
    QueuePosition,
    events_of,
    held_by,
    held_in,
    log_of,
    rows_of,
    run,
)

_WATCHED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def main() -> int:
    directory, out = sys.argv[1:]
    expected = log_of(directory)
    held = held_in(directory)
    moment = 0
    while True:
        moment += 1
        shutil.rmtree(out, ignore_errors=True)
        child = os.fork()
        if not child:
            killed_at(moment, directory, out)
        _, status = os.waitpid(child, 0)
        was_killed = os.waitstatus_to_exitcode(status) == -9
        child = os.fork()
        if not child:
            os._exit(check(directory, out, expected, held))
        _, status = os.waitpid(child, 0)
        if status:
            sys.stdout.write(f"{moment}: not the same\n")
            return 1
        if not was_killed:
            break
    sys.stdout.write(f"{moment} moments\n")
    return 0


def killed_at(moment: int, directory: str, out: str) -> None:
    """Archive, and end with SIGKILL before the call of this number that concerns the archive."""
    left = moment

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in _WATCHED and str(arguments[0]).startswith(out):
            left -= 1
            if not left:
                os.kill(os.getpid(), 9)

    sys.addaudithook(watch)
    run(directory, out)
    os._exit(0)


def check(
    directory: str, out: str, expected: Counter[Event], held: dict[QueuePosition, bytes]
) -> int:
    run(directory, out)
    rows = rows_of(out)
    files = [name for _, _, names in os.walk(out) for name in names]
    is_tidy = not any(name.endswith((".new", ".prepared")) for name in files)
    return 0 if events_of(rows) == expected and held_by(rows) == held and is_tidy else 1


if __name__ == "__main__":
    sys.exit(main())
