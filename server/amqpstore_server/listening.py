"""Listening: the sockets on which clients arrive."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Collection, Sequence

import trio

from amqpstore_server.admission import AdmissionLine, Admit
from amqpstore_server.config_keys import ConfigError
from amqpstore_server.proxied_listening import ProxyProtocolListener

_BACKLOG = 1024
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104
_ACCEPTED_AT_ONCE = 32
_BUSY_S = 0.004
"""How long nobody is accepted, after some at once, while those who were cannot be let in."""

_ACCEPT_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


async def listen(
    addresses: Sequence[tuple[str, int]], behind_proxies: Collection[tuple[str, int]] = ()
) -> list[socket.socket]:
    """Open the sockets on which `App.run` accepts clients. Raises: ConfigError.

    Args: behind_proxies, those addresses where connections begin with a header of the PROXY
    protocol.
    """
    listeners = []
    for host, port in addresses:
        kind = ProxyProtocolListener if (host, port) in behind_proxies else socket.socket
        try:
            if host == _ANY_IPV6 and (_ANY_IPV4, port) not in addresses:
                opened = [_listen_for_both(port)]
            else:
                found = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
                opened = [one.socket.detach() for one in found]
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        except UnicodeError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        for descriptor in opened:
            listener = kind(fileno=descriptor)
            listener.setblocking(False)
            listeners.append(listener)
    return listeners


def _listen_for_both(port: int) -> int:
    """Return the descriptor of a socket for all addresses, of IPv6 and of IPv4, as programs of
    other languages open one; of IPv6 only where the system has no such sockets. Raises: OSError.
    """
    return socket.create_server(
        (_ANY_IPV6, port),
        family=socket.AF_INET6,
        backlog=_BACKLOG,
        dualstack_ipv6=socket.has_dualstack_ipv6(),
    ).detach()


async def accept_clients(listener: socket.socket, admission: AdmissionLine, admit: Admit) -> None:
    """Accept clients until cancelled, and close the listener then, and those that still wait to be
    let in.
    """
    with listener, contextlib.closing(admission):
        while True:
            is_drained, pause_s = False, 0.0
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    client, address = listener.accept()
                    admission.join(client, address[0], admit)
            except BlockingIOError:
                is_drained = True
            except OSError as error:
                # Usually too many open files: wait for some to be closed.
                _log.error("cannot accept", extra={"reason": str(error)})
                pause_s = _ACCEPT_AGAIN_S
            wait_s = admission.let_in(trio.current_time())
            if is_drained:
                with trio.move_on_after(wait_s if admission else math.inf):
                    await trio.lowlevel.wait_readable(listener)
            else:
                # Those that come faster than this wait in the listener's backlog.
                await trio.sleep(pause_s or (_BUSY_S if wait_s else 0.0))
