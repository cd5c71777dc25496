"""Methods that a client sends during an alarm: its publishes wait for the end of it, and everything
else is served.

Acks, consumers and declares are what ends an alarm, so they overtake publishes that wait, on the
same channel too. A method that ends or confirms what was published on its channel does not, nor
does anything behind it: it waits until the publishes were routed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.events import Acks, Event, Publishes, ReceivedMethod

if TYPE_CHECKING:
    from collections.abc import Iterable

_OVERTAKING = frozenset(
    {
        *(methods.BasicQos, methods.BasicConsume, methods.BasicCancel, methods.BasicCancelOk),
        *(methods.BasicGet, methods.BasicReject, methods.BasicNack),
        *(methods.BasicRecover, methods.BasicRecoverAsync, methods.ChannelFlow),
        *(methods.ExchangeDeclare, methods.ExchangeBind, methods.ExchangeUnbind),
        *(methods.QueueDeclare, methods.QueueBind, methods.QueueUnbind),
    }
)

_MAX_BYTES = 16 << 10
_CONSUMERS_MAX_BYTES = 256 << 10
"""The bytes that are held of one connection before it is no longer read; more if it has something
to ack. Memory may be what the alarm is about, and each publisher has as much.
"""

_MESSAGE_BYTES = 256
"""The bytes that a message counts besides its body and properties."""


class HeldPublishes:
    """The events of one connection that wait for the end of an alarm, in their order."""

    __slots__ = ("_waits_for_all", "byte_count", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.byte_count = 0
        self._waits_for_all: dict[int, bool] = {}
        """The channels that they are of, and whether anything that follows waits as well."""

    def add(self, event: Publishes) -> None:
        """Hold publishes."""
        self._waits_for_all.setdefault(event.channel, False)
        self.events.append(event)
        self.byte_count += sum(map(len, event.bodies)) + sum(
            len(header.properties) + _MESSAGE_BYTES for header in event.headers
        )

    def holds(self, event: Event) -> bool:
        """Hold an event other than a publish if it may not overtake those that wait. Returns
        whether it is held.
        """
        channel = event.channel
        if not self._must_wait(event, channel):
            return False
        # Once one thing waits, all behind it on that channel does: a commit must not overtake its
        # publishes.
        if channel:
            self._waits_for_all[channel] = True
        self.events.append(event)
        self.byte_count += _MESSAGE_BYTES
        return True

    def _must_wait(self, event: Event, channel: int) -> bool:
        if not channel:
            # What was published before the connection is closed is not lost.
            return type(event) is ReceivedMethod and type(event.method) is methods.ConnectionClose
        waits_for_all = self._waits_for_all.get(channel)
        # Nothing of this channel is held, so it is served as ever.
        if waits_for_all is None or waits_for_all:
            return bool(waits_for_all)
        if type(event) is ReceivedMethod:
            return type(event.method) not in _OVERTAKING
        return type(event) is not Acks

    def is_full(self, unfinished_bytes: int, *, is_consuming: bool) -> bool:
        """Tell whether nothing more should be read. Args: unfinished_bytes, of publishes that have
        not arrived whole; is_consuming, whether the client has consumers, or messages to ack.
        """
        most_bytes = _CONSUMERS_MAX_BYTES if is_consuming else _MAX_BYTES
        return self.byte_count + unfinished_bytes > most_bytes

    def forget(self, channel: int) -> None:
        """Drop what is held of a channel that was closed because of an error."""
        if channel in self._waits_for_all:
            # The methods are held again one by one, as whether something waits depends on what
            # waits before it.
            self._restart(event for event in self.release() if event.channel != channel)

    def _restart(self, events: Iterable[Event]) -> None:
        for event in events:
            if type(event) is Publishes:
                self.add(event)
            else:
                self.holds(event)

    def release(self) -> list[Event]:
        """Return what was held, in its order."""
        events, self.events = self.events, []
        self.byte_count = 0
        self._waits_for_all.clear()
        return events
