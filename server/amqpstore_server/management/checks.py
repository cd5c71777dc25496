"""Checks of the running store, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import trio

from amqpstore import Store
from amqpstore_server.management.errors import HttpError

_MAX_FINDINGS = 200
_CHECK_S = 3600.0


class StoreChecks:
    """The check of the running store: at most one at a time, in a process of its own, so that it
    takes no time of the event loop. `findings` are those of the last one.
    """

    def __init__(self) -> None:
        self.is_running = False
        self.findings: list[str] | None = None
        self.problem = ""
        self.ended_ms = 0

    async def run(self, store: Store) -> None:
        """Check a snapshot of the store, as `amqpstore check --live` does. Raises: HttpError."""
        if self.is_running:
            raise HttpError(409, "conflict", "a check is running")
        self.is_running = True
        try:
            command = [sys.executable, "-P", "-m", "amqpstore_tools", "check", "--live", "--json"]
            with trio.move_on_after(_CHECK_S) as waiting:
                ended = await trio.run_process(
                    [*command, store.directory],
                    capture_stdout=True,
                    capture_stderr=True,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
                self._read(ended)
            if waiting.cancelled_caught:
                self.findings = None
                self.problem = f"it took more than {_CHECK_S:.0f} s"
        finally:
            self.is_running = False
            self.ended_ms = store.clock.wall_ms()

    def _read(self, ended: subprocess.CompletedProcess[bytes]) -> None:
        try:
            found = msgspec.json.decode(ended.stdout)["findings"]
        except (msgspec.DecodeError, KeyError, TypeError):
            self.findings = None
            self.problem = ended.stderr.decode("utf-8", "replace")[-500:] or "it printed nothing"
            return
        self.problem = ""
        self.findings = [
            " ".join(str(one[key]) for key in ("level", "code", "file", "text") if one.get(key))
            for one in found[:_MAX_FINDINGS]
        ]

    def row(self) -> dict[str, Any]:
        """Return the state, as JSON."""
        return {
            "running": self.is_running,
            "findings": self.findings,
            "problem": self.problem,
            "ended_ms": self.ended_ms,
        }
