"""The broker as a program: what is started, in which order, and how it stops."""

from __future__ import annotations

import gc
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import trio

from amqpstore import Store
from server.amqp.connection import Limits
from server.broker.broker import Broker
from server.committer import Committer
from server.config import Config, ConfigError, host_and_port
from server.connection import SocketConnection
from server.turn import Turn
from server.users import Users

_log = logging.getLogger(__name__)

_TICK_S = 0.5
_LAZY_COMMIT_S = 0.05
"""How long acks without company may wait for their fdatasync."""
_GOODBYE_S = 3.0
_BACKLOG = 1024


def serve(config: Config, on_ready: Callable[[list[tuple[str, int]], str], None]) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Args: on_ready, called with the addresses listened on and the data directory.
    Raises: StoreError, ConfigError (an address cannot be listened on), OSError.
    """
    # The committer's thread wakes for a moment between two syncs; the default of 5 ms would have
    # it wait for that moment as long as thirty syncs take.
    sys.setswitchinterval(0.0005)
    addresses = [host_and_port(address) for address in config.listen]
    store = Store.open(config.data, segment_bytes=config.segment_bytes)
    try:
        _log_recovery(store)
        trio.run(_run, config, store, addresses, on_ready)
    except BaseException:
        store.abandon()
        raise
    store.close()
    _log.info("stopped")


def _log_recovery(store: Store) -> None:
    report = store.recovery_report
    for path, offset, size, reason in report.damage:
        extra = {"path": path, "offset": offset, "bytes": size, "reason": reason}
        _log.error("damage", extra=extra)
    extra = {
        "segments": report.segments,
        "scanned_bytes": report.scanned_bytes,
        "messages": sum(report.kept.values()),
        "redelivered": sum(report.redelivered.values()),
        "torn_bytes": report.torn_bytes,
        "rolled_back": report.rolled_back,
        "lost": len(report.lost),
    }
    _log.log(logging.INFO if report.is_clean else logging.WARNING, "store opened", extra=extra)


async def _run(
    config: Config,
    store: Store,
    addresses: list[tuple[str, int]],
    on_ready: Callable[[list[tuple[str, int]], str], None],
) -> None:
    broker = Broker(store, partial(secrets.token_urlsafe, 16))
    app = _App(config, broker, Users(store))
    listeners = await _listen(addresses)
    # What is there now stays; collecting it over and over would only cost time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        await app.run(store, listeners, partial(on_ready, data_directory=store.directory))
    except* trio.Cancelled:
        raise


async def _listen(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Raises: ConfigError."""
    listeners = []
    for host, port in addresses:
        try:
            opened = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        for listener in opened:
            plain = socket.socket(fileno=listener.socket.detach())
            plain.setblocking(False)
            listeners.append(plain)
    return listeners
