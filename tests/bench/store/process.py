"""Runs a job in a process of its own: its figures, its progress, and its end."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from amqpstore_tools.client.errors import BenchError
from tests.bench.store.job import Figures, Job


class StoreProcess:
    """A new process that does one job. It is killed, if still running, at the end of `with`.

    Raises: BenchError, from `figures` and `finish`, when it failed or took longer than `timeout_s`.
    """

    def __init__(self, job: Job, *, timeout_s: float) -> None:
        self._job = job
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self._is_given_up = False
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "tests.bench.store.child",
                json.dumps(job._asdict()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        self._timer = threading.Timer(timeout_s, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> "StoreProcess":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def figures(self, tell: Callable[[int], None]) -> Figures:
        """Return the result of the job; `process_s` is from the start of the process to the
        result.
        """
        if self._process.stdout:
            for line in self._process.stdout:
                said = json.loads(line)
                if "figures" in said:
                    elapsed = time.monotonic() - self._started
                    return {**said["figures"], "process_s": round(elapsed, 3)}
                tell(said["done"])
        raise self._error()

    def finish(self) -> None:
        """Wait for the end of a process that ends by itself."""
        if self._process.wait():
            raise self._error()
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._process.kill()

    def _error(self) -> BenchError:
        if self._is_given_up:
            return BenchError(f"{self._job.name}: given up after {self._timeout_s:g} s (--timeout)")
        return BenchError(f"{self._job.name}: the process ended with {self._process.wait()}")
