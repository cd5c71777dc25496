"""A store with everything in it that FORMAT.md documents."""

import os
import uuid
from pathlib import Path

from amqpstore import Envelope, Message, Options, Store
from amqpstore.catalog.catalog import Change
from amqpstore.system import filenames
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import take
from tests.unit.evidence.stores import killed_store
from tests.unit.repair.mending import mend

STORE_ID = uuid.UUID("00112233445566778899aabbccddeeff")
CREATED_MS = 1_700_000_000_000
SEALED_MS = CREATED_MS + 250
EXPIRES_MS = CREATED_MS + 60_000
ENVELOPE = Envelope("logs", "eu", bytes.fromhex("100002"))


def written_store(scratch: str) -> str:
    """A store with all that is documented: a compacted segment, one in quarantine, index files."""
    directory = os.path.join(scratch, "store")
    options = Options(
        segment_bytes=1, compress_from_bytes=1 << 20, train_dictionary=True, reserve_bytes=4096
    )
    with Store.open(directory, options=options, worker=InlineWorker()) as store:
        queue = store.create_queue({"name": "orders"})
        store.definitions.define([Change("vhosts", "/", {})])
        for batch in range(5):
            bodies = [
                b'{"order": %d, "customer": "customer number %d", "state": "new"}'
                % (number, number)
                for number in range(200 * batch, 200 * batch + 200)
            ]
            store.publish([queue], [Message(ENVELOPE, body) for body in bodies])
            store.sync()
        for _ in range(1000):
            run = take(store, queue, 1)
            if run.first_sequence % 5 > 1:
                store.ack(queue, run)
        store.transaction().prepare({"name": "undecided"})
        store.sync()
        store.upkeep.checkpoint()
        # Damage that costs no message: in a TRANSACTION before the checkpoint.
        with open(filenames.segment_path(directory, 2), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        for _ in range(4):
            store.upkeep.housekeep()
    return directory


def store_with_purge(scratch: str) -> str:
    """A store with a purge that can be undone."""
    directory = os.path.join(scratch, "purged")
    with Store.open(directory, worker=InlineWorker()) as store:
        queue = store.create_queue({"name": "orders"})
        store.publish([queue], [Message(ENVELOPE, b"one")])
        assert store.purge_aside([queue], {"by": "me"}) is not None
    return directory


def store_that_passed_over(scratch: str) -> str:
    """A store whose start did not find the last segment under its name."""
    directory = os.path.join(scratch, "passed_over")
    store = Store.open(directory, worker=InlineWorker())
    store.publish([store.create_queue({"name": "orders"})], [Message(ENVELOPE, b"one")])
    store.sync()
    store.abandon()
    path = filenames.segment_path(directory, 1)
    os.rename(path, f"{path}.bak")
    with Store.open(directory, worker=InlineWorker()) as store:
        # Its checkpoint goes behind what was not there.
        store.publish([store.queues[1]], [Message(ENVELOPE, b"two")])
    return directory


def store_that_gave_up(scratch: str) -> str:
    """A store that was repaired without a segment of its log."""
    directory = killed_store(Path(scratch) / "given_up")
    os.remove(filenames.segment_path(str(directory), 3))
    mend(str(directory))
    return str(directory)
