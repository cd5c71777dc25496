"""Carries out a request for the broker of a data directory: the broker does it, if one runs; else
it is done on the store, with the same functions.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import sys
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import msgspec

from amqpstore import DiskFullError, Store, StoreLockedError
from amqpstore.replica import read_membership
from amqpstore.system.files import OsFiles
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.definitions import DefinitionsError
from amqpstore_server.administration.framing import (
    LENGTH,
    MAX_BYTES,
    SOCKET,
    address_in,
    framed,
)
from amqpstore_server.administration.operations import STOPPED, Administration
from amqpstore_server.administration.requests import carried_out
from amqpstore_server.administration.work import done
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES, plugged_in
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.logins.users import Users
from amqpstore_server.reports.recovery_reports import keep_report
from amqpstore_tools.offline.exits import NotFoundError, ToolError
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.offline.short_log import refuse_short_log

_CONNECT_S = 5.0
_NOBODY_LISTENS = (errno.ENOENT, errno.ECONNREFUSED, errno.ELOOP)
"""There is no socket, that of a broker that was killed, or something that is not a socket."""

_PATIENCE_S = 10.0
"""The time without an answer after which people are told what they are waiting for."""


class RefusedError(ToolError):
    """The operation was refused, and changed nothing."""


def asked(directory: str, request: dict[str, Any]) -> Any:
    """Carry out a request (see `administration.requests` of the server), and return the answer.

    Raises: RefusedError, NotFoundError, StoreError, OSError.
    """
    require_store(directory)
    content = json.dumps(request).encode()
    if len(content) > MAX_BYTES:
        raise RefusedError(f"too large: more than {MAX_BYTES >> 20} MiB")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        with address_in(directory) as address:
            try:
                connection.connect(address)
            except (TimeoutError, BlockingIOError):
                raise ToolError(
                    f"the broker on {directory} does not take requests: it hangs, or is stopped. "
                    "Look at its log; nothing was changed."
                ) from None
            except OSError as error:
                if error.errno not in _NOBODY_LISTENS:
                    error.filename = os.path.join(directory, SOCKET)
                    raise
                return _on_store(directory, content)
        # Deleting a large virtual host may take minutes.
        connection.settimeout(None)
        return _by_broker(connection, content)


def _by_broker(connection: socket.socket, content: bytes) -> Any:
    connection.sendall(framed(content))
    if not wait([connection], _PATIENCE_S):
        sys.stderr.write(
            f"amqpstore: the broker has not answered for {_PATIENCE_S:.0f} s. It may be busy, or "
            "hang: look at its log. After Ctrl-C it may still do what it was asked for.\n"
        )
        sys.stderr.flush()
    try:
        (length,) = LENGTH.unpack(_read(connection, LENGTH.size))
        answer = json.loads(_read(connection, length))
    except (EOFError, ConnectionError):
        raise ToolError("the broker ended before it answered: look at its log") from None
    if "error" not in answer:
        return answer.get("result")
    if answer["kind"] == "missing":
        raise NotFoundError(answer["error"])
    raise RefusedError(answer["error"])


def _read(connection: socket.socket, byte_count: int) -> bytes:
    received = bytearray()
    while len(received) < byte_count:
        read = connection.recv(min(1 << 20, byte_count - len(received)))
        if not read:
            raise EOFError
        received += read
    return bytes(received)


def _on_store(directory: str, content: bytes) -> Any:
    try:
        store = Store.open(directory)
    except StoreLockedError:
        if read_membership(OsFiles(), directory) is None:
            raise
        raise ToolError(
            f"{directory} is that of a member of a group, which runs and does not lead: ask the "
            "leader, on its machine. `amqpstore cluster status` says who that is."
        ) from None
    try:
        refuse_short_log(directory, store)
        services = BrokerServices(
            store,
            clock=store.clock,
            random=secrets.SystemRandom().random,
            make_name=partial(secrets.token_urlsafe, 16),
            exchange_types={**EXCHANGE_TYPES, **plugged_in()},
        )
        broker = Broker(services)
        # Of a broker that was killed: it must not be lost because this is the first to open it.
        keep_report(store, datetime.now(UTC), broker.set_aside)
        administration = Administration(broker, Users(store))
        result = done(carried_out(content, administration, By("", STOPPED)))
        # What was restored may have expired, and been moved to another queue.
        store.sync()
    except BaseException as error:
        store.abandon()
        if isinstance(error, MissingError):
            raise NotFoundError(str(error)) from None
        if isinstance(
            error, (AdministrationError, DefinitionsError, BrokerError, DiskFullError, ValueError)
        ):
            raise RefusedError(str(error)) from None
        raise
    store.close()
    # As the broker would send it.
    return json.loads(msgspec.json.encode(result))
