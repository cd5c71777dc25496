"""The broker's process on this machine: its CPU time and memory, from /proc."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError

_LISTEN = "0A"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class ServerProcess:
    """A process that is observed, and never changed."""

    pid: int

    @classmethod
    def find(cls, address: Address, pid: int = 0) -> Self | None:
        """Return the process `pid`, or the one that listens on the address's port on this machine.

        None if the broker is on another machine, or belongs to another user whose files cannot be
        read.

        Raises:
            UsageError: there is no process `pid`.
        """
        if pid:
            if not Path(f"/proc/{pid}/stat").exists():
                raise CommandLineError(f"--pid: there is no process {pid}")
            return cls(pid)
        if address.host not in _LOOPBACK:
            return None
        sockets = _listening(address.port)
        if sockets:
            for directory in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                    for name in os.listdir(directory / "fd"):
                        if os.readlink(directory / "fd" / name) in sockets:
                            return cls(int(directory.name))
        return None

    def cpu_s(self) -> float:
        """Return user and system seconds of all threads since the process started; 0 if it is
        gone.
        """
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain spaces.
            fields = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return 0.0

    def rss_bytes(self) -> int:
        """Return the resident memory; 0 if the process is gone."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text("utf-8").splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0


def _listening(port: int) -> set[str]:
    """Return the sockets that listen on a port, as links in `/proc/PID/fd` name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found
