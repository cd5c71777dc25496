"""The one node there is, as rows of the API: its figures, listeners and memory."""

from __future__ import annotations

import os
import platform
import resource
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from amqpstore_server.config_values import least_free_bytes
from amqpstore_server.loop.alarms import available_bytes, used_bytes
from amqpstore_server.metrics.rabbitmq import LOGIN_PROTOCOLS

if TYPE_CHECKING:
    from amqpstore_server.management.context import ManagementContext

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

_MECHANISMS = {
    "PLAIN": "SASL PLAIN authentication mechanism",
    "AMQPLAIN": "QPid AMQPLAIN mechanism",
    "EXTERNAL": "TLS peer verification using SASL EXTERNAL authentication mechanism",
}

_PROTOCOLS = {"amqp/ssl": "amqps"}
"""The names of protocols in health checks, where those of listeners are others."""


def listener_rows(context: ManagementContext) -> list[dict[str, Any]]:
    """Return the addresses that the node listens on."""
    return [
        {
            "node": context.node,
            "protocol": one.protocol,
            "ip_address": one.host,
            "port": one.port,
            "socket_opts": {"backlog": 1024, "nodelay": True},
            "tls": one.has_tls,
        }
        for one in context.listeners
    ]


def exchange_type_rows(context: ManagementContext) -> list[dict[str, Any]]:
    """Return the exchange types that there are."""
    return [
        {"name": name, "description": _first_line(one.__doc__), "enabled": True}
        for name, one in sorted(context.broker.services.exchange_types.items())
    ]


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0].strip()


def context_rows(context: ManagementContext) -> list[dict[str, Any]]:
    """Return where the API is served."""
    return [
        {
            "node": context.node,
            "description": "amqpstore management",
            "path": "/",
            "ip": one.host,
            "port": str(one.port),
            "ssl_opts": [],
        }
        for one in context.listeners
        if one.protocol in ("http", "https")
    ]


def node_row(context: ManagementContext) -> dict[str, Any]:
    """Return the figures of the node."""
    config = context.config()
    store = context.broker.services.store
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = context.alarms.watermark_bytes
    measures = store.measures
    syncs = sum(measures.sync_s.buckets)
    return {
        **context.statistics.node(),
        "name": context.node,
        "type": "disc",
        "running": True,
        "being_drained": context.stopping.is_set(),
        "os_pid": str(os.getpid()),
        "uptime": uptime_ms(),
        "processors": os.cpu_count() or 1,
        "run_queue": _runnable(),
        "fd_total": descriptors,
        "sockets_total": descriptors,
        "proc_total": _max_threads(),
        "io_read_avg_time": 1000 * measures.read_s / (measures.read_count or 1),
        "io_sync_avg_time": 1000 * measures.sync_s.total / (syncs or 1),
        "mem_limit": limit or available_bytes(),
        "mem_alarm": context.alarms.is_memory_low,
        "mem_calculation_strategy": "rss",
        # Publishers are blocked at twice what the store keeps free for itself.
        "disk_free_limit": 2 * least_free_bytes(config),
        "disk_free_alarm": store.space.is_low,
        "partitions": [],
        "rates_mode": "basic",
        "db_dir": store.directory,
        "config_files": [],
        "log_files": ["<stderr>"],
        "enabled_plugins": ["rabbitmq_management"],
        "exchange_types": exchange_type_rows(context),
        "auth_mechanisms": [
            {"name": name, "description": description, "enabled": name in config.mechanisms}
            for name, description in _MECHANISMS.items()
        ],
        "applications": [
            {
                "name": "rabbit",
                "description": context.product.name,
                "version": context.product.version,
            }
        ],
        "contexts": context_rows(context),
        "cluster_links": [],
    }


def _runnable() -> int:
    """Return how many threads of the machine are ready to run, the one that asks among them."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[0])


def _max_threads() -> int:
    with open("/proc/sys/kernel/threads-max", encoding="ascii") as file:
        of_machine = int(file.read())
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return of_machine if limit == resource.RLIM_INFINITY else min(limit, of_machine)


_MEMORY_USES = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other"),
    *("queue_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs"),
    *("stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins"),
    *("metadata_store", "other_proc", "metrics", "mgmt_db", "mnesia", "quorum_ets"),
    *("metadata_store_ets", "other_ets", "binary", "msg_index", "code", "atom", "other_system"),
    *("allocated_unused", "reserved_unallocated"),
)
"""RabbitMQ's names for what memory is used for. A client may refuse an answer without one."""


def _memory_uses(context: ManagementContext, used: int) -> dict[str, int]:
    store = context.broker.services.store
    messages = min(store.memory.all_bytes, used)
    return {
        **dict.fromkeys(_MEMORY_USES, 0),
        "queue_procs": messages,
        "other_proc": used - messages,
    }


def memory_row(context: ManagementContext) -> dict[str, Any]:
    """Return what the memory of the node is used for, as far as that is counted."""
    used = used_bytes()
    return {
        **_memory_uses(context, used),
        "strategy": "rss",
        "total": {"rss": used, "allocated": used, "erlang": used},
    }


def relative_memory_row(context: ManagementContext) -> dict[str, int]:
    """Return the same in percent of all, rounded up."""
    used = max(used_bytes(), 1)
    parts = _memory_uses(context, used)
    return {"total": 100, **{name: -(-100 * part // used) for name, part in parts.items()}}


def login_rows(context: ManagementContext) -> list[dict[str, Any]]:
    """Return how often clients have tried to log in, by protocol."""
    logins = context.broker.services.statistics.logins
    return [
        {
            "protocol": protocol,
            "auth_attempts": logins[protocol, True] + logins[protocol, False],
            "auth_attempts_succeeded": logins[protocol, True],
            "auth_attempts_failed": logins[protocol, False],
        }
        for protocol in LOGIN_PROTOCOLS
    ]


def protocol_names(context: ManagementContext) -> list[str]:
    """Return the protocols that the node listens for, by their names in health checks."""
    return sorted({_PROTOCOLS.get(one.protocol, one.protocol) for one in context.listeners})


@cache
def python_version() -> str:
    """Return the version of Python, where RabbitMQ has that of Erlang."""
    return f"Python {platform.python_version()}"


def uptime_ms() -> int:
    """Return for how many ms this process has run."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _CLOCK_TICKS) * 1000)
