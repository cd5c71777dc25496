"""Links that take their time, between hosts that have a network of their own.

The router sends what passes such a link into a tunnel device. What comes out of it is held for as
long as the link takes, and is handed back. So it is packets that are late, or dropped when a link
has more waiting than its buffer holds, and TCP at both ends does what it does on such a link.
"""

import fcntl
import heapq
import os
import select
import socket
import struct
import threading
import time
from collections import defaultdict
from math import inf
from typing import NamedTuple

TUN_DEVICE = "/dev/net/tun"
INTERFACE = "slow"

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_MAX_PACKET_BYTES = 65536
_ADDRESSES = slice(12, 20)
"""Source and destination, in an IPv4 header."""
BUFFERED_S = 0.5
"""The backlog that a narrow link lets wait, as the time that it takes to send it."""


class Pace(NamedTuple):
    """The delay and the bandwidth of a link."""

    delay_s: float = 0.0
    bytes_per_s: float = inf


class SlowLink:
    """One way between two hosts."""

    def __init__(self) -> None:
        self.paces: list[Pace] = []
        """The paces that hold at once: delays add up, and the narrowest counts."""
        self._is_free_at = 0.0
        self._arrives_at = 0.0

    def arrival(self, size_bytes: int, now: float) -> float | None:
        """Return when a packet arrives that is sent now, behind all before it; None if it does
        not.
        """
        begins_at = max(now, self._is_free_at)
        if begins_at - now > BUFFERED_S:
            return None
        narrowest = min((one.bytes_per_s for one in self.paces), default=inf)
        self._is_free_at = begins_at + size_bytes / narrowest
        delay_s = sum(one.delay_s for one in self.paces)
        self._arrives_at = max(self._arrives_at, self._is_free_at + delay_s)
        return self._arrives_at


class SlowLinks:
    """The tunnel, in the network namespace of the thread that makes it, and the thread behind it.

    Raises: OSError, if there can be no tunnel.
    """

    def __init__(self) -> None:
        self._tunnel = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        try:
            request = struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI)
            fcntl.ioctl(self._tunnel, _TUNSETIFF, request)
        except OSError:
            os.close(self._tunnel)
            raise
        self._links: defaultdict[bytes, SlowLink] = defaultdict(SlowLink)
        self._held: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._end, self._ends = os.pipe()
        self._thread = threading.Thread(target=self._run, name="slow links", daemon=True)
        self._thread.start()

    def slow_down(self, sender: str, receiver: str, pace: Pace) -> None:
        """Let packets from one address to another go so from now on, behind all before them."""
        self._link(sender, receiver).paces.append(pace)

    def speed_up(self, sender: str, receiver: str, pace: Pace) -> None:
        """Undo `slow_down`."""
        self._link(sender, receiver).paces.remove(pace)

    def _link(self, sender: str, receiver: str) -> SlowLink:
        return self._links[socket.inet_aton(sender) + socket.inet_aton(receiver)]

    def close(self) -> None:
        """End the thread, and drop what is held."""
        os.close(self._ends)
        self._thread.join()
        os.close(self._end)
        os.close(self._tunnel)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._tunnel, select.POLLIN)
        poll.register(self._end, select.POLLHUP)
        while True:
            wait_ms = max(self._held[0][0] - time.monotonic(), 0.0) * 1000 if self._held else None
            ready = dict(poll.poll(wait_ms))
            if self._end in ready:
                return
            if self._tunnel in ready:
                self._take()
            self._hand_back()

    def _take(self) -> None:
        packet = os.read(self._tunnel, _MAX_PACKET_BYTES)
        arrives_at = self._links[packet[_ADDRESSES]].arrival(len(packet), time.monotonic())
        if arrives_at is not None:
            self._count += 1
            heapq.heappush(self._held, (arrives_at, self._count, packet))

    def _hand_back(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            os.write(self._tunnel, heapq.heappop(self._held)[2])
