"""Invariants that an engine with a bug violates, and the histories that show it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pytest
from _pytest.mark.structures import ParameterSet

import amqpstore.recovery.opening
import amqpstore.recovery.recovery
from amqpstore import Store
from amqpstore.catalog.backing import Backing
from amqpstore.errors import DamageError
from amqpstore.queues.queue import Queue
from amqpstore.recovery.recovered import Recovered
from amqpstore_tools.drill.explorer import Cut, Explorer
from amqpstore_tools.drill.outside import OpenStore, Outside
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.crash.histories import DIRECTORY, OPTIONS, open_store, outside_of

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


def history(outside: Outside) -> None:
    outside.open()
    outside.keep_file(f"{DIRECTORY}/segments/notes.txt", b"not the store's")
    for name in ("orders", "audit"):
        outside.create_queue(name)
    for size in (10, 600, 1800, 2500):
        outside.publish(["orders", "audit"], [bytes([size % 251]) * size, b"small"])
        outside.sync()
    outside.take("orders", 3)
    outside.sync()
    outside.ack("orders")
    outside.sync()
    outside.kill()
    outside.open()
    if outside.queue_names:
        outside.publish(outside.queue_names, [b"after the restart"])
    outside.sync()


def open_filled_store(files: MemoryFiles) -> Store:
    """The store, with segments that are filled with more than a sector beyond a batch."""
    return open_store(files, options=OPTIONS._replace(segment_bytes=4000))


def filled_history(outside: Outside) -> None:
    """Small batches: each segment is filled ahead of use, and each batch ends in another sector
    than it begins in, or in the same.
    """
    outside.open()
    outside.create_queue("orders")
    for number in range(16):
        outside.publish(["orders"], [bytes([number]) * 120, b"small"])
        outside.sync()


def housekept_history(outside: Outside) -> None:
    """Two checkpoints with index files and one without, a compaction, and what it leaves."""
    outside.open()
    outside.create_queue("slow")
    outside.create_queue("fast")
    for number in range(3):
        outside.publish(["slow"], [b"stays %d" % number])
        outside.publish(["slow", "fast"], [b"first in two, then in one"])
        outside.publish(["fast"], [bytes([number]) * 1000])
        outside.publish(["slow"], [b"behind what is gone"])
        outside.sync()
    outside.take("slow", 1)
    outside.sync()
    outside.checkpoint()
    outside.requeue("slow")
    outside.take("slow", 1)
    outside.take("fast", 6, acked=True)
    while outside.ready_count("fast"):
        outside.take("fast", 6, acked=True)
    outside.take("slow", 1)
    outside.sync()
    outside.checkpoint()
    outside.housekeep(4)
    outside.kill()
    outside.open()
    for number in range(5):
        outside.publish(["slow"], [b"behind what was merged"], priority=number)
    while outside.ready_count("slow") > 6:
        outside.take("slow", 1, acked=True)
    outside.sync()
    outside.checkpoint()
    outside.publish(["slow"], [b"behind the checkpoint"])
    outside.purge("slow")
    outside.sync()


def recycled_history(outside: Outside) -> None:
    """Segments are dropped, and the log goes on in what they were: in full and in small batches."""
    outside.open()
    outside.create_queue("q")
    for number in range(6):
        outside.publish(["q"], [bytes([number]) * 2100] * 2)
        outside.sync()
    outside.take("q", 12, acked=True)
    outside.sync()
    outside.checkpoint()
    for number in range(6):
        outside.publish(["q"], [b"anew %d" % number, bytes([number]) * 1200])
        outside.sync()


def violated(
    invariants: set[str],
    scenario: Callable[[Outside], None] = history,
    images: int = 15,
    stop_after: int = 1_000,
    opens: OpenStore = open_store,
) -> set[str]:
    """Return which of `invariants` the engine, as it is now, violates in a history, which is
    explored until all of them are violated.
    """

    def go_on(_cut: Cut) -> bool:
        return not invariants <= {found.invariant for found in explorer.result.violations}

    explorer = Explorer(
        opens,
        "bugs",
        images_an_operation=images,
        images_in_recovery=3,
        stop_after=stop_after,
        go_on=go_on,
    )
    outside = outside_of(opens)
    # Some bugs end the history itself; what is wanted is that they are seen before that.
    with contextlib.suppress(OverflowError, ValueError, DamageError):
        scenario(outside)
    violations = explorer.explore(outside.trace).violations
    return invariants & {violation.invariant for violation in violations}


def after_recovery(patch: Patch, then: Callable[..., None]) -> None:
    recover = amqpstore.recovery.recovery.recover

    def recover_and_then(
        backing: Backing, queues: dict[int, Queue], *, is_follower: bool
    ) -> Recovered:
        recovered = recover(backing, queues, is_follower=is_follower)
        then(recovered, backing.files, queues)
        return recovered

    patch.setattr(amqpstore.recovery.opening, "recover", recover_and_then)


def first_of_each(bugs: Mapping[Bug, str | set[str]]) -> list[ParameterSet]:
    """Parameters for a test of bugs: of those that break the same, all but the first are long."""
    seen: set[str] = set()
    parameters = []
    for bug, broken in bugs.items():
        broken = {broken} if isinstance(broken, str) else broken
        marks = [pytest.mark.long] if broken <= seen else []
        parameters.append(pytest.param(bug, marks=marks))
        seen |= broken
    return parameters
