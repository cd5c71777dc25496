"""A case that churn has found: compaction when the log has grown since the last checkpoint."""

from pathlib import Path

from amqpstore import Envelope, Message, MessageDamagedError, Options, Queue, Store
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(segment_bytes=100_000, reserve_bytes=0, checkpoint_ms=10**9)


def settle(store: Store, staying: Queue, passing: Queue, count: int) -> None:
    """One batch, settled without housekeeping: a message that stays, `count` that pass."""
    envelope = Envelope("", "q")
    store.publish([staying], [Message(envelope, b"stays")])
    store.publish([passing], [Message(envelope, b"x" * 1000) for _ in range(count)])
    store.take(passing, count, acked=True)
    batch = store.log.seal(1)
    assert batch
    store.log.write(batch)
    store.log.complete(batch)


def test_compaction_leaves_the_segment_that_the_checkpoint_has_seen_in_part(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path), options=OPTIONS, worker=InlineWorker())
    staying = store.create_queue({})
    passing = store.create_queue({})
    for _ in range(3):
        settle(store, staying, passing, 100)
    settle(store, staying, passing, 50)
    store.upkeep.checkpoint()  # knows half of segment 4
    settle(store, staying, passing, 60)  # the other half
    settle(store, staying, passing, 10)  # segment 5
    store.upkeep.housekeep()  # begins a compaction
    store.upkeep.housekeep()  # takes it over
    assert len(store.log.segments) < 5
    store.close()
    with Store.open(str(tmp_path), options=OPTIONS, worker=InlineWorker()) as store:
        assert store.recovery_report.is_clean
        queue = store.queues[staying.id]
        runs = []
        while queue.ready_count:
            runs.append(store.take(queue, 1))
        assert [run for run in runs if isinstance(run, MessageDamagedError)] == []
        assert len(runs) == 6
