"""The methods of class dtx (100) for pika: requests encode, replies decode.

The layout is in `server/PROTOCOL.md`. Importing this module makes the replies known to pika's frame
decoder.
"""

from __future__ import annotations

import struct

from pika.amqp_object import Method

from amqpstore_tools.pika import inside
from amqpstore_tools.pika.xid import Xid

CLASS_ID = 100

_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")


class DtxMethod(Method):
    """A method of class dtx. Subclasses that are sent give their method id, and are named as in the
    protocol.
    """

    def __init_subclass__(cls, method: int = 0) -> None:
        if method:
            cls.INDEX = CLASS_ID << 16 | method
            cls.NAME = f"Dtx.{cls.__name__}"


class Request(DtxMethod):
    """A method that the server answers; without arguments."""

    @property
    def synchronous(self) -> bool:
        return True

    def encode(self) -> list[bytes]:
        return []


class BranchRequest(Request):
    """A method whose argument is an xid."""

    def __init__(self, xid: Xid) -> None:
        self.xid = xid

    def encode(self) -> list[bytes]:
        return [self.xid.encode()]


class Reply(DtxMethod):
    """A method that the server sends; without arguments."""

    @property
    def synchronous(self) -> bool:
        return False

    def decode(self, encoded: bytes, offset: int = 0) -> Method:  # noqa: ARG002
        return self


class StatusReply(Reply):
    """A reply with an xa-status (short), which may be one that XaStatus does not know."""

    status: int = 0

    def decode(self, encoded: bytes, offset: int = 0) -> Method:
        (self.status,) = _SHORT.unpack_from(encoded, offset)
        return self


class Select(Request, method=10):
    pass


class SelectOk(Reply, method=11):
    pass


class Start(BranchRequest, method=20):
    def __init__(self, xid: Xid, join: bool = False, resume: bool = False) -> None:
        super().__init__(xid)
        self.join = join
        self.resume = resume

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.join, self.resume)]


class StartOk(StatusReply, method=21):
    pass


class End(BranchRequest, method=30):
    def __init__(self, xid: Xid, fail: bool = False, suspend: bool = False) -> None:
        super().__init__(xid)
        self.fail = fail
        self.suspend = suspend

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.fail, self.suspend)]


class EndOk(StatusReply, method=31):
    pass


class Prepare(BranchRequest, method=40):
    pass


class PrepareOk(StatusReply, method=41):
    pass


class Commit(BranchRequest, method=50):
    def __init__(self, xid: Xid, one_phase: bool = False) -> None:
        super().__init__(xid)
        self.one_phase = one_phase

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.one_phase)]


class CommitOk(StatusReply, method=51):
    pass


class Rollback(BranchRequest, method=60):
    pass


class RollbackOk(StatusReply, method=61):
    pass


class Forget(BranchRequest, method=70):
    pass


class ForgetOk(StatusReply, method=71):
    pass


class Recover(Request, method=80):
    pass


class RecoverOk(Reply, method=81):
    """The xids in doubt, still encoded: see `Xid.decode_all`."""

    in_doubt: bytes = b""

    def decode(self, encoded: bytes, offset: int = 0) -> Method:
        (size_bytes,) = _LONG.unpack_from(encoded, offset)
        start = offset + _LONG.size
        self.in_doubt = encoded[start : start + size_bytes]
        return self


class GetTimeout(BranchRequest, method=90):
    pass


class GetTimeoutOk(Reply, method=91):
    timeout_s: int = 0

    def decode(self, encoded: bytes, offset: int = 0) -> Method:
        (self.timeout_s,) = _LONG.unpack_from(encoded, offset)
        return self


class SetTimeout(BranchRequest, method=100):
    def __init__(self, xid: Xid, timeout_s: int) -> None:
        super().__init__(xid)
        self.timeout_s = timeout_s

    def encode(self) -> list[bytes]:
        return [*super().encode(), _LONG.pack(self.timeout_s)]


class SetTimeoutOk(Reply, method=101):
    pass


def _bits(*flags: bool) -> bytes:
    """Encode consecutive bits in one octet, the first the lowest (AMQP 0-9-1, 4.2.5.2)."""
    return bytes((sum(flag << position for position, flag in enumerate(flags)),))


inside.make_known(
    SelectOk,
    StartOk,
    EndOk,
    PrepareOk,
    CommitOk,
    RollbackOk,
    ForgetOk,
    RecoverOk,
    GetTimeoutOk,
    SetTimeoutOk,
)
