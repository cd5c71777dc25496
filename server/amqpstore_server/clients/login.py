"""Logins: parses the responses of the security mechanisms (AMQP 0-9-1, connection.start-ok)."""

from __future__ import annotations

from dataclasses import dataclass

from amqpstore_server.broker.rights.scopes import TokenRights
from amqpstore_server.protocol.errors import MalformedError, PreconditionFailed
from amqpstore_server.protocol.field_table import decode_table

PASSWORD_MECHANISMS = ("PLAIN", "AMQPLAIN")
EXTERNAL = "EXTERNAL"
"""The client's certificate, which was verified, says who the user is."""


@dataclass(frozen=True)
class Login:
    """The user name and password that a client sent, not checked yet (see
    `AmqpConnection.logged_in`). With the mechanism EXTERNAL the name is that of the certificate.
    """

    user: str
    password: bytes
    mechanism: str = ""


@dataclass(frozen=True)
class CheckedLogin:
    """Whether a login, or a token, is right. `rights` is what a token grants; `reason` says to the
    log what is wrong with it.
    """

    granted: bool
    rights: TokenRights | None = None
    reason: str = ""


NO_LOGIN = Login("", b"")
"""The login of a client that has not sent one yet."""


def login_of(mechanism: str, response: bytes, certificate_user: str = "") -> Login | None:
    """Parse a response; None if it is not valid for its mechanism. The response of EXTERNAL is
    ignored, as in RabbitMQ.
    """
    if mechanism == EXTERNAL:
        return Login(certificate_user, b"", mechanism) if certificate_user else None
    if mechanism == "PLAIN":
        # RFC 4616: authorization identity, user and password, separated by NUL.
        parts = response.split(b"\0")
        if len(parts) != 3:
            return None
        return Login(parts[1].decode("utf-8", "replace"), parts[2], mechanism)
    if mechanism == "AMQPLAIN":
        # The entries of a field table, without the length in front of them.
        try:
            table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
        except (MalformedError, PreconditionFailed):
            return None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(password, str):
            password = password.encode()
        if isinstance(user, str) and isinstance(password, bytes):
            return Login(user, password, mechanism)
    return None
