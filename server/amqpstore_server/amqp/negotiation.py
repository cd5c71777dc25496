"""The handshake of a connection: login, tuning and virtual host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amqpstore_server.amqp.product import Product, shares_prefetch, start
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import EXTERNAL, NO_LOGIN, PASSWORD_MECHANISMS, login_of
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import AccessRefused
from amqpstore_server.protocol.handshake import HANDSHAKE_FRAME_BYTES
from amqpstore_server.protocol.spec import FRAME_MIN_SIZE, PROTOCOL_HEADERS

_TLS_RECORD = b"\x16\x03"
"""The first bytes of a handshake of TLS."""


class Negotiation:
    """The server's side of the handshake.

    `login` is what the client sent; the password is kept only until it has been checked.
    `mechanisms` are those that it may use; `certificate_user` is for EXTERNAL. `channel_max` and
    `frame_max` have the limits that apply before tuning, too.
    """

    def __init__(self, limits: Limits, product: Product, log: ClientLog) -> None:
        self.login = NO_LOGIN
        self.mechanisms: tuple[str, ...] = PASSWORD_MECHANISMS
        self.certificate_user = ""
        self.shares_prefetch = False
        self.channel_max = limits.channel_max
        self.frame_max = HANDSHAKE_FRAME_BYTES
        self._limits = limits
        self._product = product
        self._log = log
        self.mechanism = ""
        self.client_properties: dict[str, Any] = {}
        """The client's description of itself."""
        self._capabilities: dict[str, Any] = {}

    def speaks(self, header: bytes) -> bool:
        """Tell whether a protocol header is that of AMQP 0-9-1; log what it is otherwise."""
        if header in PROTOCOL_HEADERS:
            return True
        is_tls = header.startswith(_TLS_RECORD)
        what = "TLS client on a port without TLS" if is_tls else "not AMQP 0-9-1"
        self._log.warning(what, extra={"header": header.hex()})
        return False

    def start(self) -> bytes:
        """Return the payload of connection.start, with the server's capabilities and mechanisms."""
        return start(self._product, self.mechanisms)

    def start_ok(self, method: methods.ConnectionStartOk) -> bool:
        """Read the client's capabilities and login. Returns False if the login is malformed."""
        self.shares_prefetch = shares_prefetch(self._product, method.client_properties)
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._capabilities = capabilities
        self.client_properties = method.client_properties
        self.mechanism = method.mechanism
        extra = {"mechanism": method.mechanism}
        is_certified = method.mechanism == EXTERNAL and self.certificate_user
        # Rule `validity` of start-ok in the specification: the connection is closed without any
        # further data.
        if method.mechanism not in self.mechanisms and not is_certified:
            self._log.warning(
                "the client chose a login mechanism that was not offered", extra=extra
            )
            return False
        login = login_of(method.mechanism, method.response, self.certificate_user)
        if login is None:
            self._log.warning("the client sent a malformed login", extra=extra)
            return False
        self.login = login
        return True

    def has_capability(self, capability: str) -> bool:
        """Tell whether the client has a capability."""
        return bool(self._capabilities.get(capability))

    def forget_password(self) -> None:
        """Forget the password: the login was checked."""
        # A dump of the process, or an error that prints it, must not show passwords of all
        # clients.
        self.login = replace(self.login, password=b"")

    def refusal(self) -> AccessRefused:
        """Return the error for a client whose login is wrong, if the client can be sent one."""
        # No reason is given: a stranger must not learn which users exist.
        return AccessRefused(
            f"Login was refused using authentication mechanism {self.mechanism}. For details "
            "see the broker logfile."
        )

    def tune(self) -> methods.ConnectionTune:
        """Return connection.tune, with the limits that the server proposes."""
        return methods.ConnectionTune(
            channel_max=self._limits.channel_max,
            frame_max=self._limits.frame_max,
            heartbeat=self._limits.heartbeat_s,
        )

    def tune_ok(self, method: methods.ConnectionTuneOk) -> bool:
        """Take over the client's limits. Returns False if they exceed what was proposed."""
        limits = self._limits
        # In tune-ok 0 means that the client has no limit of its own.
        channel_max = method.channel_max or limits.channel_max
        frame_max = method.frame_max or limits.frame_max
        # Rule `upper-limit` of tune-ok: the connection is closed, and nothing is negotiated.
        if channel_max > limits.channel_max or not (
            FRAME_MIN_SIZE <= frame_max <= limits.frame_max
        ):
            extra = {"channel_max": channel_max, "frame_max": frame_max}
            self._log.warning("tune-ok exceeds the limits that were offered", extra=extra)
            return False
        self.channel_max = channel_max
        self.frame_max = frame_max
        return True
