"""Class dtx, octet by octet, through pika's own frame encoder and decoder."""

import pytest
from pika import frame
from pika.amqp_object import Method

from amqpstore_tools.pika import KeptProperties, RawProperties, XaStatus, Xid, methods
from amqpstore_tools.pika.get import WaitingGet

XID = Xid(5, b"\xfeglobal", b"br")
XID_OCTETS = b"\x00\x00\x00\x05\x07\xfeglobal\x02br"


def framed(payload: bytes, channel: int = 3) -> bytes:
    """A method frame (AMQP 0-9-1, 4.2.3), made without pika."""
    return b"\x01" + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def decoded(payload: bytes) -> Method:
    octets = framed(payload)
    size, found = frame.decode_frame(octets)
    assert size == len(octets)
    assert isinstance(found, frame.Method)
    assert isinstance(found.method, Method)
    return found.method


@pytest.mark.parametrize(
    ("request_", "payload"),
    [
        (methods.Select(), b"\x00\x64\x00\x0a"),
        (methods.Start(XID), b"\x00\x64\x00\x14" + XID_OCTETS + b"\x00"),
        (methods.Start(XID, join=True), b"\x00\x64\x00\x14" + XID_OCTETS + b"\x01"),
        (methods.Start(XID, resume=True), b"\x00\x64\x00\x14" + XID_OCTETS + b"\x02"),
        (methods.End(XID), b"\x00\x64\x00\x1e" + XID_OCTETS + b"\x00"),
        (methods.End(XID, fail=True), b"\x00\x64\x00\x1e" + XID_OCTETS + b"\x01"),
        (methods.End(XID, suspend=True), b"\x00\x64\x00\x1e" + XID_OCTETS + b"\x02"),
        (methods.End(XID, fail=True, suspend=True), b"\x00\x64\x00\x1e" + XID_OCTETS + b"\x03"),
        (methods.Prepare(XID), b"\x00\x64\x00\x28" + XID_OCTETS),
        (methods.Commit(XID), b"\x00\x64\x00\x32" + XID_OCTETS + b"\x00"),
        (methods.Commit(XID, one_phase=True), b"\x00\x64\x00\x32" + XID_OCTETS + b"\x01"),
        (methods.Rollback(XID), b"\x00\x64\x00\x3c" + XID_OCTETS),
        (methods.Forget(XID), b"\x00\x64\x00\x46" + XID_OCTETS),
        (methods.Recover(), b"\x00\x64\x00\x50"),
        (methods.GetTimeout(XID), b"\x00\x64\x00\x5a" + XID_OCTETS),
        (methods.SetTimeout(XID, 600), b"\x00\x64\x00\x64" + XID_OCTETS + b"\x00\x00\x02\x58"),
    ],
)
def test_a_request_on_the_wire(request_: methods.Request, payload: bytes) -> None:
    """J01, J04."""
    assert request_.synchronous
    assert frame.Method(3, request_).marshal() == framed(payload)


@pytest.mark.parametrize(
    ("kind", "method_id"),
    [
        (methods.StartOk, 21),
        (methods.EndOk, 31),
        (methods.PrepareOk, 41),
        (methods.CommitOk, 51),
        (methods.RollbackOk, 61),
        (methods.ForgetOk, 71),
    ],
)
@pytest.mark.parametrize("status", [*XaStatus, 0x0102])
def test_a_reply_with_a_status(kind: type[Method], method_id: int, status: int) -> None:
    reply = decoded(b"\x00\x64" + method_id.to_bytes(2) + status.to_bytes(2))
    assert type(reply) is kind
    assert isinstance(reply, methods.StatusReply)
    assert reply.status == status
    assert not reply.synchronous


@pytest.mark.parametrize(
    ("kind", "method_id"), [(methods.SelectOk, 11), (methods.SetTimeoutOk, 101)]
)
def test_a_reply_without_arguments(kind: type[Method], method_id: int) -> None:
    assert type(decoded(b"\x00\x64" + method_id.to_bytes(2))) is kind


def test_recover_ok() -> None:
    other = Xid(0, b"g")
    both = XID_OCTETS + b"\x00\x00\x00\x00\x01g\x00"
    reply = decoded(b"\x00\x64\x00\x51" + len(both).to_bytes(4) + both)
    assert isinstance(reply, methods.RecoverOk)
    assert Xid.decode_all(reply.in_doubt) == [XID, other]
    none = decoded(b"\x00\x64\x00\x51\x00\x00\x00\x00")
    assert isinstance(none, methods.RecoverOk)
    assert none.in_doubt == b""


def test_get_timeout_ok() -> None:
    reply = decoded(b"\x00\x64\x00\x5b\x00\x01\x51\x80")
    assert isinstance(reply, methods.GetTimeoutOk)
    assert reply.timeout_s == 86400


def test_every_method_has_a_name_of_its_own() -> None:
    """pika finds who waits for a reply by its name."""
    found = [
        kind
        for kind in vars(methods).values()
        if isinstance(kind, type) and issubclass(kind, Method) and "INDEX" in vars(kind)
    ]
    assert len(found) == 20
    assert len({kind.NAME for kind in found}) == len({kind.INDEX for kind in found}) == 20


def test_a_get_that_waits_has_a_table_behind_its_bits() -> None:
    """J13."""
    octets = frame.Method(3, WaitingGet("q", True, 1500)).marshal()
    table = b"\x06x-waitI\x00\x00\x05\xdc"
    assert octets == framed(b"\x00\x3c\x00\x46\x00\x00\x01q\x01\x00\x00\x00\x0c" + table)


def test_properties_with_their_bytes_can_be_shown() -> None:
    """Showing them works with `python -bb`, too."""
    raw = b"\x10\x00\x02"  # delivery-mode 2
    kept = KeptProperties().decode(raw)
    assert kept.raw == raw
    assert repr(kept) == "<BasicProperties(['delivery_mode=2', \"raw=b'\\\\x10\\\\x00\\\\x02'\"])>"
    assert "raw=b" in repr(RawProperties(raw))
