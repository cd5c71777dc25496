"""Listening where a proxy passes clients on: each connection begins with a header of the PROXY
protocol, and the client is accepted with the addresses that it names.
"""

from __future__ import annotations

import logging
import socket
from functools import partial

import trio

from amqpstore_server.administration.first_users import is_loopback
from amqpstore_server.broker.monitoring.log_limit import LogLimit
from amqpstore_server.listening.proxied_sockets import AddressedSocket, ProxiedListener
from amqpstore_server.listening.proxy_protocol import (
    Addresses,
    ProxyHeaderError,
    missing_bytes,
    parsed,
)
from amqpstore_server.process.ticking import in_time

HEADER_S = 5.0
MAX_UNREAD = 256
"""Connections whose header has not arrived; further ones wait in the listener's backlog."""

_ACCEPT_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


class ProxyProtocolListener(socket.socket):
    """Listens for connections that begin with a header."""


def behind_headers(listener: socket.socket, nursery: trio.Nursery) -> socket.socket:
    """Return what clients are accepted from: the listener itself, or what they are put into once
    their headers have been read, in the nursery.
    """
    if not isinstance(listener, ProxyProtocolListener):
        return listener
    behind = ProxiedListener.open()
    nursery.start_soon(_read_headers, listener, behind)
    return behind


async def _read_headers(listener: socket.socket, behind: ProxiedListener) -> None:
    """Accept connections until cancelled, and close the listener then."""
    limit = LogLimit()
    free = trio.Semaphore(MAX_UNREAD)
    with listener:
        async with trio.open_nursery() as nursery:
            while True:
                # A connection that has to wait is not accepted yet: in the kernel's backlog it
                # needs no descriptor of this process.
                await free.acquire()
                try:
                    client, address = listener.accept()
                except BlockingIOError:
                    free.release()
                    await trio.lowlevel.wait_readable(listener)
                except OSError as error:
                    free.release()
                    _log.error("cannot accept", extra={"reason": str(error)})
                    await trio.sleep(_ACCEPT_AGAIN_S)
                else:
                    nursery.start_soon(_pass_on, client, address, behind, limit, free)


async def _pass_on(
    client: socket.socket,
    address: tuple[str, int],
    behind: ProxiedListener,
    limit: LogLimit,
    free: trio.Semaphore,
) -> None:
    """Read the header of one connection, and have the client accepted."""
    host, port = address[:2]
    reason = ""
    try:
        client.setblocking(False)
        addresses = await in_time(HEADER_S, partial(_addresses, client, host, port))
        passed_on = AddressedSocket(fileno=client.detach())
        passed_on.setblocking(False)
        passed_on.peer, passed_on.local = addresses[:2], addresses[2:]
        behind.put(passed_on)
    except EOFError:
        pass  # a proxy that looks whether somebody listens
    except trio.TooSlowError:
        reason = f"it was not sent within {HEADER_S} s"
    except (ProxyHeaderError, OSError) as error:
        reason = str(error)
    finally:
        client.close()
        free.release()
    if reason and limit.passes(host, trio.current_time()):
        extra = {"peer": f"{host}:{port}", "reason": reason, **limit.suppressed()}
        _log.warning("no header of the PROXY protocol", extra=extra)


async def _addresses(client: socket.socket, host: str, port: int) -> Addresses:
    """Read the header, and nothing behind it. Args: host, port, from where it comes.

    Raises: ProxyHeaderError; EOFError, if nothing came; OSError.
    """
    header = b""
    while count := missing_bytes(header):
        try:
            read = client.recv(count)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(client)
            continue
        except ConnectionError:
            read = b""
        if not read:
            if not header:
                raise EOFError
            raise ProxyHeaderError(f"it ends after {header!r}")
        header += read
    addresses, _ = parsed(header)
    if addresses is None:
        # Of a proxy that has left again, the socket does not know the address any more.
        return Addresses(host, port, *client.getsockname()[:2])
    # A client of this machine may do more than others (see `first_users`), so only a proxy of this
    # machine is believed to have one.
    if is_loopback(addresses.host) and not is_loopback(host):
        raise ProxyHeaderError(
            f"it names {addresses.host}, which is this machine, from another one"
        )
    return addresses
