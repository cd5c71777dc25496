"""Columns, the messages that one read publishes by overlapping routes, with the power cut at every
operation; and bugs in them, each of which is caught."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

import amqpstore.checkpoints.checkpoint_state
from amqpstore.format.records import Operation, SpreadEnqueue
from amqpstore.format.runs import Run
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.outside import Outside
from tests.crash.histories import open_store, record
from tests.crash.violated import Patch, first_of_each, violated

QUEUES = ("audit", "even", "third")


def spread_history(outside: Outside) -> None:
    """Everything goes to one queue, and some of it to others: through a checkpoint, a compaction
    and a restart."""
    outside.open()
    for name in QUEUES:
        outside.create_queue(name)
    for start in range(0, 24, 8):
        outside.spread(
            [(_routes(number), b"%d" % number * 90) for number in range(start, start + 8)]
        )
        outside.sync()
    outside.take("even", 3)
    outside.sync()
    outside.checkpoint()
    outside.ack("even")
    outside.take("audit", 9, acked=True)
    outside.sync()
    outside.housekeep(4)
    outside.checkpoint()
    outside.kill()
    outside.open()
    outside.spread([(_routes(number), b"again %d" % number) for number in range(6)])
    outside.sync()
    outside.take("audit", 40, acked=True)
    outside.sync()


def _routes(number: int) -> list[str]:
    return ["audit", *["even"] * (number % 2 == 0), *["third"] * (number % 3 == 0)]


def the_last_stretch_is_not_written(patch: Patch) -> None:
    stretches = SpreadEnqueue.stretches

    def some(self: SpreadEnqueue) -> list[Operation]:
        found = stretches(self)
        return found[:-1] or found

    patch.setattr(SpreadEnqueue, "stretches", some)


def each_stretch_begins_with_the_first_sequence(patch: Patch) -> None:
    stretches = SpreadEnqueue.stretches

    def restarted(self: SpreadEnqueue) -> list[Operation]:
        return [one._replace(first_sequence=self.first_sequence) for one in stretches(self)]

    patch.setattr(SpreadEnqueue, "stretches", restarted)


def a_checkpoint_takes_the_id_before_for_the_last(patch: Patch) -> None:
    enqueued = amqpstore.checkpoints.checkpoint_state.enqueued

    def shifted(operation: Operation | SpreadEnqueue) -> Run:
        run = enqueued(operation)
        if run.ids:
            run.ids = run.ids[:-1] + array("Q", [run.ids[-1] - 1])
        return run

    patch.setattr(amqpstore.checkpoints.checkpoint_state, "enqueued", shifted)


def a_checkpoint_counts_each_message_once(patch: Patch) -> None:
    patch.setattr(amqpstore.checkpoints.checkpoint_state, "references_of", lambda *_: None)


BUGS: dict[Callable[[Patch], None], set[str]] = {
    the_last_stretch_is_not_written: {"I1"},
    each_stretch_begins_with_the_first_sequence: {"I1", "I10"},
    a_checkpoint_takes_the_id_before_for_the_last: {"I1"},
    a_checkpoint_counts_each_message_once: {"I1"},
}


def test_columns_survive_a_power_cut_at_every_operation() -> None:
    explorer = Explorer(open_store, "columns", images_an_operation=4, images_in_recovery=2)
    assert explorer.explore(record(spread_history)).violations == []


@pytest.mark.parametrize("bug", first_of_each(BUGS), ids=lambda bug: bug.__name__)
def test_a_bug_in_columns_is_caught(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert violated(BUGS[bug], spread_history) == BUGS[bug]
