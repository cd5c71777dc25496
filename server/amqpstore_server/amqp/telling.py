"""The events of connections, with the routing keys and headers of RabbitMQ.

What RabbitMQ writes as terms of Erlang, this broker writes as text, tables and arrays: a name of a
connection where RabbitMQ has a process, a table of client properties. Nothing is told of
certificates and ciphers.
"""

from __future__ import annotations

from typing import Any

from amqpstore_server.amqp.arguments import plain
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.broker.events import BrokerEvent

_PROTOCOL = "{0,9,1}"
"""The version of AMQP, in RabbitMQ's form."""


class ConnectionEvents:
    """The events of one connection. Args: name, of the connection; node, of the broker."""

    def __init__(self, name: str, negotiation: Negotiation, node: str, *, has_tls: bool) -> None:
        self._name = name
        self._negotiation = negotiation
        self._node = node
        self._has_tls = has_tls

    def login(self, *, granted: bool) -> BrokerEvent:
        """Return the event of its login."""
        user = self._negotiation.login.user
        headers = {
            "name": user,
            "connection_name": self._name,
            "connection_type": "network",
            "auth_mechanism": self._negotiation.mechanism,
            "protocol": _PROTOCOL,
            **self._addresses(),
        }
        if granted:
            return BrokerEvent("user.authentication.success", headers)
        headers["error"] = f"user '{user}' - invalid credentials"
        return BrokerEvent("user.authentication.failure", headers)

    def created(self, vhost: str) -> BrokerEvent:
        """Return the event of its opening."""
        negotiation = self._negotiation
        headers = {
            **self._about(),
            **self._addresses(),
            "type": "network",
            "user": negotiation.login.user,
            "vhost": vhost,
            "auth_mechanism": negotiation.mechanism,
            "protocol": _PROTOCOL,
            "channel_max": negotiation.channel_max,
            "frame_max": negotiation.frame_max,
        }
        return BrokerEvent("connection.created", headers)

    def closed(self) -> BrokerEvent:
        """Return the event of its end."""
        return BrokerEvent("connection.closed", self._about())

    def _about(self) -> dict[str, Any]:
        properties = plain(self._negotiation.client_properties)
        headers = {
            "name": self._name,
            "pid": self._name,
            "node": self._node,
            "client_properties": properties,
            "user_who_performed_action": self._negotiation.login.user,
        }
        if isinstance(given := properties.get("connection_name"), str):
            headers["user_provided_name"] = given
        return headers

    def _addresses(self) -> dict[str, Any]:
        peer, _, local = self._name.partition(" -> ")
        peer_host, _, peer_port = peer.rpartition(":")
        host, _, port = local.rpartition(":")
        return {
            "ssl": self._has_tls,
            "peer_host": peer_host,
            "peer_port": _number(peer_port),
            "host": host,
            "port": _number(port),
        }


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
