"""The renewal of a login with a new token (connection.update-secret), while the client goes on with
the old one.
"""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.broker.monitoring.audit import audit_refusal
from amqpstore_server.clients.authorization import Authorization
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.protocol.errors import CommandInvalid, NotAllowed
from amqpstore_server.protocol.methods import ConnectionUpdateSecret


class Renewal:
    """Renews the login of one connection."""

    def __init__(self, authorization: Authorization, log: ClientLog) -> None:
        self._authorization = authorization
        self._log = log
        self._is_checking = False

    def begin(self, secret: bytes, check: Callable[[str], None] | None) -> bool:
        """Have a new token checked. Returns False if there is nothing to check: a password does not
        expire, so nothing changes for a client that is logged in with one.

        Raises: CommandInvalid.
        """
        if self._authorization.token is None or check is None:
            return False
        # Two checks at once could end in the wrong order, and leave the older token's rights.
        if self._is_checking:
            raise CommandInvalid("connection.update-secret while another one is being checked")
        self._is_checking = True
        check(secret.decode("utf-8", "replace"))
        return True

    def end(self, checked: CheckedLogin) -> NotAllowed | None:
        """Use the rights of the token, which was checked. Returns the error if it is refused."""
        self._is_checking = False
        reason = self._authorization.renew(checked)
        if not reason:
            return None
        audit_refusal("token refused", **self._log.fields, reason=reason)
        refused = NotAllowed("the new secret was refused, see the log of the broker")
        refused.at(ConnectionUpdateSecret.class_id, ConnectionUpdateSecret.method_id)
        return refused
