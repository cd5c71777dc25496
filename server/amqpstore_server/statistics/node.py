"""The resources that the node uses, and its work since its start: the figures that have rates."""

from __future__ import annotations

import gc
import os
import resource
import threading

from amqpstore_server.broker.broker import Broker
from amqpstore_server.loop.alarms import used_bytes

NODE_FIELDS = (
    *("mem_used", "fd_used", "sockets_used", "disk_free", "proc_used"),
    *("io_sync_count", "io_write_count", "io_write_bytes", "io_read_count", "io_read_bytes"),
    *("gc_num", "context_switches"),
)


def node_values(broker: Broker, connections: int) -> tuple[int, ...]:
    """Return the values of `NODE_FIELDS`."""
    store = broker.services.store
    measures = store.measures
    syncs = sum(measures.sync_s.buckets)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (
        *(used_bytes(), len(os.listdir("/proc/self/fd")), connections),
        *(store.statistics.figures().free_bytes, threading.active_count()),
        *(syncs, syncs, int(measures.batch_bytes.total), measures.read_count, measures.read_bytes),
        sum([generation["collections"] for generation in gc.get_stats()]),
        usage.ru_nvcsw + usage.ru_nivcsw,
    )
