"""Looks up the names of etcd's endpoints, and of other members, within a time limit: the system's
look-up has none, and a lease ends while somebody waits for it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

THREAD = "name look-up"


class HostAddresses:
    """The addresses of one host; safe in all threads. One look-up is under way at a time, in a
    thread of its own: a caller that stops waiting leaves it to the next one.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._under_way: Future[list[str]] | None = None
        self._known: list[str] = []

    def get(self) -> list[str]:
        """Return the addresses, or those that were found last if there is no answer now.

        Raises: socket.gaierror, if there never was one.
        """
        # An address needs no look-up, and no thread.
        try:
            ip_address(self._host)
        except ValueError:
            pass
        else:
            return [self._host]
        try:
            # A name server that fails for an hour must not cost leadership: the last answer is
            # used meanwhile.
            self._known = self._asked().result(self._timeout_s)
        except TimeoutError:
            if not self._known:
                reason = f"the name {self._host} is not found within {self._timeout_s:g} s"
                raise socket.gaierror(socket.EAI_AGAIN, reason) from None
        except OSError:
            if not self._known:
                raise
        return self._known

    def _asked(self) -> Future[list[str]]:
        with self._lock:
            if self._under_way is None:
                self._under_way = Future()
                threading.Thread(
                    target=self._look_up, args=(self._under_way,), name=THREAD, daemon=True
                ).start()
            return self._under_way

    def _look_up(self, answer: Future[list[str]]) -> None:
        failure: OSError | None = None
        addresses: list[str] = []
        try:
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in found]
        except OSError as error:
            failure = error
        # `getaddrinfo` encodes the name with the `idna` codec, which raises this for a label that
        # is empty or too long.
        except UnicodeError as error:
            failure = socket.gaierror(str(error))
        # Before the answer: a thread that has it and asks again is to get a new one.
        with self._lock:
            self._under_way = None
        if failure is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(failure)


def connecting_to(addresses: HostAddresses, kind: Any) -> Callable[..., HTTPConnection]:
    """Return a class of connections that are made to these addresses; names in certificates are
    those of the host all the same.
    """

    class Connection(kind):  # type: ignore[misc]
        """A connection to the first address that takes it."""

        _dns_host: str

        def _new_conn(self) -> socket.socket:
            host: str = self._dns_host
            # urllib3 would look the name up itself, without a time limit.
            try:
                found = addresses.get()
            except socket.gaierror as error:
                raise NameResolutionError(host, self, error) from error
            failure: ConnectTimeoutError = NewConnectionError(self, "the host has no address")
            for address in found:
                self._dns_host = address
                try:
                    made: socket.socket = super()._new_conn()
                except ConnectTimeoutError as error:
                    failure = error
                else:
                    return made
                finally:
                    # TLS checks the certificate against it, and the next connection asks for it.
                    self._dns_host = host
            raise failure

    return Connection
