"""Targets of publishes: each basic.publish is decoded once for all that repeat it."""

from __future__ import annotations

from amqpstore_server.protocol.events import Target
from amqpstore_server.protocol.methods import BasicPublish

_MAX_TARGETS = 1024
_START = BasicPublish(exchange="", routing_key="").encode()[:4]
_MANDATORY, _IMMEDIATE = 1, 2


class Targets(dict[bytes, Target]):
    """The targets of one connection, by the payload of their basic.publish."""

    def remember(self, payload: bytes, publish: BasicPublish) -> Target:
        """Return the target of a publish, and remember it."""
        if len(self) >= _MAX_TARGETS:
            self.clear()
        target = self[payload] = Target(publish)
        return target

    def learn(self, payload: bytes) -> Target | None:
        """Decode a basic.publish as its layout says, but byte by byte, which takes a fraction of
        the time, and remember it. None for any other method, and for one that is malformed.
        """
        if not payload.startswith(_START):
            return None
        try:
            key = 7 + payload[6]
            bits = key + 1 + payload[key]
            exchange, routing_key = payload[7:key].decode(), payload[key + 1 : bits].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        if bits + 1 != len(payload) or payload[bits] > _MANDATORY | _IMMEDIATE:
            return None
        publish = BasicPublish(
            exchange=exchange,
            routing_key=routing_key,
            mandatory=payload[bits] & _MANDATORY > 0,
            immediate=payload[bits] & _IMMEDIATE > 0,
        )
        return self.remember(payload, publish)
