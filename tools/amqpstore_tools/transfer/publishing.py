"""Publishes a file of messages to a broker over AMQP 0-9-1, each confirmed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from amqpstore_tools.client import wire
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.connection import CHANNEL, Address, Connection, receive
from amqpstore_tools.client.errors import BenchError, PeerError
from amqpstore_tools.transfer.lines import Line, MessageLine, TransferError

_WINDOW = 1000
"""The most unconfirmed messages."""

_SEND_BYTES = 256 << 10
_TIMEOUT_S = 60.0
_MANDATORY = b"\x01"


@dataclass
class Published:
    """The result: messages by queue, those of other virtual hosts, and confirms."""

    messages: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    confirmed: int = 0


Route = Callable[[MessageLine], tuple[str, str]]
"""Exchange and routing key to publish a message with."""


def to_its_queue(line: MessageLine) -> tuple[str, str]:
    """Return a route directly to the queue that the message was in."""
    return "", line.key.name or ""


def as_it_was_routed(line: MessageLine) -> tuple[str, str]:
    """Return the route by which the message arrived."""
    return line.exchange, line.routing_key


def publish_lines(
    address: Address, lines: Iterable[Line], *, route: Route, vhost: str, skip: int = 0
) -> Published:
    """Publish the messages of a virtual host, in order, and wait until each was confirmed.

    Properties are sent as the same bytes. Each is mandatory: one that no queue takes stops the run.
    Args: skip, the number of messages published before.
    Raises: TransferError, which says how many were confirmed.
    """
    out = Published()
    prefix = _Prefix()
    ledger = ConfirmLedger(prefix.settled)
    try:
        connection = Connection(address)
    except BenchError as error:
        raise TransferError(str(error)) from None
    try:
        connection.select_confirms()
        connection.socket.settimeout(_TIMEOUT_S)
        _Publisher(connection, ledger, out).run(lines, route, vhost, skip)
        with contextlib.suppress(BenchError, OSError):
            connection.close()
    except _TooLongError as error:
        end = skip + prefix.end
        raise TransferError(
            f"{error}. The first {end} messages were confirmed, and no other was published: give "
            f"the broker a larger frame_max and continue with --skip {end}, or leave this message "
            f"out with --skip {end + 1}."
        ) from None
    except (PeerError, OSError) as error:
        raise TransferError(
            f"{str(error).rstrip('.')}. The first {skip + prefix.end} messages were confirmed: "
            f"continue after them with --skip {skip + prefix.end}."
        ) from None
    finally:
        connection.abandon()
    return out


class _TooLongError(Exception):
    """The properties of a message do not fit into a frame of the broker."""


class _Prefix:
    """Counts how many messages from the first on were confirmed, in whatever order."""

    def __init__(self) -> None:
        self.end = 0
        self._behind: dict[int, int] = {}

    def settled(self, first: int, last: int) -> None:
        """Note that the messages with these delivery tags were confirmed; no two calls name the
        same.
        """
        self._behind[first] = last
        while (end := self._behind.pop(self.end + 1, None)) is not None:
            self.end = end


class _Publisher:
    """Sends on one connection, and reads the confirms."""

    def __init__(self, connection: Connection, ledger: ConfirmLedger, out: Published) -> None:
        self._connection = connection
        self._ledger = ledger
        self._out = out
        self._sent = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def run(self, lines: Iterable[Line], route: Route, vhost: str, skip: int) -> None:
        """Raises: PeerError, OSError, TransferError."""
        for line in lines:
            if not isinstance(line, MessageLine):
                continue
            if line.key.vhost != vhost:
                self._out.left_out += 1
                continue
            if skip:
                skip -= 1
                continue
            exchange, routing_key = route(line)
            self._append(line, exchange, routing_key)
            label = line.key.label
            self._out.messages[label] = self._out.messages.get(label, 0) + 1
            self._await(_WINDOW)
        self._flush()
        self._await(0)
        self._out.confirmed = self._ledger.confirmed
        if self._ledger.nacked:
            raise TransferError(f"the broker refused {self._ledger.nacked} messages (basic.nack)")

    def _append(self, line: MessageLine, exchange: str, routing_key: str) -> None:
        arguments = (
            b"\0\0" + wire.short_string(exchange) + wire.short_string(routing_key) + _MANDATORY
        )
        header = b"\0\x3c\0\0" + len(line.body).to_bytes(8, "big") + line.properties
        step = self._connection.frame_max - wire.FRAME_OVERHEAD_BYTES
        if len(header) > step:
            self._flush()
            self._await(0)  # so that it is known where to go on
            raise _TooLongError(
                f"the properties of message {line.id} of queue {line.key} have {len(header)} "
                f"bytes; the broker takes {step}"
            )
        self._waiting.append(wire.method(CHANNEL, wire.BASIC_PUBLISH, arguments))
        self._waiting.append(wire.frame(wire.HEADER, CHANNEL, header))
        for start in range(0, len(line.body), step):
            piece = line.body[start : start + step]
            self._waiting.append(wire.frame(wire.BODY, CHANNEL, piece))
        self._sent += 1
        self._waiting_bytes += len(header) + len(line.body)
        if self._waiting_bytes >= _SEND_BYTES:
            self._flush()

    def _flush(self) -> None:
        octets = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        try:
            self._connection.socket.sendall(octets)
        except OSError:
            # The reason for the close has not been read yet.
            self._receive()
            raise
        self._read_what_is_there()

    def _await(self, most: int) -> None:
        """Wait until at most this many are unconfirmed."""
        while self._sent - self._ledger.confirmed > most or (self._ledger.paused and self._sent):
            if self._waiting:
                self._flush()
            else:
                self._receive()

    def _read_what_is_there(self) -> None:
        """Read confirms, and why the broker closed, without waiting."""
        self._connection.socket.settimeout(0)
        try:
            self._receive()
        except (BlockingIOError, TimeoutError):
            pass
        finally:
            self._connection.socket.settimeout(_TIMEOUT_S)

    def _receive(self) -> None:
        self._ledger.received(receive(self._connection.socket))
        if self._ledger.answer:
            answer, self._ledger.answer = self._ledger.answer, b""
            self._connection.socket.setblocking(True)
            self._connection.socket.settimeout(_TIMEOUT_S)
            self._connection.socket.sendall(answer)
