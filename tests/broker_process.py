"""A broker as its own process: started, watched, killed and restarted by tests.

Nothing of the broker is imported here: tests see what an operator sees, that is the command
line, the ready line, the exit code, the log on stderr and the port.
"""

import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from tests.forked import ForkedProcess

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READY_LINE = re.compile(
    r"^amqpstore (?P<version>\S+) ready: (?P<url>amqp://[^:/\s]+:(?P<port>\d+))"
    r"(?: amqps://[^:/\s]+:(?P<tls_port>\d+))? data (?P<data>.+)$"
)
START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0
LOG_TAIL_LINES = 60


class BrokerStartError(Exception):
    """The process ended, or stayed silent for too long, before its ready line."""

    def __init__(self, exit_code: int | None, stdout: str, stderr: str) -> None:
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        end = "no ready line in time" if exit_code is None else f"exit code {exit_code}"
        super().__init__(f"broker did not start: {end}\nstdout: {stdout}\nstderr: {stderr}")


def serve_command(data_directory: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that serves `data_directory` on a port the kernel picks."""
    return [sys.executable, "-m", "amqpstore_tools", *_serve_arguments(data_directory, arguments)]


def _serve_arguments(data_directory: str, arguments: Sequence[str]) -> list[str]:
    return ["serve", "--data", data_directory, "--listen", "127.0.0.1:0", *arguments]


Process = subprocess.Popen[bytes] | ForkedProcess


class BrokerProcess:
    """One data directory and, between start and kill or terminate, the process serving it.

    The log of every run is appended to one file, `log_path`. The port differs from run to run.
    `environment` are variables that the next run gets besides those of the tests, and `descriptors`
    is how many files it may have open; 0 leaves it at what the tests have. `user` is the user that
    runs it, if not that of the tests.
    """

    has_quick_passwords: ClassVar[bool] = True
    """Whether its password hashes take no time: see `quick_passwords`."""

    def __init__(
        self,
        data_directory: str,
        log_path: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: int = 0,
        user: int | None = None,
    ) -> None:
        self.data_directory = data_directory
        self.log_path = log_path
        self.environment = dict(environment or {})
        self.ready_line = ""
        self._arguments = tuple(arguments)
        self._descriptors = descriptors
        self._user = user
        self._process: Process | None = None
        self._port = 0
        self.tls_port = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop_if_running()

    def start(self) -> None:
        """Start the process and return when it accepts connections.

        Raises: BrokerStartError when it ends first or is silent for START_TIMEOUT_S.
        """
        if self.running:
            raise RuntimeError("this broker is running already")
        # A configuration of this machine is not the one that is tested.
        self._process = self._launch({**os.environ, "AMQPSTORE_CONFIG": "", **self.environment})
        line = self._read_line(self._process, time.monotonic() + START_TIMEOUT_S)
        ready = READY_LINE.match(line)
        if ready is None:
            exit_code = self._end(self._process, signal.SIGKILL) if line else self._exit_code()
            raise BrokerStartError(exit_code, line, self.log_tail())
        self.ready_line = line
        self._port = int(ready["port"])
        self.tls_port = int(ready["tls_port"] or 0)

    def _launch(self, environment: Mapping[str, str]) -> Process:
        if any(name.startswith("PYTHON") for name in self.environment):
            return self._command(environment)  # the interpreter reads them at its start
        return ForkedProcess(
            _serve_arguments(self.data_directory, self._arguments),
            REPOSITORY,
            environment,
            self.log_path,
            self._descriptors,
            self._user,
            has_quick_passwords=self.has_quick_passwords,
        )

    def _command(self, environment: Mapping[str, str]) -> Process:
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(
                serve_command(self.data_directory, self._arguments),
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=self._limit_descriptors if self._descriptors else None,
            )

    def _limit_descriptors(self) -> None:
        limits = self._descriptors, self._descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def restart(self) -> None:
        """Stop cleanly if the process runs, then start over the same data."""
        if self.running:
            self.terminate()
        self.start()

    def kill(self) -> None:
        """SIGKILL, and wait: nothing of the process's own memory reaches the disk."""
        self._end(self._started(), signal.SIGKILL)

    def terminate(self, signal_number: signal.Signals = signal.SIGTERM) -> int:
        """Ask for a clean shutdown, wait for it, and return the exit code."""
        return self._end(self._started(), signal_number)

    def exit_code(self) -> int:
        """Wait until the process has ended by itself, or by an earlier signal."""
        process = self._started()
        try:
            return process.wait(EXIT_TIMEOUT_S)
        finally:
            self._end(process, signal.SIGKILL)

    def stop_if_running(self) -> None:
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}/%2F"

    @property
    def stderr(self) -> str:
        """The log of all runs."""
        try:
            with open(self.log_path, encoding="utf-8", errors="backslashreplace") as log:
                return log.read()
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        return "\n".join(self.stderr.splitlines()[-LOG_TAIL_LINES:])

    def _started(self) -> Process:
        if self._process is None:
            raise RuntimeError("this broker was never started")
        return self._process

    def _exit_code(self) -> int | None:
        """The exit code of a process that closed its stdout; None when it had to be killed."""
        process = self._started()
        try:
            exit_code = process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._end(process, signal.SIGKILL)
            return None
        self._close_stdout(process)
        return exit_code

    @staticmethod
    def _read_line(process: Process, deadline: float) -> str:
        """The first line on stdout; "" when stdout ends or the deadline passes before it."""
        stdout = process.stdout
        if stdout is None:
            raise RuntimeError("stdout is not a pipe")
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in received:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return ""
                chunk = os.read(stdout.fileno(), 4096)
                if not chunk:
                    return ""
                received += chunk
        return received.decode().rstrip("\n")

    def _end(self, process: Process, signal_number: signal.Signals) -> int:
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            return process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(EXIT_TIMEOUT_S)
            raise AssertionError(
                f"the broker outlived {signal_number.name} by {EXIT_TIMEOUT_S} s and was killed\n"
                + self.log_tail()
            ) from None
        finally:
            self._close_stdout(process)

    @staticmethod
    def _close_stdout(process: Process) -> None:
        if process.stdout is not None:
            process.stdout.close()


class CostlyPasswordsBroker(BrokerProcess):
    """A broker that takes as long for the check of a password as an operator's does."""

    has_quick_passwords = False


class CommandLineBroker(BrokerProcess):
    """A broker that is started as operators start it; it takes a third of a second longer."""

    def _launch(self, environment: Mapping[str, str]) -> Process:
        return self._command(environment)
