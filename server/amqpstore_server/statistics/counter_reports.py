"""Counters as RabbitMQ's management API writes them, rates and samples in `publish_details`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqpstore_server.statistics.ranges import SampleRange
from amqpstore_server.statistics.series import CounterSeries

Json = dict[str, Any]

DELIVER_GET = ("deliver", "deliver_no_ack", "get", "get_no_ack")


class Times:
    """The two clocks at one moment: series go by the monotonic one, answers by the other."""

    def __init__(self, monotonic_ms: int, wall_ms: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def samples(self, wanted: SampleRange) -> list[tuple[int, int]]:
        """Return the times of the samples by both clocks, the wall clock first."""
        offset_ms = self._wall_ms - self._monotonic_ms
        return [(wall_ms, wall_ms - offset_ms) for wall_ms in wanted.times_ms(self._wall_ms)]


class CounterReport:
    """Some counters, as `fields`, with their rates and samples.

    Args: values, as of now; series, those of one object, or of several, to be added up, whose
    fields are the same.
    """

    def __init__(
        self,
        fields: Sequence[str],
        values: Sequence[int],
        series: Sequence[CounterSeries],
        times: Times,
    ) -> None:
        self._values = dict(zip(fields, values, strict=True))
        self._indexes = {field: index for index, field in enumerate(fields)}
        self._series = series
        self._times = times
        rates = [one.rates() for one in series]
        self._rates = [sum(of_field) for of_field in zip(*rates, strict=True)] or [0.0] * len(
            fields
        )
        self._sampled: dict[SampleRange, list[tuple[int, list[int]]]] = {}

    def row(self, fields: Sequence[str], wanted: SampleRange | None) -> Json:
        """Return these counters, each with its details."""
        row: Json = {}
        for field in fields:
            row[field] = self._values[field]
            row[f"{field}_details"] = self._details((field,), wanted)
        return row

    def messages(self, fields: Sequence[str], wanted: SampleRange | None) -> Json:
        """Return counters as `message_stats`: with the total of all deliveries."""
        row = self.row(fields, wanted)
        if "deliver" in row:
            row["deliver_get"] = sum([self._values[field] for field in DELIVER_GET])
            row["deliver_get_details"] = self._details(DELIVER_GET, wanted)
        return row

    def _details(self, fields: Sequence[str], wanted: SampleRange | None) -> Json:
        indexes = [self._indexes[field] for field in fields]
        details: Json = {"rate": sum([self._rates[index] for index in indexes])}
        if wanted is not None:
            found = [
                (wall_ms, sum([values[index] for index in indexes]))
                for wall_ms, values in self._samples(wanted)
            ]
            details["samples"] = [{"sample": value, "timestamp": time} for time, value in found]
            seconds = (found[0][0] - found[-1][0]) / 1000
            details["avg_rate"] = (found[0][1] - found[-1][1]) / seconds if seconds else 0.0
            details["avg"] = sum([value for _, value in found]) / len(found)
        return details

    def _samples(self, wanted: SampleRange) -> list[tuple[int, list[int]]]:
        known = self._sampled.get(wanted)
        if known is None:
            constant = [*self._values.values()]
            known = [
                (
                    wall_ms,
                    [sum(of_field) for of_field in zip(*rows, strict=True)] or constant,
                )
                for wall_ms, monotonic_ms in self._times.samples(wanted)
                for rows in [[one.at(monotonic_ms) for one in self._series]]
            ]
            self._sampled[wanted] = known
        return known
