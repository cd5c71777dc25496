"""A process of `bench store`: the job is JSON on the command line, the output lines of JSON.

`{"done": n}` now and then, `{"figures": {...}}` once. A job that leaves its store open then waits
for the end of its input, or more often to be killed.
"""

import json
import sys
import time

from tests.bench.store.job import Figures, Job
from tests.bench.store.jobs import JOBS

_TELL_S = 0.2


class _Teller:
    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, done: int) -> None:
        if time.monotonic() - self._told >= _TELL_S:
            self._told = time.monotonic()
            _say({"done": done})


def _say(line: Figures) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the job."""
    job = Job(**json.loads(sys.argv[1]))
    _say({"figures": JOBS[job.name](job, _Teller())})
    if job.stays_open:
        sys.stdin.read()


if __name__ == "__main__":
    main()
