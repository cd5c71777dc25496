"""Requests and answers of etcd's JSON gateway.

Keys and values are base64 there, 64-bit integers are text, and fields that are zero, empty or false
are left out. Streams (keep-alives and watches) are lines of JSON, each with a `result` or an
`error`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from amqpstore_server.cluster.keys import Compare, EtcdRow, EtcdTransaction, View
from amqpstore_server.etcd.errors import MalformedAnswerError
from amqpstore_server.etcd.values import check_value

Shape = TypeVar("Shape")

_SHOWN_BYTES = 200


class Header(msgspec.Struct):
    """The header of each answer: who gives it, and at which revision it was."""

    cluster_id: int
    revision: int = 0


class KeyValue(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""


class RangeAnswer(msgspec.Struct):
    header: Header
    kvs: list[KeyValue] = []


class TransactionAnswer(msgspec.Struct):
    header: Header
    succeeded: bool = False


class GrantAnswer(msgspec.Struct, rename={"lease": "ID", "ttl_s": "TTL"}):
    header: Header
    lease: int
    ttl_s: int


class RevokeAnswer(msgspec.Struct):
    header: Header


class AuthenticateAnswer(msgspec.Struct):
    header: Header
    token: str


class KeepAliveResult(msgspec.Struct, rename={"ttl_s": "TTL"}):
    header: Header
    ttl_s: int = 0
    """0 if there is no such lease."""


class KeepAliveAnswer(msgspec.Struct):
    result: KeepAliveResult

    @property
    def header(self) -> Header:
        return self.result.header


class Failure(msgspec.Struct):
    """The reason why a request was not carried out. Gateways before 3.6 have `error` in the place
    of `message`, or both.
    """

    message: str = ""
    error: str = ""
    code: int = -1


class EventKey(msgspec.Struct):
    key: bytes


class Event(msgspec.Struct):
    """A change. Its value is not looked at: what it means is read."""

    kv: EventKey


class WatchResult(msgspec.Struct):
    header: Header
    events: list[Event] = []
    canceled: bool = False
    compact_revision: int = 0


class WatchLine(msgspec.Struct):
    result: WatchResult | None = None
    """None if the line is an error."""


def decode(body: bytes, shape: type[Shape]) -> Shape:
    """Return an answer. Raises: MalformedAnswerError, which says where it differs."""
    try:
        # The gateway writes 64-bit integers as text, and leaves out what is zero.
        return msgspec.json.decode(body, type=shape, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedAnswerError(f"{error}: the answer is {excerpt(body)}") from None


def printable(text: str) -> str:
    """Return what somebody else wrote, as it may be logged and shown."""
    # The text is quoted, so that what answers cannot write line ends or terminal codes into the
    # log.
    return repr(text[:_SHOWN_BYTES])[1:-1]


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer, as it may be logged and shown."""
    shown = repr(body[:_SHOWN_BYTES])[1:]
    return f"{shown}... of {len(body)} bytes" if len(body) > _SHOWN_BYTES else shown


def view(answer: RangeAnswer, prefix: str) -> View:
    """Return the keys of a group. Raises: MalformedAnswerError, which names the key."""
    rows = {}
    start = prefix.encode()
    for one in answer.kvs:
        # A key of another group in the answer would become a key of this one once the prefix is
        # cut.
        if not one.key.startswith(start):
            raise MalformedAnswerError(f"the key {excerpt(one.key)} was not asked for")
        try:
            name = one.key.removeprefix(start).decode()
            value = msgspec.json.decode(one.value, type=dict[str, Any])
            check_value(name, value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MalformedAnswerError(
                f"the key {excerpt(one.key)} has the value {excerpt(one.value)}: {error}"
            ) from None
        rows[name] = EtcdRow(value, one.mod_revision)
    return View(answer.header.cluster_id, answer.header.revision, rows)


def range_request(prefix: str) -> bytes:
    """Ask for all keys under a prefix, linearizably."""
    return _encode(_under(prefix))


def transaction_request(transaction: EtcdTransaction, prefix: str) -> bytes:
    """Ask for a transaction; its keys are under the prefix."""
    puts: Iterable[dict[str, Any]] = (
        {
            "request_put": {
                "key": _base64(prefix + put.key),
                "value": _base64(msgspec.json.encode(put.value)),
                **({"lease": str(put.lease)} if put.lease else {}),
            }
        }
        for put in transaction.puts
    )
    deletes = (
        {"request_delete_range": {"key": _base64(prefix + key)}} for key in transaction.deletes
    )
    return _encode(
        {
            "compare": [_compare(one, prefix) for one in transaction.compares],
            "success": [*puts, *deletes],
        }
    )


def _compare(compare: Compare, prefix: str) -> dict[str, str]:
    return {
        "key": _base64(prefix + compare.key),
        # Neither the version nor the value would do: both come back when a key is deleted and put
        # again, and a late request would succeed.
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": str(compare.revision),
    }


def grant_request(ttl_s: int) -> bytes:
    """Ask for a lease, whose id etcd chooses: no two leases ever have the same."""
    # LavinMQ used the node's own number as the lease: after a restart the old process passed for
    # the new one.
    return _encode({"TTL": str(ttl_s)})


def lease_request(lease: int) -> bytes:
    """Ask to renew a lease, or to end it."""
    return _encode({"ID": str(lease)})


def watch_request(prefix: str, revision: int) -> bytes:
    """Ask for all changes under a prefix, from a revision on."""
    return _encode({"create_request": {**_under(prefix), "start_revision": str(revision)}})


def authenticate_request(user: str, password: str) -> bytes:
    """Ask for a token."""
    return _encode({"name": user, "password": password})


def _under(prefix: str) -> dict[str, str]:
    first = prefix.encode()
    # The end of the range is the prefix with its last byte counted up.
    return {"key": _base64(first), "range_end": _base64(first[:-1] + bytes((first[-1] + 1,)))}


def _base64(content: str | bytes) -> str:
    return b64encode(content.encode() if isinstance(content, str) else content).decode()


def _encode(request: dict[str, Any]) -> bytes:
    return msgspec.json.encode(request)
