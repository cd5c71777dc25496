"""Metrics of the store, which only this broker has, and of how long clients wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from amqpstore.upkeep.figures import StoreFigures
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.monitoring.departures import dead_lettered, reasons_of_all
from amqpstore_server.metrics.families import Described, Families, family, histogram, single
from amqpstore_server.metrics.source import MetricsSource
from amqpstore_server.statistics.sampler import MAX_BYTES

_PREFIX = "amqpstore_"

Values = Iterator[tuple[str, str, float]]


def families(source: MetricsSource, counters: ChannelCounters) -> Families:
    """Yield all of them. Args: counters, the sums over all channels."""
    yield from _histograms(source)
    yield from _departures(source, counters)
    figures = source.broker.services.store.statistics.figures()
    work = _work(source, counters)
    for values in (_log(figures), _memory(source, figures), work, _start(figures)):
        for name, help_text, value in values:
            yield single(Described(_PREFIX + name, help_text), value)


def _departures(source: MetricsSource, counters: ChannelCounters) -> Families:
    """Yield how messages have left queues, or never entered one, by reason."""
    departures = source.broker.departures()
    for name, help_text, counts in (
        (
            "messages_left_total",
            "Messages that have left, or never entered a queue",
            reasons_of_all(departures, counters),
        ),
        (
            "messages_dead_lettered_total",
            "Those of them that arrived in another queue as dead letters",
            dead_lettered(departures),
        ),
    ):
        made = family(Described(_PREFIX + name, help_text))
        for reason, count in counts.items():
            made.add_sample(_PREFIX + name, {"reason": reason.label}, count)
        yield made


def unknown_families(names: Collection[str]) -> Families:
    """Yield which families a request has asked for that do not exist here."""
    if names:
        name = _PREFIX + "metrics_unknown_family"
        help_text = "1 for a family that was asked for and does not exist here"
        found = family(Described(name, help_text))
        for one in sorted(names):
            found.add_sample(name, {"family": one}, 1)
        yield found


def _histograms(source: MetricsSource) -> Families:
    services = source.broker.services
    measures = services.store.measures
    for name, help_text, measured in (
        ("sync_duration_seconds", "Time of an fdatasync of the log", measures.sync_s),
        ("batch_messages", "Messages that one fdatasync made durable", measures.batch_messages),
        ("batch_bytes", "Bytes that one fdatasync made durable", measures.batch_bytes),
        (
            "confirm_latency_seconds",
            "Time from the read that brought a message to its confirm",
            services.statistics.confirm_s,
        ),
        (
            "delivery_latency_seconds",
            "Time from the read that brought a message to its delivery, of some messages",
            services.statistics.probes.delivery_s,
        ),
        (
            "event_loop_turn_seconds",
            "Processor time of a turn of the event loop, in which nobody else is served",
            source.holds.turn_s,
        ),
        ("checkpoint_duration_seconds", "Time of a checkpoint", measures.checkpoint_s),
        ("compaction_duration_seconds", "Time of a compaction", measures.compaction_s),
        ("catalog_commit_duration_seconds", "Time of a commit of the catalog", measures.commit_s),
    ):
        yield histogram(Described(_PREFIX + name, help_text), measured)


def _log(figures: StoreFigures) -> Values:
    log = figures.log
    yield "segments", "Segments of the log", log.segments
    yield "segment_bytes", "Bytes in segments", log.segment_bytes
    yield "live_bytes", "Bytes in segments that are needed, as of the checkpoint", log.live_bytes
    yield "garbage_bytes", "Bytes in segments that are not needed", log.garbage_bytes
    known = log.live_bytes + log.garbage_bytes
    yield (
        "garbage_ratio",
        "The part of the segments that is garbage",
        log.garbage_bytes / (known or 1),
    )
    yield "log_tail_bytes", "Bytes of the log that the next start reads", log.tail_bytes
    yield "log_tail_changes", "Changes of messages in this part of the log", log.tail_messages
    yield "log_pending_bytes", "Bytes that wait for the disk", log.pending_bytes
    yield "log_segment", "The number of the last segment", log.segment
    yield "log_sequence", "The sequence number of the next batch", log.sequence
    yield "checkpoint_segment", "The segment that the checkpoint is in", log.checkpoint_segment
    yield "checkpoint_age_seconds", "Time since the last checkpoint began", log.checkpoint_age_s
    quarantined = log.quarantined_segments
    yield "quarantined_segments", "Damaged segments in use, or in quarantine", quarantined
    yield "checkpoint_running", "1 while a checkpoint is made", log.work == "checkpoint"
    yield "compaction_running", "1 while segments are compacted", log.work == "compaction"


def _memory(source: MetricsSource, figures: StoreFigures) -> Values:
    of_queues = source.sampler.figures
    yield "ready_memory_bytes", "Memory of ready messages", figures.memory_bytes
    yield "unacked_memory_bytes", "Memory of unacked messages", figures.unacked_bytes
    yield (
        "message_memory_budget_bytes",
        "Memory that messages may take",
        figures.memory_budget_bytes,
    )
    yield "paged_messages", "Ready messages whose entries are on disk only", of_queues.paged
    yield "paged_bytes", "Bytes of their bodies, as far as they are known", of_queues.paged_bytes
    yield "unreadable_messages", "Messages that cannot be read", of_queues.unreadable
    yield "queues_in_memory", "Queues all of whose entries are in memory", of_queues.in_memory
    yield "queues_on_disk", "Queues with entries on disk only", of_queues.on_disk
    yield "statistics_memory_bytes", "Memory of samples", source.sampler.memory_bytes
    yield "statistics_memory_budget_bytes", "Memory that samples may take", MAX_BYTES


def _work(source: MetricsSource, counters: ChannelCounters) -> Values:
    measures = source.broker.services.store.measures
    yield "compacted_bytes_total", "Bytes read and written by compaction", measures.compacted_bytes
    yield "freed_bytes_total", "Bytes freed by compaction", measures.freed_bytes
    yield "rejected_messages_total", "Messages rejected", counters.reject
    yield "requeued_messages_total", "Messages requeued", counters.requeue
    yield "queues_set_aside", "Queues that have failed", len(source.broker.set_aside)
    report = source.broker.services.store.recovery_report
    yield (
        "needs_repair",
        "1 if a start has found damage, or missed something, that a repair settles",
        bool(
            report.damage
            or report.lost
            or report.orphaned
            or report.shortfall
            or report.passed_over
        ),
    )
    yield "metrics_left_out", "Series that the last answer had no room for", source.left_out


def _start(figures: StoreFigures) -> Values:
    yield "recovery_seconds", "Time of the last start, with recovery", figures.opening_s
    yield "recovery_torn_bytes", "Bytes that recovery rolled back", figures.torn_bytes
    yield "recovery_rolled_back", "Messages that recovery rolled back", figures.rolled_back
    yield "recovery_lost", "Messages that were durable and could not be read", figures.lost
    yield "recovery_damaged", "Damaged places that recovery found", figures.damaged
