"""The sockets of the management API and of metrics."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import NamedTuple

from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.config import DEFAULT_MANAGEMENT, Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.listening.listening import listen

_log = logging.getLogger(__name__)


class ManagementSockets(NamedTuple):
    """The sockets on which requests to the management API are accepted, and on which metrics are
    read.
    """

    plain: Sequence[socket.socket] = ()
    tls: Sequence[socket.socket] = ()
    metrics: Sequence[socket.socket] = ()


async def listen_for_management(config: Config) -> ManagementSockets:
    """Open the sockets of the management API and of metrics. Raises: ConfigError."""
    sockets = await listen_for_requests(config)
    metrics = await listen([host_and_port(one) for one in config.metrics_listen])
    return sockets._replace(metrics=metrics)


async def listen_for_requests(config: Config) -> ManagementSockets:
    """Open the sockets of the management API, without those of metrics. Raises: ConfigError.

    The default address may be that of another broker on this machine: messages are served all the
    same. An address that somebody has configured has to be free.
    """
    try:
        plain = await listen([host_and_port(one) for one in config.management_listen])
    except ConfigError as error:
        if tuple(config.management_listen) != DEFAULT_MANAGEMENT:
            raise
        _log.error("no management API", extra={"reason": str(error), "key": "management_listen"})
        plain = []
    tls = await listen([host_and_port(one) for one in config.management_tls_listen])
    return ManagementSockets(plain, tls)


def url_of(scheme: str, listener: socket.socket) -> str:
    """Return the URL of a socket that is listened on."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
