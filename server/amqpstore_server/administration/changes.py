"""Changes by an operator: what they have to be, how they are stored, and who hears of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.logins.users import Users


class AdministrationError(Exception):
    """The operation is refused, and changed nothing. The message says why."""


class MissingError(AdministrationError):
    """The object of the operation does not exist."""


class ProtectedError(AdministrationError):
    """The object of the operation is protected from it."""


class Changes:
    """The way in which all operations change a broker and its users."""

    def __init__(self, broker: Broker, users: Users) -> None:
        self.broker = broker
        self.users = users

    def check_user(self, user: str, *, must_exist: bool | None = True) -> None:
        """Make sure that a user exists, or does not; nothing, if `must_exist` is None.

        Raises: MissingError, AdministrationError.
        """
        exists = self.users.row(user) is not None
        if must_exist is True and not exists:
            raise MissingError(f"no user '{user}'")
        if must_exist is False and exists:
            raise AdministrationError(f"user '{user}' exists already")

    def check_vhost(self, vhost: str) -> None:
        """Make sure that a virtual host exists. Raises: MissingError."""
        if vhost not in self.broker.vhosts:
            raise MissingError(f"no vhost '{vhost}'")

    def store(self, defined: Defined, users: Mapping[str, dict[str, Any] | None] = {}) -> None:
        """Store definitions and users in one commit. Raises: AdministrationError."""
        for _ in self.storing(defined, users):
            pass

    def storing(
        self, defined: Defined, users: Mapping[str, dict[str, Any] | None] = {}
    ) -> Iterator[None]:
        """Store as `store` does, and apply it step by step."""
        applying = self.broker.defining(defined, self.users.changes(users))
        try:
            next(applying, None)
        except (ValueError, TypeError, OverflowError) as error:
            raise AdministrationError(f"this cannot be stored: {error}") from error
        self.users.have(users)
        yield from applying

    def made(self, by: By, line: str, *events: BrokerEvent, **said: Any) -> None:
        """Tell of a change, in the audit and as events. Args: said, the fields of the line."""
        self.broker.services.events.happened(line, *events, by=by, **said)
