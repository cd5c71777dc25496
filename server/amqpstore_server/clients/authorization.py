"""The rights of a connection's client: by the permissions of its user, or by its token."""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.rights.scopes import TokenRights
from amqpstore_server.clients.login import CheckedLogin


class Authorization:
    """The rights of one client.

    `token` is what its token grants; None if it logged in without one.

    Args: may_impersonate, whether a user may publish with another user's user-id.
    """

    def __init__(self, may_impersonate: Callable[[str], bool]) -> None:
        self.token: TokenRights | None = None
        self._may_impersonate = may_impersonate
        self._access: Access | None = None

    def access(self, broker: Broker, user: str, vhost: str) -> Access:
        """Return the permissions in the virtual host that the client opens. Raises: BrokerError."""
        if self.token is None:
            self._access = broker.access(user, vhost)
        else:
            self._access = self.token.access(vhost)
        return self._access

    def impersonates(self, user: str) -> bool:
        """Tell whether the client may publish with another user's user-id."""
        if self.token is None:
            return self._may_impersonate(user)
        return "impersonator" in self.token.tags

    def renew(self, found: CheckedLogin) -> str:
        """Use the rights of a new token, which was checked. Returns why it is refused; empty if it
        is not.
        """
        rights = found.rights
        if rights is None:
            return found.reason
        if self.token is None or rights.user != self.token.user:
            return f"it is a token of '{rights.user}'"
        self.token = rights
        if self._access is not None:
            self._access.change({"scopes": rights.scopes})
        return ""

    def close(self) -> None:
        """Forget the permissions: the connection has ended."""
        self._access = None
