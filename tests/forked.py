"""Commands of amqpstore in processes that are forked from one that has loaded the broker already.

Loading it takes most of the processor time of a broker that serves one test. Such a process does
what a command line does, from its arguments on, and is a process of its own, to be killed. What
comes before is tested by those that start a `CommandLineBroker`.
"""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver

from tests import quick_passwords

_CONTEXT = multiprocessing.get_context("forkserver")
_LOADED = [
    "amqpstore_tools.__main__",
    "amqpstore_tools.verbs.serve",
    "amqpstore_server.app",
    "amqpstore_server.config.options",
]


class ForkedProcess:
    """A command in a forked process, as a `subprocess.Popen` would show it.

    Its stdout is read with `os.read` from `stdout`; its stderr is appended to the file `log_path`.
    `descriptors` is how many files it may have open; 0 leaves it at what the tests have. `user` is
    whose the process is, if not that of the tests; then they have to be root's. With
    `has_quick_passwords` its password hashes take no time: see `quick_passwords`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        directory: str,
        environment: Mapping[str, str],
        log_path: str,
        descriptors: int,
        user: int | None = None,
        *,
        has_quick_passwords: bool,
    ) -> None:
        _start_server()
        self.stdout, stdout = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run,
            args=([*arguments], directory, {**environment}, log_path, descriptors, user, stdout),
            kwargs={"has_quick_passwords": has_quick_passwords},
            daemon=True,
        )
        self._process.start()
        stdout.close()
        self._polling = threading.Lock()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended the process; None while it runs."""
        # Two threads that ask at the same time would share one answer of the server.
        with self._polling:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for the end, and return its exit code. Raises: subprocess.TimeoutExpired."""
        connection.wait([self._process.sentinel], timeout)
        exit_code = self.poll()
        if exit_code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return exit_code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def become(user: int) -> None:
    """Make this process one of another user, and of the group with the same number."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _start_server() -> None:
    _CONTEXT.set_forkserver_preload(_LOADED)
    # It gets the options of the tests' interpreter: `-X dev` would check all memory it allocates.
    os.environ["PYTHONMALLOC"] = "pymalloc"
    forkserver.ensure_running()


def _run(
    arguments: list[str],
    directory: str,
    environment: dict[str, str],
    log_path: str,
    descriptors: int,
    user: int | None,
    stdout: "connection.Connection[bytes, bytes]",
    *,
    has_quick_passwords: bool,
) -> None:
    """Be the command: called in the forked process."""
    # What the server of forks cannot import, it passes over.
    missing = [name for name in _LOADED if name not in sys.modules]
    assert not missing, f"tests/forked.py names modules that cannot be imported: {missing}"
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdout.fileno(), 1)
    stdout.close()
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.close(log)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    if user is not None:
        become(user)
    if has_quick_passwords:
        quick_passwords.use()
    from amqpstore_tools.__main__ import main

    sys.exit(main(arguments))
