"""Listening: the sockets on which clients arrive."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Callable, Collection, Sequence

import trio

from amqpstore_server.config.keys import ConfigError
from amqpstore_server.listening.admission import AdmissionLine, Admit
from amqpstore_server.listening.proxied_listening import ProxyProtocolListener

# Linux takes no more than net.core.somaxconn, which is this since 5.4 (listen(2)).
_BACKLOG = 4096
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104
_ACCEPTED_AT_ONCE = 128
_BUSY_S = 0.004
"""How long no client is accepted, after some at once, while those cannot be let in."""

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
            # With 0.0.0.0 beside it, the port would be taken already in IPv4.
            if host == _ANY_IPV6 and (_ANY_IPV4, port) not in addresses:
                opened = [_listen_for_both(port)]
            else:
                tcp_listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
                opened = [one.socket.detach() for one in tcp_listeners]
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


class Acceptor:
    """Accepts clients on a listener, and has them let in.

    Args: admission, where they wait for that; admit, lets one in. others_first, whether other work
    comes first and no client is to be accepted now: given by a caller that tells of each arrival by
    calling `has_arrived`.
    """

    def __init__(
        self,
        listener: socket.socket,
        admission: AdmissionLine,
        admit: Admit,
        others_first: Callable[[], bool] | None = None,
    ) -> None:
        self._listener = listener
        self._admission = admission
        self._admit = admit
        self._others_first = others_first
        self._idle: trio.CancelScope | None = None
        """The scope in which `run` waits for the next client to connect while none waits to be let
        in.
        """

    async def run(self) -> None:
        """Accept clients until cancelled, and close the listener then, and those that still wait to
        be let in.
        """
        with self._listener, contextlib.closing(self._admission):
            while True:
                is_drained, pause_s = self._accept()
                wait_s = self._admission.let_in(trio.current_time())
                if is_drained:
                    await self._wait(wait_s if self._admission else math.inf)
                else:
                    # Those that come faster than this wait in the listener's backlog.
                    await trio.sleep(pause_s or (_BUSY_S if wait_s else 0.0))

    def has_arrived(self, now: float) -> bool:
        """Accept those that have just connected, for a caller who knows of them before `run` does.

        Returns whether it has nothing left to do.
        """
        if self._idle is None:
            return False  # those before them have their turn first
        is_drained, _ = self._accept()
        self._admission.let_in(now)
        if is_drained and not self._admission:
            return True
        self._idle.cancel()
        return False

    def _accept(self) -> tuple[bool, float]:
        """Accept some clients. Returns whether none is left, and for how long none can be accepted
        after an error.
        """
        if self._others_first is not None and self._others_first():
            return False, _BUSY_S
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                client, address = self._listener.accept()
                self._admission.join(client, address[0], self._admit)
        except BlockingIOError:
            return True, 0.0
        except OSError as error:
            # Usually too many open files: wait for some to be closed.
            _log.error("cannot accept", extra={"reason": str(error)})
            return False, _ACCEPT_AGAIN_S
        return False, 0.0

    async def _wait(self, seconds: float) -> None:
        """Wait for somebody to connect, for a time at most."""
        try:
            with trio.move_on_after(seconds) as scope:
                self._idle = None if self._admission else scope
                if self._others_first is None:
                    await trio.lowlevel.wait_readable(self._listener)
                else:
                    await trio.sleep_forever()
        finally:
            self._idle = None
