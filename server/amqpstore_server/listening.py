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
            opened = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        except UnicodeError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        for listener in opened:
            plain = kind(fileno=listener.socket.detach())
            plain.setblocking(False)
            listeners.append(plain)
    return listeners


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
