"""The class dtx byte by byte, on a channel of a `WireClient`."""

import struct
from typing import NamedTuple

from tests.conformance.wire_client import (
    Close,
    Frame,
    WireClient,
    basic_get,
    method,
    publish,
    short_string,
)

PERSISTENT = b"\x10\x00\x02"
OK, ROLLED_BACK, TIMED_OUT, READ_ONLY = 0, 1, 2, 7

SELECT, START, END, PREPARE, COMMIT, ROLLBACK, FORGET, RECOVER, GET_TIMEOUT, SET_TIMEOUT = range(
    10, 110, 10
)


class Xid(NamedTuple):
    """The name of a branch."""

    format_id: int
    global_id: bytes
    branch_id: bytes

    def encoded(self) -> bytes:
        """Return the identifier encoded as an argument."""
        return (
            struct.pack(">I", self.format_id)
            + short_string(self.global_id)
            + short_string(self.branch_id)
        )


class DtxChannel:
    """A channel, in dtx mode if nothing else is said."""

    def __init__(self, client: WireClient, number: int = 1, *, select: bool = True) -> None:
        self._client = client
        self._number = number
        if select:
            assert self.ask(SELECT) == b""

    def start(self, xid: Xid, bits: int = 0) -> int:
        """Bits from the lowest: join, resume. Returns the status."""
        return self._status(START, xid.encoded() + bytes([bits]))

    def end(self, xid: Xid, bits: int = 0) -> int:
        """Bits from the lowest: fail, suspend."""
        return self._status(END, xid.encoded() + bytes([bits]))

    def prepare(self, xid: Xid) -> int:
        return self._status(PREPARE, xid.encoded())

    def commit(self, xid: Xid, *, one_phase: bool = False) -> int:
        return self._status(COMMIT, xid.encoded() + bytes([one_phase]))

    def rollback(self, xid: Xid) -> int:
        return self._status(ROLLBACK, xid.encoded())

    def recover(self) -> list[Xid]:
        packed = self.ask(RECOVER)
        (size,) = struct.unpack_from(">I", packed)
        assert size == len(packed) - 4
        found = []
        offset = 4
        while offset < len(packed):
            (format_id,) = struct.unpack_from(">I", packed, offset)
            offset += 4
            parts = []
            for _ in range(2):
                end = offset + 1 + packed[offset]
                parts.append(packed[offset + 1 : end])
                offset = end
            found.append(Xid(format_id, *parts))
        return found

    def get_timeout(self, xid: Xid) -> int:
        (seconds,) = struct.unpack(">I", self.ask(GET_TIMEOUT, xid.encoded()))
        return int(seconds)

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        assert self.ask(SET_TIMEOUT, xid.encoded() + struct.pack(">I", seconds)) == b""

    def publish(self, queue: str, *bodies: bytes) -> None:
        for body in bodies:
            self._client.send(publish(self._number, queue, body, PERSISTENT))

    def take(self, queue: str) -> tuple[int, bool, bytes]:
        """Delivery tag, redelivered and body of a message that is not acked."""
        self._client.send(basic_get(self._number, queue, no_ack=False))
        arguments = self._client.expect((60, 71), self._number).arguments
        _, body = self._client.expect_content(self._number)
        tag, redelivered = struct.unpack_from(">Q?", arguments)
        return tag, redelivered, body

    def ack(self, tag: int) -> None:
        self._client.send(method(self._number, (60, 80), struct.pack(">Q?", tag, False)))

    def ask(self, method_id: int, arguments: bytes = b"") -> bytes:
        """The arguments of the answer."""
        return self._asked(method_id, arguments).arguments

    def refused(self, method_id: int, arguments: bytes, reply_code: int) -> Close:
        """The server closes the channel."""
        self._client.send(method(self._number, (100, method_id), arguments))
        return self._client.expect_channel_close(self._number, reply_code)

    def _asked(self, method_id: int, arguments: bytes) -> Frame:
        self._client.send(method(self._number, (100, method_id), arguments))
        return self._client.expect((100, method_id + 1), self._number)

    def _status(self, method_id: int, arguments: bytes) -> int:
        (status,) = struct.unpack(">H", self.ask(method_id, arguments))
        return int(status)
