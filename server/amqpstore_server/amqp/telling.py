"""Tells of connections: in the log, and as events with the routing keys and headers of RabbitMQ.

What RabbitMQ writes as terms of Erlang, this broker writes as text, tables and arrays: a name of a
connection where RabbitMQ has a process, a table of client properties. Nothing is told of
certificates and ciphers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from amqpstore_server.amqp.arguments import plain
from amqpstore_server.amqp.negotiation import Negotiation
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.clients.client_log import ClientLog

_PROTOCOL = "{0,9,1}"
"""The version of AMQP, in RabbitMQ's form."""


class ConnectionEvents:
    """Tells and counts what happens to one connection. Args: name, of the connection."""

    def __init__(
        self,
        name: str,
        negotiation: Negotiation,
        log: ClientLog,
        services: BrokerServices,
        *,
        has_tls: bool,
    ) -> None:
        self._name = name
        self._negotiation = negotiation
        self._log = log
        self._services = services
        self._statistics = services.statistics
        self._has_tls = has_tls

    def logged_in(self) -> None:
        """Tell that its login was granted."""
        self._statistics.logins["amqp091", True] += 1
        fields = {**self._log.fields, "mechanism": self._negotiation.mechanism}
        self._services.events.noted("login", partial(self._login, granted=True), **fields)

    def login_refused(self, reason: str) -> None:
        """Tell that its login was refused. Args: reason, may be empty."""
        self._statistics.logins["amqp091", False] += 1
        negotiation = self._negotiation
        fields = {
            **self._log.fields,
            "user": negotiation.login.user,
            "mechanism": negotiation.mechanism,
        }
        if reason:
            fields["reason"] = reason
        event = partial(self._login, granted=False)
        self._services.events.refused("login refused", event, **fields)

    def opened(self, vhost: str) -> None:
        """Tell that it is open."""
        self._statistics.churn.connection_created += 1
        event = partial(self._created, vhost)
        self._services.events.noted("connection opened", event, **self._log.fields)

    def closed(self) -> None:
        """Tell that it was open, and has ended."""
        self._statistics.churn.connection_closed += 1
        events = self._services.events
        if events.is_heard:
            event = BrokerEvent("connection.closed", self._about())
            events.happened("", event, by=By(self._negotiation.login.user, ""))

    def _login(self, *, granted: bool) -> BrokerEvent:
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

    def _created(self, vhost: str) -> BrokerEvent:
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

    def _about(self) -> dict[str, Any]:
        properties = plain(self._negotiation.client_properties)
        headers = {
            "name": self._name,
            "pid": self._name,
            "node": self._services.node,
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
