"""The HTML page of a report: one file, which loads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from amqpstore_tools.offline.terminal import age, size, when
from amqpstore_tools.report.charts import Series, bars, columns, heat, shares
from amqpstore_tools.report.document import document
from amqpstore_tools.report.gathering import Figures, SegmentFigures

_MAX_ROWS = 20
_MAX_COLUMNS = 96
_AGES = ("under 1 min", "10 min", "1 h", "1 day", "7 days", "older", "before the log begins")


def page(figures: Figures) -> str:
    """Return the page about a store."""
    title = f"The store in {figures.directory}"
    body = "".join(
        f"<section><h2>{heading}</h2>\n{content}</section>\n"
        for heading, content in (
            ("Published and acked", _rates(figures)),
            ("By queue and time", _by_queue(figures)),
            ("What waits", _waiting(figures)),
            ("Age of waiting messages", _ages(figures)),
            ("Sizes", _sizes(figures)),
            ("Delivered again", _redelivered(figures)),
            ("Dead letters", _dead(figures)),
            ("Garbage over time", _garbage(figures)),
            ("Keys", _keys(figures)),
        )
    )
    return document(
        title,
        f"<p class=dim>As it was at {when(figures.taken_ms)} UTC. The "
        "past is told by the part of the log that compaction has not removed yet.</p>\n"
        f"{_tiles(figures)}\n{body}",
    )


def _tiles(figures: Figures) -> str:
    live = sum(one.live_bytes for one in figures.segments)
    garbage = sum(one.garbage_bytes for one in figures.segments)
    published = sum(
        count for (_, _, what), count in figures.tally.events.items() if what == "published"
    )
    tiles = [
        ("messages wait", f"{sum(one.ready for one in figures.queues.values()):,}"),
        ("queues", f"{len(figures.queues):,}"),
        ("in segments", size(live + garbage)),
        ("of it garbage", f"{100 * garbage / ((live + garbage) or 1):.0f} %"),
        ("published in the log", f"{published:,}"),
        ("batches, one sync each", f"{figures.tally.batches:,}"),
    ]
    if figures.tally.damaged:
        tiles.append(("damaged places", f"{figures.tally.damaged:,}"))
    shown = "".join(f'<div class="tile"><b>{number}</b>{what}</div>' for what, number in tiles)
    return f'<div class="tiles">{shown}</div>'


def _buckets(figures: Figures) -> range:
    found = {bucket for _, bucket, _ in figures.tally.events}
    if not found:
        return range(0)
    # A clock that was wrong once must not make the chart endless.
    last = max(found)
    return range(max(min(found), last - _MAX_COLUMNS + 1), last + 1)


def _labels(figures: Figures, buckets: range) -> list[str]:
    form = "%H:%M:%S" if figures.bucket_ms < 60_000 else "%m-%d %H:%M"
    if figures.bucket_ms >= 86_400_000:
        form = "%Y-%m-%d"
    return [_stamp(bucket * figures.bucket_ms, form) for bucket in buckets]


def _stamp(ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


def _rates(figures: Figures) -> str:
    buckets = _buckets(figures)
    if not buckets:
        return "<p>The log is empty.</p>"
    sums: Counter[tuple[int, str]] = Counter()
    for (_, bucket, what), count in figures.tally.events.items():
        sums[bucket, what] += count
    series = [
        Series(what, style, [sums[bucket, what] for bucket in buckets])
        for what, style in (("published", "a"), ("acked", "b"), ("purged", "bad"))
    ]
    text = f"<p class=dim>Messages per {age(figures.bucket_ms)}, all queues.</p>"
    return text + columns(series, _labels(figures, buckets), "messages", stacked=False)


def _by_queue(figures: Figures) -> str:
    buckets = _buckets(figures)
    counts: Counter[int] = Counter()
    for (queue_id, _, what), count in figures.tally.events.items():
        counts[queue_id] += count if what == "published" else 0
    events = figures.tally.events
    rows = [
        (_queue(figures, queue_id), [events[queue_id, bucket, "published"] for bucket in buckets])
        for queue_id, count in counts.most_common(_MAX_ROWS)
        if count
    ]
    if not rows:
        return "<p>The log contains no publishes.</p>"
    text = f"<p class=dim>Published per {age(figures.bucket_ms)}{_rest(len(counts))}.</p>"
    return text + heat(rows, _labels(figures, buckets), "published")


def _waiting(figures: Figures) -> str:
    queues = sorted(figures.queues.values(), key=lambda one: -one.bytes)
    rows = [
        (one.name, float(one.bytes), f"{size(one.bytes)}, {one.ready:,} messages")
        for one in queues[:_MAX_ROWS]
        if one.ready
    ]
    if not rows:
        return "<p>Nothing waits.</p>"
    return f"<p class=dim>Bytes by queue{_rest(len(queues))}.</p>" + bars(rows)


def _ages(figures: Figures) -> str:
    ages = figures.tally.ages
    counts: Counter[int] = Counter()
    for (queue_id, _), count in ages.items():
        counts[queue_id] += count
    rows = []
    for queue_id, _ in counts.most_common(_MAX_ROWS):
        name = _queue(figures, queue_id)
        if oldest := figures.tally.oldest.get(queue_id):
            name = f"{name} ({age(max(figures.taken_ms - oldest, 0))})"
        rows.append((name, [float(ages[queue_id, group]) for group in range(len(_AGES))]))
    if not rows:
        return "<p>Nothing waits.</p>"
    text = (
        "<p class=dim>Time since publishing, with the age of the oldest known message"
        f"{_rest(len(counts))}.</p>"
    )
    return text + shares(rows, _AGES, "messages")


def _sizes(figures: Figures) -> str:
    sizes = figures.tally.sizes
    if not sizes:
        return "<p>The log contains no publishes.</p>"
    bits = range(min(sizes), max(sizes) + 1)
    labels = [size((1 << bit) - 1) if bit else "empty" for bit in bits]
    series = [Series("messages", "c", [sizes[bit] for bit in bits])]
    text = "<p class=dim>Body sizes as published, each bar up to the number of bytes shown.</p>"
    return text + columns(series, labels, "", stacked=False)


def _redelivered(figures: Figures) -> str:
    again = figures.tally.redelivered
    counts: Counter[int] = Counter()
    for (queue_id, _), count in again.items():
        counts[queue_id] += count
    if not counts:
        return "<p>The log contains no redeliveries.</p>"
    rows = []
    for queue_id, count in counts.most_common(_MAX_ROWS):
        most = max(times for of, times in again if of == queue_id)
        times = "10 times or more" if most == 10 else f"up to {most} times"
        rows.append((_queue(figures, queue_id), float(count), f"{count:,}, {times}"))
    return f"<p class=dim>Deliveries after the first, by queue{_rest(len(counts))}.</p>" + bars(
        rows, "c"
    )


def _dead(figures: Figures) -> str:
    dead = figures.tally.dead
    if not dead:
        return "<p>The log contains no dead-lettered messages.</p>"
    rows = [
        (f"{reason}, from {queue}", float(count), f"{count:,}")
        for (reason, queue), count in dead.most_common(_MAX_ROWS)
    ]
    return f"<p class=dim>Messages by cause and queue{_rest(len(dead))}.</p>" + bars(rows, "bad")


def _garbage(figures: Figures) -> str:
    segments = sorted(figures.segments, key=lambda one: (one.created_ms, one.number))
    groups = _grouped(segments)
    labels = [_stamp(group[0].created_ms, "%m-%d %H:%M:%S") for group in groups]
    series = [
        Series("needed", "b", [sum(one.live_bytes for one in group) for group in groups]),
        Series("garbage", "c", [sum(one.garbage_bytes for one in group) for group in groups]),
    ]
    text = "<p class=dim>Bytes of segments, in the order in which they were started.</p>"
    return text + columns(series, labels, "bytes", stacked=True)


def _grouped(segments: Sequence[SegmentFigures]) -> list[Sequence[SegmentFigures]]:
    step = -(-len(segments) // _MAX_COLUMNS) or 1
    return [segments[start : start + step] for start in range(0, len(segments), step)]


def _keys(figures: Figures) -> str:
    keys = figures.tally.keys
    if not keys:
        return "<p>The log contains no publishes.</p>"
    rows = [
        (f"{exchange or '(default)'} → {key or '(empty)'}", float(count), f"{count:,}")
        for (exchange, key), count in keys.most_common(_MAX_ROWS)
    ]
    return f"<p class=dim>Messages by exchange and routing key{_rest(len(keys))}.</p>" + bars(rows)


def _queue(figures: Figures, queue_id: int) -> str:
    found = figures.queues.get(queue_id)
    return found.name if found else f"queue id {queue_id}, deleted"


def _rest(count: int) -> str:
    return f"; the first {_MAX_ROWS} of {count:,}" if count > _MAX_ROWS else ""
