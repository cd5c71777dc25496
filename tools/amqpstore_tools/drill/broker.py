"""`amqpstore serve` as a process of a drill: started, and killed with SIGKILL."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import time
from typing import Self

from amqpstore_tools.client.connection import Address

_READY = re.compile(r"ready: amqp://([^:/\s]+):(\d+) ")
_TIMEOUT_S = 30.0
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


_USER = "amqpstore-drill"
_DEFINITIONS = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": _USER, "password": _USER, "tags": ""}],
    "permissions": [
        {"user": _USER, "vhost": "/", "configure": "^drill-", "write": ".*", "read": ".*"}
    ],
}


class BrokerEndedError(OSError):
    """The broker did not start, or ended by itself."""


class DrilledBroker:
    """The broker on one data directory, on a port that the system chooses.

    Beside the directory are its log, its configuration, and a definitions file with a user for the
    drill, as the users of a copied store are not known here.
    """

    def __init__(self, directory: str) -> None:
        configuration, definitions = f"{directory}.toml", f"{directory}.json"
        with open(definitions, "w", encoding="utf-8") as file:
            json.dump(_DEFINITIONS, file)
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f"definitions = {json.dumps(definitions)}\nleast_free_bytes = 0\n")
            file.write("management_listen = []\n")
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "amqpstore_tools",
            "serve",
            "--data",
            directory,
        ]
        self._command += ["--config", configuration, "--listen", "127.0.0.1:0"]
        self._log_path = f"{directory}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def start(self) -> Address:
        """Start it. Returns once it accepts connections. Raises: BrokerError."""
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                self._command,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        line = self._first_line(self._process)
        ready = _READY.search(line)
        if ready is None:
            self.kill()
            raise BrokerEndedError(f"the broker did not start: {self.log_tail()}")
        return Address(ready[1], int(ready[2]), _USER, _USER, "/")

    def kill(self) -> int | None:
        """End it with SIGKILL. Returns its exit code if it had ended by itself before."""
        process, self._process = self._process, None
        if process is None:
            return None
        # The code is looked at before the signal: if there is one, the broker had ended by itself.
        code = process.poll()
        if code is None:
            process.kill()
        process.wait(_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def log_tail(self) -> str:
        """Return the end of its log."""
        with open(self._log_path, encoding="utf-8", errors="backslashreplace") as log:
            return log.read()[-1000:]

    @staticmethod
    def _first_line(process: subprocess.Popen[bytes]) -> str:
        if process.stdout is None:
            raise RuntimeError("stdout is not a pipe")
        deadline = time.monotonic() + _TIMEOUT_S
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in received:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    break
                received += chunk
        return received.decode("utf-8", "replace")
