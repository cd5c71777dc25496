"""The figures and samples of live pages: what an event stream brings.

A page's charts begin with the samples that the broker has kept, and get a value every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import trio

from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.node import uptime_ms
from amqpstore_server.management.pages.api import PageApi
from amqpstore_server.management.pages.formats import duration, number, per_second, size

EVERY_S = 2.0
_TICK_AFTER = 3
"""Values after which the tables of a page are read again."""
_AGE_S, _INCR_S = 600, 5
_RANGES = {
    f"{kind}_{name}": value
    for kind in ("lengths", "msg_rates", "data_rates")
    for name, value in (("age", _AGE_S), ("incr", _INCR_S))
}

RATES = ("publish", "deliver_get", "ack", "confirm", "redeliver", "publish_in", "publish_out")
LENGTHS = ("messages_ready", "messages_unacknowledged")


class LiveReading(NamedTuple):
    """A reading of a live page: texts, values for its charts, and the samples before."""

    figures: dict[str, str]
    values: dict[str, float]
    samples: dict[str, list[float | None]]


ReadNow = Callable[[PageApi], Awaitable[LiveReading]]


async def overview(api: PageApi) -> LiveReading:
    """Read what the overview shows."""
    answer = await api.get("overview", **_RANGES)
    nodes = await api.find("nodes", default=[])
    node = nodes[0] if nodes else {}
    stats, totals = answer.get("message_stats") or {}, answer.get("queue_totals") or {}
    objects = answer.get("object_totals") or {}
    latencies = await _latencies(api)
    figures = {
        **_lengths(totals),
        **_rates(stats, ("publish", "deliver_get", "ack")),
        **{
            key: number(objects.get(key))
            for key in ("connections", "channels", "consumers", "queues")
        },
        "memory": size(node.get("mem_used")),
        "disk_free": size(node.get("disk_free")),
        "uptime": duration((node.get("uptime") or 0) / 1000),
    }
    values = {
        **_values(stats, totals),
        **latencies,
        "memory": node.get("mem_used"),
        "disk_free": node.get("disk_free"),
    }
    return LiveReading(figures, _known(values), _samples(stats, totals))


def queue(vhost: str, name: str) -> ReadNow:
    """Return what reads the figures of a queue."""

    async def read(api: PageApi) -> LiveReading:
        found = await api.get("queues", vhost, name, **_RANGES)
        stats = found.get("message_stats") or {}
        figures = {
            **_lengths(found),
            **_rates(stats, ("publish", "deliver_get", "ack", "redeliver")),
            "memory": size(found.get("memory")),
            "consumers": number(found.get("consumers")),
        }
        return LiveReading(figures, _known(_values(stats, found)), _samples(stats, found))

    return read


def exchange(vhost: str, name: str) -> ReadNow:
    """Return what reads the figures of an exchange."""

    async def read(api: PageApi) -> LiveReading:
        found = await api.get("exchanges", vhost, name or "amq.default", **_RANGES)
        stats = found.get("message_stats") or {}
        return LiveReading({}, _known(_values(stats, {})), _samples(stats, {}))

    return read


def connection(name: str) -> ReadNow:
    """Return what reads the figures of a connection."""

    async def read(api: PageApi) -> LiveReading:
        found = await api.get("connections", name, **_RANGES)
        keys = ("recv_oct", "send_oct")
        values = {key: (found.get(f"{key}_details") or {}).get("rate") for key in keys}
        details = {key: found.get(f"{key}_details") or {} for key in keys}
        return LiveReading({}, _known(values), _merged(details, keys, _started_s()))

    return read


async def store(api: PageApi) -> LiveReading:
    """Read the figures of the store."""
    found = await api.get("store")
    keys = ("live_bytes", "garbage_bytes", "log_tail_bytes")
    figures = {
        "segments": number(found["segment_count"]),
        **{key: size(found[key]) for key in (*keys, "memory_bytes")},
        "checkpoint_age": f"{duration(found['checkpoint_age_s'])} ago",
        "queues_in_memory": number(found["queues_in_memory"]),
        "queues_on_disk": number(found["queues_on_disk"]),
    }
    values = {key: found[key] for key in keys}
    return LiveReading(figures, _known({**values, **await _latencies(api)}), {})


async def nothing(_api: PageApi) -> LiveReading:
    """Read nothing: of this page only the tables are live."""
    return LiveReading({}, {}, {})


async def events(
    read: ReadNow, current: Callable[[], Awaitable[PageApi | None]], stopping: trio.Event
) -> AsyncIterator[bytes]:
    """Yield the events of a stream until the session ends, which the last one says, or the broker
    stops.

    Args: current, returns the API as the user may use it now; None without a session.
    """
    count = 0
    while not stopping.is_set():
        api = await current()
        if api is None:
            yield _event("ended", {})
            return
        try:
            reading = await read(api)
        except HttpError as error:
            # What the page shows is gone, or the user may not see it any more.
            yield _event("gone", {"reason": error.reason})
            return
        if not count and len(reading.samples.get("times", [])) > 1:
            yield _event("samples", reading.samples)
        yield _event("figures", reading.figures)
        now: dict[str, list[float]] = {key: [value] for key, value in reading.values.items()}
        yield _event("samples", {"times": [time.time()], **now})
        count += 1
        if not count % _TICK_AFTER:
            yield _event("tick", {})
        with trio.move_on_after(EVERY_S):
            await stopping.wait()


def _event(name: str, value: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


async def _latencies(api: PageApi) -> dict[str, float | None]:
    found = await api.find("latencies", default={})
    return {
        f"{name}_{quantile}": (found.get(name) or {}).get(quantile)
        for name in ("sync", "confirm")
        for quantile in ("p50", "p99")
    }


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in values.items() if value is not None}


def _lengths(row: Mapping[str, Any]) -> dict[str, str]:
    return {key: number(row.get(key)) for key in LENGTHS}


def _rates(stats: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    return {key: per_second((stats.get(f"{key}_details") or {}).get("rate")) for key in keys}


def _values(stats: Mapping[str, Any], lengths: Mapping[str, Any]) -> dict[str, float | None]:
    rates = {
        key: (stats.get(f"{key}_details") or {}).get("rate", 0.0)
        for key in RATES
        if f"{key}_details" in stats
    }
    return {**rates, **{key: lengths.get(key) for key in LENGTHS}}


def _samples(stats: Mapping[str, Any], lengths: Mapping[str, Any]) -> dict[str, list[float | None]]:
    details = {key: stats[f"{key}_details"] for key in RATES if f"{key}_details" in stats}
    details |= {key: lengths.get(f"{key}_details") or {} for key in LENGTHS}
    return _merged(details, RATES, _started_s())


def _started_s() -> float:
    return time.time() - uptime_ms() / 1000


def _merged(
    details: Mapping[str, Mapping[str, Any]], counted: Iterable[str], since_s: float
) -> dict[str, list[float | None]]:
    """Return samples as columns, oldest first; of those that are counted, the rates between.

    Args: since_s, when the broker started: before that, the API repeats the first value.
    """
    columns: dict[str, dict[float, float]] = {}
    for key, detail in details.items():
        samples = [
            (one["timestamp"] / 1000, one["sample"])
            for one in detail.get("samples", [])
            if one["timestamp"] / 1000 >= since_s
        ]
        samples.reverse()
        if key in counted:
            columns[key] = {
                at: max(value - before, 0) / (at - since)
                for (since, before), (at, value) in pairwise(samples)
                if at > since
            }
        else:
            columns[key] = dict(samples)
    times = sorted({at for column in columns.values() for at in column})
    if not times:
        return {}
    merged: dict[str, list[float | None]] = {"times": [*times]}
    for key, column in columns.items():
        merged[key] = [column.get(at) for at in times]
    return merged
