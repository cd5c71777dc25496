"""The page of the store: its segments as a picture, and what it has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amqpstore_server.management.pages import charts
from amqpstore_server.management.pages.api import PageApi
from amqpstore_server.management.pages.formats import moment, size

_WIDTH, _HEIGHT = 1000, 150
_MAX_BARS = 250


class SegmentBar(NamedTuple):
    """A segment, or neighbours that are drawn as one: garbage above, live below."""

    x: float
    width: float
    y: float
    garbage_height: float
    live_y: float
    live_height: float
    log: bool
    title: str


async def read(api: PageApi, _asked: object) -> dict[str, Any]:
    """Read what the page shows."""
    found = await api.get("store")
    reading = await charts.store(api)
    return {
        "store": found,
        "figures": reading.figures,
        "segments": _picture(found["segments"]),
        "compaction": found["work"] if found["work"] == "compaction" else "",
        "recovery": found["recovery"],
        "check": {"when": moment(found["check"]["ended_ms"]), **found["check"]},
        "quarantine": found["quarantine"],
        "prepared": found["prepared"],
    }


def _picture(segments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return bars as high as the segments are large; many segments share a bar."""
    each = -(-len(segments) // _MAX_BARS) or 1
    groups = [segments[first : first + each] for first in range(0, len(segments), each)]
    most = max((sum(one["size_bytes"] for one in group) for group in groups), default=0) or 1
    step = min(_WIDTH / max(len(groups), 1), 40.0)
    bars = []
    for index, group in enumerate(groups):
        live = sum(one["live_bytes"] for one in group)
        garbage = sum(one["garbage_bytes"] for one in group)
        total = sum(one["size_bytes"] for one in group)
        is_log = all(one["is_log"] for one in group)
        live_height = _HEIGHT * (total - garbage if is_log else live) / most
        garbage_height = _HEIGHT * garbage / most
        names = str(group[0]["number"])
        if len(group) > 1:
            names += f" to {group[-1]['number']}"
        bars.append(
            SegmentBar(
                round(index * step + step * 0.08, 2),
                round(step * 0.84, 2),
                round(_HEIGHT - live_height - garbage_height, 2),
                round(garbage_height, 2),
                round(_HEIGHT - live_height, 2),
                round(live_height, 2),
                is_log,
                f"Segment {names}: {size(total)}, {size(live)} live, {size(garbage)} garbage",
            )
        )
    total = sum(one["size_bytes"] for one in segments)
    garbage = sum(one["garbage_bytes"] for one in segments)
    count = f"{len(segments):,} segment{'s' if len(segments) != 1 else ''}"
    text = f"{count} with {size(total)}, of which {size(garbage)} is garbage."
    if each > 1:
        text += f" Each bar is {each} segments."
    return {"bars": bars, "width": _WIDTH, "height": _HEIGHT, "text": text}
