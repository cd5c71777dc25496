"""The admin socket: the door for operators on the same machine, in the data directory.

Whoever may connect may do everything, so the socket belongs to the broker's user alone: its mode is
0600 before it has a name, and the kernel says who connects.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec
import trio

from amqpstore import DiskFullError
from amqpstore.system.durability import reason_of
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.definitions import DefinitionsError
from amqpstore_server.administration.framing import (
    LENGTH,
    MAX_BYTES,
    SOCKET,
    address_in,
    framed,
)
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.requests import carried_out
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.process.ticking import in_time

_log = logging.getLogger(__name__)

_MAX_CLIENTS = 8
_BACKLOG = 64
_REQUEST_S = 10.0
_ANSWER_S = 60.0
_READ_BYTES = 1 << 16
_PEER = struct.Struct("3i")

CarryOut = Callable[[Work[object]], Awaitable[object]]
"""Carries out work between the turns of the clients, and returns its result."""


@contextlib.contextmanager
def admin_socket(directory: str) -> Iterator[socket.socket | None]:
    """Listen on the admin socket of a data directory that this process has locked; None, and a log
    event, if that is not possible. At the end it is removed.
    """
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(address_in(directory))
            listener = stack.enter_context(_listening(address))
        except OSError as error:
            extra = {"directory": directory, "reason": reason_of(error)}
            _log.error("no admin socket: commands cannot reach this broker", extra=extra)
            yield None
            return
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                os.unlink(address)


def _listening(address: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(address).st_mode):
            raise FileExistsError(f"there is a file {SOCKET} that is not a socket")
        os.unlink(address)  # of a broker that was killed: the directory is locked, so it is gone
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # Before it has a name: the kernel gives the file the mode of the socket, less the umask.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class AdminSocket:
    """Serves the requests on a listening socket, a few at a time."""

    def __init__(
        self, listener: socket.socket, administration: Administration, carry_out: CarryOut
    ) -> None:
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._administration = administration
        self._carry_out = carry_out

    async def run(self) -> None:
        """Serve until cancelled."""
        free = trio.Semaphore(_MAX_CLIENTS)
        async with trio.open_nursery() as nursery:
            while True:
                # Further commands wait in the socket's backlog.
                await free.acquire()
                try:
                    client, _ = await self._listener.accept()
                except OSError as error:
                    _log.error("cannot accept", extra={"reason": str(error)})
                    await trio.sleep(1)
                    free.release()
                    continue
                nursery.start_soon(self._serve, client, free)

    async def _serve(self, client: trio.socket.SocketType, free: trio.Semaphore) -> None:
        try:
            with client, contextlib.suppress(OSError):
                await self._serve_one(client)
        except FATAL:
            raise
        except Exception:  # noqa: BLE001 - an operator must not end the broker
            _log.exception("admin request failed")
        finally:
            free.release()

    async def _serve_one(self, client: trio.socket.SocketType) -> None:
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(credentials)
        if uid not in (0, os.geteuid()):
            _log.warning("admin connection refused", extra={"uid": uid, "pid": pid})
            return
        try:
            request = await in_time(_REQUEST_S, partial(_read, client))
        except trio.TooSlowError:
            return
        if request is None:
            return
        answer = await self._answer(request, By(_name_of(uid), "admin socket"))
        with trio.move_on_after(_ANSWER_S):
            await _write(client, framed(answer))

    async def _answer(self, request: bytes, by: By) -> bytes:
        try:
            result = await self._carry_out(carried_out(request, self._administration, by))
            # An export may be large.
            answer: bytes = await trio.to_thread.run_sync(msgspec.json.encode, {"result": result})
        except (AdministrationError, DefinitionsError, BrokerError, DiskFullError) as error:
            kind = "missing" if isinstance(error, MissingError) else "refused"
            return msgspec.json.encode({"error": str(error), "kind": kind})
        except FATAL:
            raise
        except Exception:  # noqa: BLE001 - an operator must not end the broker
            _log.exception("admin request failed")
            error_text = "an internal error: see the log of the broker"
            return msgspec.json.encode({"error": error_text, "kind": "failed"})
        return answer


async def _read(client: trio.socket.SocketType) -> bytes | None:
    """Read a request; None if it is too long or ends early."""
    received = bytearray()
    needed = LENGTH.size
    while len(received) < needed:
        read = await client.recv(min(_READ_BYTES, needed - len(received)))
        if not read:
            return None
        received += read
        if len(received) == LENGTH.size == needed:
            (length,) = LENGTH.unpack(received)
            if length > MAX_BYTES:
                return None
            needed += length
    return bytes(received[LENGTH.size :])


async def _write(client: trio.socket.SocketType, content: bytes) -> None:
    unsent = memoryview(content)
    while unsent:
        unsent = unsent[await client.send(unsent) :]


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
