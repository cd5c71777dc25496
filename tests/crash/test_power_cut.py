"""The power is cut at every operation of a history, and everything that was promised is there."""

import pytest

from amqpstore.format.records import (
    Kind,
    Operation,
    OperationKind,
    encode_record,
    encode_transaction,
)
from amqpstore_tools.drill.explorer import Explorer, Result
from amqpstore_tools.drill.outside import NOW_MS, Outside
from tests.crash.histories import open_store, random_history, record, short_history


def sampling_explorer(seed: str, images: int) -> Explorer:
    """One that crashes recovery at some of its operations: at which, another run draws anew."""
    return Explorer(
        open_store,
        seed,
        images_an_operation=images,
        images_in_recovery=2,
        cuts_in_recovery=3,
    )


def explore(trace_seed: str, steps: int, images: int) -> Result:
    explorer = Explorer(open_store, trace_seed, images_an_operation=images)
    return explorer.explore(random_history(trace_seed, steps))


def test_every_operation_of_a_short_history() -> None:
    explorer = Explorer(open_store, "short", images_an_operation=5, images_in_recovery=3)
    result = explorer.explore(record(short_history))
    assert [str(violation) for violation in result.violations] == []
    # Fewer would mean that the history, or what is made of it, is not what it was meant to be.
    assert result.operations > 200
    assert result.distinct_used > 300
    assert result.kills > 100


@pytest.mark.long
@pytest.mark.rounds(4)
def test_more_images_of_a_short_history(seed: int) -> None:
    explorer = sampling_explorer(f"short {seed}", images=30)
    result = explorer.explore(record(short_history))
    assert [str(violation) for violation in result.violations] == []
    assert result.distinct_used > 500


@pytest.mark.rounds(1)
def test_random_histories(seed: int) -> None:
    result = explore(f"random {seed}", steps=50, images=5)
    assert [str(violation) for violation in result.violations] == []


@pytest.mark.long
@pytest.mark.rounds(20)
def test_more_random_histories(seed: int) -> None:
    explorer = sampling_explorer(f"random {seed}", images=8)
    result = explorer.explore(random_history(f"random {seed}", steps=150))
    assert [str(violation) for violation in result.violations] == []


def forged_log(segment: int, message_id: int, lsn: int) -> bytes:
    """Return what a publisher can guess: the next records, saying that its message is another and
    that the queue's first one was purged. The store's id, and so the seed, it cannot know."""
    operations = [
        Operation(OperationKind.ENQUEUE, 1, 1, 2, message_id),
        Operation(OperationKind.PURGE, 1, 1, 1),
    ]
    message = encode_record(
        Kind.MESSAGE, message_id, segment, bytes(6) + b"never published", seed=0, batch=lsn
    )
    return message + encode_transaction(operations, lsn, segment, NOW_MS, seed=0)


def test_a_body_that_looks_like_the_log_is_a_body() -> None:
    """The first sector of a batch is lost, and with it the header of the message; then the search
    for the next sound record goes through the body."""

    def history(outside: Outside) -> None:
        outside.open()
        outside.create_queue("orders")
        outside.publish(["orders"], [b"of somebody else"])
        outside.sync()
        outside.publish(["orders"], [bytes(600) + forged_log(1, 2, 2)])
        outside.sync()

    result = Explorer(open_store, "forged", images_an_operation=100).explore(record(history))
    assert [str(violation) for violation in result.violations] == []
