"""Work that is due twice a second, for all clients and the store, beside the rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import trio

from amqpstore_server.broker.broker import Broker
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.garbage import WholeCollector
from amqpstore_server.loop.loop_limits import LoopLimits
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_server.loop.trimming import CLIENT_BYTES, Trimming, trim
from amqpstore_server.process.ticking import Standstill, tick_all

_log = logging.getLogger(__name__)

TICK_S = 0.5


class Ticks:
    """Has clients, alarms, the store's upkeep and free memory looked after.

    Args: wake, asks for a round; connections, those that are open; connections_bytes, returns what
    the unfinished bodies and transactions of all of them may have.
    """

    def __init__(
        self,
        broker: Broker,
        committer: Committer,
        alarms: Alarms,
        wake: Callable[[], None],
        connections: Collection[SocketConnection],
        connections_bytes: Callable[[], int],
        limits: LoopLimits,
    ) -> None:
        self._broker = broker
        self._services = broker.services
        self._committer = committer
        self._alarms = alarms
        self._wake = wake
        self._connections = connections
        self._connections_bytes = connections_bytes
        self.trimming = Trimming(limits)
        self._whole_collector = WholeCollector(limits)

    async def run(self) -> None:
        """Tick until cancelled."""
        standstill, store = Standstill(TICK_S, trio.current_time()), self._services.store
        while True:
            await trio.sleep(TICK_S)
            self._services.work["tick"] = None
            if still_s := standstill.tick(trio.current_time()):
                self._stood_still(still_s)
            self._committer.housekeep()
            if store.space.is_low:
                self._broker.end_purges()
            self.look_at_alarms()
            self._services.flush_trails()
            self._services.statistics.departures.write()
            self._services.statistics.count_confirms()
            self._broker.read_again()
            self._broker.close_late_channels()
            if self._broker.pumping.has_work:
                self._wake()
            await tick_all(self._connections)
            unfinished = [one.amqp for one in self._connections]
            most_bytes, now = self._connections_bytes(), trio.current_time()
            held_bytes = self._alarms.free_unfinished(unfinished, most_bytes, now)
            held_bytes += CLIENT_BYTES * len(self._connections) + store.memory.all_bytes
            self._whole_collector.tick(trio.current_time(), is_serving=bool(self._connections))
            if self.trimming.is_due(held_bytes, trio.current_time()):
                # Beside the event loop, which it could hold for some milliseconds.
                await trio.to_thread.run_sync(trim)

    def look_at_alarms(self) -> None:
        """Raise or clear the alarms, as each tick does."""
        self._alarms.look(trio.current_time())

    def _stood_still(self, seconds: float) -> None:
        """Do not count against clients the time in which nothing was read from them."""
        _log.warning("the broker stood still", extra={"seconds": round(seconds, 1)})
        now = trio.current_time()
        self._services.ack_timeouts.stood_still(int(seconds * 1000))
        for connection in self._connections:
            connection.stood_still(seconds, now)
