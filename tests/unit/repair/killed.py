"""A repair that is killed: run with a verb, a store, a plan, and which call of the system is last.

SIGKILL comes from within, right before the n-th call that changes a directory or opens a file to be
written. Prints how many of them there were, where it was not killed.
"""

import os
import signal
import sys

from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.plan import read_plan
from amqpstore_tools.repair.undo import undo

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "shutil.rmtree"}


def main() -> None:
    """Forks for each store that stdin names, a line each: verb, store, plan, last call."""
    for line in sys.stdin:
        verb, directory, plan, last = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            _work(verb, directory, plan, int(last))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{'killed' if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)}\n")
        sys.stdout.flush()


def _work(verb: str, directory: str, plan: str, last: int) -> None:
    done = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
        is_written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if event in _CHANGES or (event == "open" and is_written):
            done += 1
            if done > last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    code = 1
    try:
        if verb == "undo":
            undo(directory)
        else:
            apply_plan(directory, read_plan(plan))
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
