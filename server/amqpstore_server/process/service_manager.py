"""Messages to a service manager: the protocol of sd_notify(3), which needs no library."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

import trio

_MAX_STATUS = 200


class ServiceManager:
    """The service manager that started this process, if one did.

    Without one, or one that does not listen, nothing is sent, and nothing waits. Its variables are
    taken out of the environment: processes that are started from here are not this service.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # a name in Linux's abstract namespace
            self._address = "\0" + self._address[1:]
        interval_us = environment.pop("WATCHDOG_USEC", "")
        is_ours = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(interval_us) / 1e6 if is_ours and interval_us.isdecimal() else 0.0
        """The longest time between two signs of life; 0 if none are expected."""

    def ready(self, status: str) -> None:
        """Say that clients are accepted, or that a reload has ended."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Say that a reload has begun; it ends with `ready`."""
        # sd_notify(3) asks for this time beside RELOADING=1: by it the manager tells this answer to
        # a reload from one to an earlier one.
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str, within_s: float) -> None:
        """Say that the broker stops, and how long that may take."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}", _status(status))

    async def watch(self) -> None:
        """Give signs of life for as long as trio's loop runs. Returns if none are expected."""
        while self.watchdog_s:
            self._send("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / 3)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            # A send blocks while the queue of the receiving socket is full, and with it the whole
            # loop.
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={text[:_MAX_STATUS]}"
