"""The only module that uses private parts of pika.

pika has no public way to send a method that is not in its own specification, to decode one, to wait
for it, or to read the server's capabilities beyond four of them. Four names of it are enough, the
same from pika 1.3 to 1.4:

- `pika.spec.methods`, the table by which frames are decoded: new replies are entered there;
- `BlockingChannel._impl`, the channel that does the work, with the connection it belongs to;
- `Channel._rpc` on that, which sends a synchronous method and registers who gets the reply;
- `BlockingChannel._flush_output`, which waits. `process_data_events` is public, but wakes up for
  deliveries and not for replies, and runs consumers' callbacks in the middle of a call.

A get that waits needs one more, `Channel._send_method`: see `sending_instead`. Publishing without
waiting for the socket each time needs `_impl` and `_flush_output`: see `publish`. What is received
keeps its properties byte for byte by `pika.spec.props`, the table of their classes: see
`keep_properties`. Each is looked up when it is needed, so that another release of pika gives an
error that says so, not an AttributeError.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import pika
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.amqp_object import Method
from pika.exceptions import ChannelWrongStateError

from amqpstore_tools.pika.errors import ExtensionMissingError, PikaChangedError

_Reply = TypeVar("_Reply", bound=Method)

_FLUSHED = 64
"""Messages that are published at once: they are in memory twice meanwhile."""


class _WithRaw(pika.BasicProperties):
    """Properties with `raw`, their bytes in the encoding of class basic: flags and list."""

    raw = b""

    def __repr__(self) -> str:
        # pika's own formats `raw` with `str`, which is an error with `python -bb`.
        fields = [f"{name}={value!r}" for name, value in vars(self).items() if value is not None]
        return f"<{self.NAME}({sorted(fields)})>"


class KeptProperties(_WithRaw):
    """Properties as pika decodes them, and as received.

    pika converts floating-point headers to integers, and cannot read or write every number.
    """

    def decode(self, encoded: bytes, offset: int = 0) -> KeptProperties:
        self.raw = bytes(encoded[offset:])
        # pika cannot read an infinite number: `raw` has it, and nothing else is lost.
        with suppress(ValueError, OverflowError):
            super().decode(encoded, offset)
        return self


class RawProperties(_WithRaw):
    """Properties that are sent as these bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def encode(self) -> list[bytes]:
        return [self.raw]


class Outgoing(NamedTuple):
    """A message to be published."""

    exchange: str
    routing_key: str
    properties: pika.BasicProperties
    body: bytes


def make_known(*replies: type[Method]) -> None:
    """Make pika decode these methods."""
    table = _private(spec, "methods")
    for reply in replies:
        table[reply.INDEX] = reply


def keep_properties() -> None:
    """Make pika return received messages with `KeptProperties`, in the whole process."""
    _private(spec, "props")[pika.BasicProperties.INDEX] = KeptProperties


def call(channel: BlockingChannel, request: Method, reply: type[_Reply]) -> _Reply:
    """Send a synchronous method and return its reply.

    Raises: ChannelClosedByBroker when the server refuses it, and whatever else pika raises when
    the channel or the connection is lost.
    """
    rpc = _private(_private(channel, "_impl"), "_rpc")
    wait = _private(channel, "_flush_output")
    received: list[_Reply] = []
    rpc(request, lambda frame: received.append(frame.method), [reply])
    wait(lambda: bool(received))
    if not received:
        raise ChannelWrongStateError(f"the channel was closed before {reply.NAME} came")
    return received[0]


def publish(channel: BlockingChannel, messages: Iterable[Outgoing]) -> None:
    """Publish messages, waiting for the socket after some of them and not after each.

    That wait takes most of the time of `BlockingChannel.basic_publish`, which does the same
    otherwise. For a channel in a transaction; in confirm mode this would not wait for confirms.
    Raises: whatever pika raises when the channel or the connection is lost.
    """
    send = _private(_private(channel, "_impl"), "basic_publish")
    flush = _private(channel, "_flush_output")
    some = iter(messages)
    while batch := list(islice(some, _FLUSHED)):
        for one in batch:
            send(one.exchange, one.routing_key, one.body, one.properties)
        flush()


def require(channel: BlockingChannel, capability: str) -> None:
    """Check that the server of this channel announced the capability.

    Raises: ExtensionMissingError when it did not.
    """
    connection = _private(_private(channel, "_impl"), "connection")
    if (_private(connection, "server_capabilities") or {}).get(capability) is not True:
        properties = _private(connection, "server_properties") or {}
        name = f"{properties.get('product', 'unknown')} {properties.get('version', '')}".rstrip()
        raise ExtensionMissingError(capability, name)


@contextmanager
def sending_instead(
    channel: BlockingChannel, kind: type[Method], replacement: Method
) -> Generator[None]:
    """Replace methods within the context: the channel sends `replacement` when pika sends a `kind`.

    basic.get has a reply with content, which `_rpc` does not know how to wait for; pika's own
    basic_get does. So that is used, and only the method that it sends is replaced.

    Raises: PikaChangedError when nothing was replaced.
    """
    channel_object = _private(channel, "_impl")
    send = _private(channel_object, "_send_method")
    exchanged = False

    def send_instead(method: Method, content: object = None) -> None:
        nonlocal exchanged
        if type(method) is kind:
            exchanged = True
            method = replacement
        send(method, content)

    vars(channel_object)["_send_method"] = send_instead
    try:
        yield
    finally:
        del vars(channel_object)["_send_method"]
    if not exchanged:
        raise PikaChangedError(pika.__version__, f"{kind.NAME} sent by Channel._send_method")


def _private(owner: object, name: str) -> Any:
    """Return a private attribute of pika's."""
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = getattr(owner, "__name__", type(owner).__name__)
        raise PikaChangedError(pika.__version__, f"{kind}.{name}") from None
