"""A Celery worker as its own processes: started, watched, killed by tests."""

import os
import signal
import subprocess
import sys
from typing import Self

from tests.broker_process import REPOSITORY
from tests.interop.celery_application import PREFIX_VARIABLE, URL_VARIABLE
from tests.waiting import wait_until

START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0
LOG_TAIL_LINES = 40


class Worker:
    """One worker with one pool process, started on entry and stopped on exit.

    It leads a process group of its own, so that a kill takes its pool along. Its log is a file.
    """

    def __init__(self, url: str, prefix: str, log_path: str, queues: str = "") -> None:
        self.node = f"{os.path.basename(log_path)}@{prefix}"
        self.log_path = log_path
        options = ["--concurrency", "1", "--hostname", self.node, "--loglevel", "INFO"]
        # A worker waits a second for the others when it starts: once in a module is enough.
        options += ["--queues", queues, "--without-mingle"] if queues else []
        self._command = [sys.executable, "-m", "celery"]
        self._command += ["-A", "tests.interop.celery_application", "worker", *options]
        self._environment = {**os.environ, URL_VARIABLE: url, PREFIX_VARIABLE: prefix}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(lambda: " ready." in self.log or self._ended, "ready", START_TIMEOUT_S)
            assert not self._ended, f"the worker ended\n{self.log_tail()}"
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._ended:
            self.kill()

    @property
    def log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-LOG_TAIL_LINES:])

    def kill(self) -> None:
        """SIGKILL the worker and its pool."""
        process = self._started()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(EXIT_TIMEOUT_S)

    def terminate(self) -> int:
        """Ask for a warm shutdown: it finishes what it runs. Returns the exit code."""
        process = self._started()
        process.terminate()
        return process.wait(EXIT_TIMEOUT_S)

    @property
    def _ended(self) -> bool:
        return self._started().poll() is not None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this worker was never started")
        return self._process
