"""The methods of class dtx (100) for pika: requests encode, replies decode.

The layout is in `server/PROTOCOL.md`. Importing this module makes the replies known to pika's frame
decoder.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from pika.amqp_object import Method

from amqpstore_tools.pika import inside
from amqpstore_tools.pika.xid import Xid

CLASS_ID = 100

_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")


def _index(method_id: int) -> int:
    return CLASS_ID << 16 | method_id


class Request(Method):
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


class Reply(Method):
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


class Select(Request):
    INDEX: ClassVar[int] = _index(10)
    NAME: ClassVar[str] = "Dtx.Select"


class SelectOk(Reply):
    INDEX: ClassVar[int] = _index(11)
    NAME: ClassVar[str] = "Dtx.SelectOk"


class Start(BranchRequest):
    INDEX: ClassVar[int] = _index(20)
    NAME: ClassVar[str] = "Dtx.Start"

    def __init__(self, xid: Xid, join: bool = False, resume: bool = False) -> None:
        super().__init__(xid)
        self.join = join
        self.resume = resume

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.join, self.resume)]


class StartOk(StatusReply):
    INDEX: ClassVar[int] = _index(21)
    NAME: ClassVar[str] = "Dtx.StartOk"


class End(BranchRequest):
    INDEX: ClassVar[int] = _index(30)
    NAME: ClassVar[str] = "Dtx.End"

    def __init__(self, xid: Xid, fail: bool = False, suspend: bool = False) -> None:
        super().__init__(xid)
        self.fail = fail
        self.suspend = suspend

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.fail, self.suspend)]


class EndOk(StatusReply):
    INDEX: ClassVar[int] = _index(31)
    NAME: ClassVar[str] = "Dtx.EndOk"


class Prepare(BranchRequest):
    INDEX: ClassVar[int] = _index(40)
    NAME: ClassVar[str] = "Dtx.Prepare"


class PrepareOk(StatusReply):
    INDEX: ClassVar[int] = _index(41)
    NAME: ClassVar[str] = "Dtx.PrepareOk"


class Commit(BranchRequest):
    INDEX: ClassVar[int] = _index(50)
    NAME: ClassVar[str] = "Dtx.Commit"

    def __init__(self, xid: Xid, one_phase: bool = False) -> None:
        super().__init__(xid)
        self.one_phase = one_phase

    def encode(self) -> list[bytes]:
        return [*super().encode(), _bits(self.one_phase)]


class CommitOk(StatusReply):
    INDEX: ClassVar[int] = _index(51)
    NAME: ClassVar[str] = "Dtx.CommitOk"


class Rollback(BranchRequest):
    INDEX: ClassVar[int] = _index(60)
    NAME: ClassVar[str] = "Dtx.Rollback"


class RollbackOk(StatusReply):
    INDEX: ClassVar[int] = _index(61)
    NAME: ClassVar[str] = "Dtx.RollbackOk"


class Forget(BranchRequest):
    INDEX: ClassVar[int] = _index(70)
    NAME: ClassVar[str] = "Dtx.Forget"


class ForgetOk(StatusReply):
    INDEX: ClassVar[int] = _index(71)
    NAME: ClassVar[str] = "Dtx.ForgetOk"


class Recover(Request):
    INDEX: ClassVar[int] = _index(80)
    NAME: ClassVar[str] = "Dtx.Recover"


class RecoverOk(Reply):
    """The xids in doubt, still encoded: see `Xid.decode_all`."""

    INDEX: ClassVar[int] = _index(81)
    NAME: ClassVar[str] = "Dtx.RecoverOk"

    in_doubt: bytes = b""

    def decode(self, encoded: bytes, offset: int = 0) -> Method:
        (size_bytes,) = _LONG.unpack_from(encoded, offset)
        start = offset + _LONG.size
        self.in_doubt = encoded[start : start + size_bytes]
        return self


class GetTimeout(BranchRequest):
    INDEX: ClassVar[int] = _index(90)
    NAME: ClassVar[str] = "Dtx.GetTimeout"


class GetTimeoutOk(Reply):
    INDEX: ClassVar[int] = _index(91)
    NAME: ClassVar[str] = "Dtx.GetTimeoutOk"

    timeout_s: int = 0

    def decode(self, encoded: bytes, offset: int = 0) -> Method:
        (self.timeout_s,) = _LONG.unpack_from(encoded, offset)
        return self


class SetTimeout(BranchRequest):
    INDEX: ClassVar[int] = _index(100)
    NAME: ClassVar[str] = "Dtx.SetTimeout"

    def __init__(self, xid: Xid, timeout_s: int) -> None:
        super().__init__(xid)
        self.timeout_s = timeout_s

    def encode(self) -> list[bytes]:
        return [*super().encode(), _LONG.pack(self.timeout_s)]


class SetTimeoutOk(Reply):
    INDEX: ClassVar[int] = _index(101)
    NAME: ClassVar[str] = "Dtx.SetTimeoutOk"


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
