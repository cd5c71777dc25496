"""Resources that a process uses and may use, whether it leads or follows: RabbitMQ's metrics."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

from amqpstore_server.loop.alarms import used_bytes

Values = Iterator[tuple[str, str, float]]
"""Names without their prefix, what they are, and their values."""


def process_values(free_bytes: int, least_free_bytes: int, began_s: float) -> Values:
    """Yield what every member has.

    Args: free_bytes, those of its disk; least_free_bytes, below which nothing is written; began_s,
    when it started, on the monotonic clock.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield "process_open_fds", "Open files and sockets", len(os.listdir("/proc/self/fd"))
    yield "process_max_fds", "Files and sockets that may be open", descriptors
    yield "process_max_tcp_sockets", "Sockets that may be open", descriptors
    yield "process_resident_memory_bytes", "Memory of the process", used_bytes()
    yield "disk_space_available_bytes", "Free disk space", free_bytes
    limit = 2 * least_free_bytes
    yield "disk_space_available_limit_bytes", "Disk space below which publishers wait", limit
    uptime_s = time.monotonic() - began_s
    yield "erlang_uptime_seconds", "How long the broker has been running", uptime_s
