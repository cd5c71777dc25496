"""The requests of operators about connections: list them, and close them."""

from __future__ import annotations

from typing import Any

from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.connected import Connected
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.request import OperatorRequest
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.monitoring.audit import By

_ROWS_AT_ONCE = 100


class ListConnections(OperatorRequest, tag="connections list"):
    """The open connections: all, those of a user, or those to a virtual host."""

    user: str = ""
    vhost: str = ""

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        rows = []
        for count, one in enumerate(administration.open_connections(self.user, self.vhost)):
            if not count % _ROWS_AT_ONCE:
                yield None
            rows.append(_row(one))
        if not rows:
            administration.check_names(self.user, self.vhost)
        return sorted(rows, key=lambda row: (row["vhost"], row["user"], row["name"]))


def _row(one: Connected) -> dict[str, Any]:
    state = "closing" if not one.is_served else "blocked" if one.is_blocked else "running"
    given = one.negotiated.client_properties.get("connection_name")
    return {
        "name": one.name,
        "user": one.user,
        "vhost": one.vhost,
        "state": state,
        "channels": len(one.channels),
        "client": given if isinstance(given, str) else "",
    }


class CloseConnections(OperatorRequest, tag="connections close"):
    """Close the connection with a name, all of a user, or all to a virtual host; of what is given,
    all has to be true. Returns how many there were.
    """

    name: str = ""
    user: str = ""
    vhost: str = ""
    reason: str = "closed by an operator"

    def done(self, administration: Administration, by: By) -> Work[Any]:
        if not (self.name or self.user or self.vhost):
            raise AdministrationError("say which: by their name, user or virtual host")
        chosen = administration.open_connections(self.user, self.vhost, self.name)
        found = [one for one in chosen if one.is_served]
        if self.name and not found:
            raise MissingError(f"no open connection '{self.name}'")
        if not found:
            # Not before: the users of an authorization server are known by their connections.
            administration.check_names(self.user, self.vhost)
        for one in found:
            # What a connection leaves unacked may be much.
            yield None
            administration.close_connection(by, one, self.reason)
        return {"closed": len(found)}
