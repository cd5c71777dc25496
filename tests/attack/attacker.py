"""Clients that attack a broker process, and measurements of what an attack costs the broker."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterable

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import BODY, WireClient, frame, header, publish_method

WAIT_S = 60.0
MIB = 1 << 20


def resident_bytes(broker: BrokerProcess) -> int:
    """Return how much of the broker's memory is in RAM."""
    with open(f"/proc/{broker.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(broker: BrokerProcess) -> int:
    """The most of it that ever was, since `forget_peak`."""
    with open(f"/proc/{broker.pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def forget_peak(broker: BrokerProcess) -> int:
    """Begin to measure a peak. Returns what is resident now."""
    with open(f"/proc/{broker.pid}/clear_refs", "w", encoding="ascii") as clear_refs:
        clear_refs.write("5")
    return resident_bytes(broker)


def descriptor_count(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def push(
    client: WireClient, parts: Iterable[bytes], quiet_s: float = 3.0, least_bytes: int = 0
) -> int:
    """Send until all is sent, the broker takes nothing for `quiet_s`, or it closes the socket.

    Args: least_bytes, which the broker has to take, however slow this machine is.
    Returns the bytes that were sent.
    """
    sent = 0
    raw = client.socket
    before_s = raw.gettimeout()
    with contextlib.suppress(TimeoutError, ConnectionError):
        for part in parts:
            view = memoryview(part)
            while view:
                raw.settimeout(WAIT_S if sent < least_bytes else quiet_s)
                count = raw.send(view)
                sent += count
                view = view[count:]
    raw.settimeout(before_s)
    return sent


def half_a_body(channel: int, body_bytes: int, sent_bytes: int, chunk_bytes: int) -> list[bytes]:
    """A publish that announces a body, and the first of its frames."""
    chunk = frame(BODY, channel, bytes(chunk_bytes))
    start = publish_method(channel, "nowhere") + header(channel, body_bytes)
    return [start] + [chunk] * (sent_bytes // chunk_bytes)


def silent_sockets(broker: BrokerProcess, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    return [socket.create_connection(("127.0.0.1", broker.port), WAIT_S) for _ in range(count)]


def is_closed(sock: socket.socket) -> bool:
    """Tell whether the broker has closed its side."""
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def reset(sock: socket.socket) -> None:
    """Close with a reset, so that nothing of it stays."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
