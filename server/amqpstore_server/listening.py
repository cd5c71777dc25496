"""Listening: the sockets on which clients arrive, and how fast they are accepted."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import trio

from amqpstore_server.config_keys import ConfigError
from amqpstore_server.doors import AcceptRate

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 32
_GONE_SHARE = 0.1
_ACCEPT_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


async def listen(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Open the sockets on which `App.run` accepts clients. Raises: ConfigError."""
    listeners = []
    for host, port in addresses:
        try:
            opened = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        except UnicodeError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        for listener in opened:
            plain = socket.socket(fileno=listener.socket.detach())
            plain.setblocking(False)
            listeners.append(plain)
    return listeners


async def accept_clients(
    listener: socket.socket, rate: AcceptRate, admit: Callable[[socket.socket], bool]
) -> None:
    """Accept clients until cancelled, and close the listener then.

    `admit` is called with each, and tells whether there was room: those that had to make it close
    their sockets in a turn of their own.
    """
    with listener:
        while True:
            try:
                wait_s = _accept_some(listener, rate, admit)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                continue
            except OSError as error:
                # Usually too many open files: wait for some to be closed.
                _log.error("cannot accept", extra={"reason": str(error)})
                await trio.sleep(_ACCEPT_AGAIN_S)
                continue
            # Those that come faster wait in the listener's backlog.
            await trio.sleep(wait_s)


def _accept_some(
    listener: socket.socket, rate: AcceptRate, admit: Callable[[socket.socket], bool]
) -> float:
    """Accept clients; returns for how many seconds no more may be accepted.

    More than one, because the caller's task has its turn only every few milliseconds while there is
    traffic: a client would wait long behind others that come in numbers.

    Raises: BlockingIOError, when nobody is left; OSError, if no more can be accepted.
    """
    for _ in range(_ACCEPTED_AT_ONCE):
        client, _ = listener.accept()
        share = 1.0
        has_room = True
        if _is_gone(client):
            # It costs little, and so counts little: those behind it are not to wait for it.
            client.close()
            share = _GONE_SHARE
        else:
            has_room = admit(client)
        wait_s = rate.wait_s(trio.current_time(), share)
        if wait_s or not has_room:
            return wait_s
    return 0.0


def _is_gone(client: socket.socket) -> bool:
    """Tell whether a client has reset its connection before it was accepted."""
    try:
        client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
