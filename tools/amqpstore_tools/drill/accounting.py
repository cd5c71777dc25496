"""Compares the store's accounts with a recount: what a checkpoint says of segments and index files.

Both sides are read again: the checkpoint's from the catalog, the other from what the queues hold
and which records are in the files. The store must have no runs taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from amqpstore import Queue, Store
from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.format.index import IndexReader, live_runs
from amqpstore.format.records import Gap, Kind, scan
from amqpstore.identity import marker
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.system.filenames import INDEX, SEGMENTS, index_key, segment_numbers, segment_path
from amqpstore.system.files import Files
from amqpstore_tools.drill.invariants import Fault


def misaccounted(store: Store, files: Files) -> list[Fault]:
    """Yield I8 and I12 faults, right after a checkpoint: where its accounts are wrong."""
    faults = [*_queue_faults(store, files), *_segment_faults(store, files)]
    faults.extend(_file_faults(store, files))
    return faults


def _held(queue: Queue) -> Iterator[tuple[int, int, int]]:
    """Yield sequence, message id and delivery count of each message of a queue that is in the
    log.
    """
    for run in (*queue.ready, *queue.quarantined):
        if run.first_id:
            for index in range(run.count):
                yield run.first_sequence + index, run.id_at(index), run.delivery_count


def _queue_faults(store: Store, files: Files) -> Iterator[Fault]:
    """Check I12: each message that a queue holds is live in one index file, and nothing else is."""
    reader = IndexReader(files, store.directory, _seed(store, files))
    indexed: dict[int, list[tuple[int, int, int]]] = {queue_id: [] for queue_id in store.queues}
    for (queue_id, number), state in tables.INDEX.read(store.definitions.rows).items():
        key = tables.INDEX.key(IndexKey(queue_id, number))
        entries = reader.entries(queue_id, state)
        live = [
            (run.first_sequence + index, run.first_id + index, run.delivery_count)
            for run in live_runs(entries, state, 0, 1 << 64)
            for index in range(run.count)
        ]
        if len(live) != state.live:
            yield (
                "I12",
                f"index file {key} has {len(live)} live entries, but its row says {state.live}",
            )
        indexed.setdefault(queue_id, []).extend(live)
        if state.body_bytes is not None:
            body_bytes = sum(
                map(store.stored.sizes.run_bytes, live_runs(entries, state, 0, 1 << 64))
            )
            if body_bytes != state.body_bytes:
                text = f"has {body_bytes} bytes of bodies, but its row says {state.body_bytes}"
                yield "I12", f"index file {key} {text}"
    for queue_id, live in indexed.items():
        queue = store.queues.get(queue_id)
        if queue is None:
            yield "I8", f"{len(live)} messages of queue {queue_id}, which does not exist, are live"
            continue
        store.stored.paging.read_index(queue)
        held = sorted(_held(queue))
        if sorted(live) != held:
            yield "I12", f"queue {queue_id} holds {held}, and its index files {sorted(live)}"


def _segment_faults(store: Store, files: Files) -> Iterator[Fault]:
    """Check I8: references are those of the queues, and their messages exist."""
    references = Counter(
        message_id for queue in store.queues.values() for _, message_id, _ in _held(queue)
    )
    counted: Counter[int] = Counter()
    for row in tables.SEGMENTS.read(store.definitions.rows).values():
        account = SegmentAccount.of_row(row)
        sizes = _sizes(store, files, account)
        live = Counter(dict(account.live()))
        name = f"segment {account.number}"
        if missing := sorted(live.keys() - sizes.keys()):
            yield "I8", f"{name} does not have the records of {missing}, which are live"
            continue
        noted = account.count, account.total_bytes, account.live_count, account.live_bytes
        actual = len(sizes), sum(sizes.values()), len(live), sum(sizes[one] for one in live)
        if noted != actual:
            yield (
                "I12",
                f"{name} has {actual} (messages, bytes; live ones), but its account says {noted}",
            )
        counted += live
    if counted != references:
        wrong = {
            one: (references[one], counted[one])
            for one in sorted(references.keys() | counted.keys())
            if references[one] != counted[one]
        }
        yield "I8", f"messages whose references differ from the accounts: {wrong}"


def _sizes(store: Store, files: Files, account: SegmentAccount) -> dict[int, int]:
    """Return the sizes of the records of a segment's messages, by id."""
    path = segment_path(store.directory, account.number)
    if not files.exists(path):
        return {}
    file = files.open(path)
    try:
        content = file.read(0, account.end_bytes)
    finally:
        file.close()
    found = scan(content, account.number, _seed(store, files))
    return {
        record.number: record.end - record.offset
        for record in found
        if not isinstance(record, Gap) and record.kind == Kind.MESSAGE
    }


def _file_faults(store: Store, files: Files) -> Iterator[Fault]:
    """Check I8: each row is about an existing file, and every file has a row except the log's
    last.
    """
    names = files.list_directory(f"{store.directory}/{INDEX}")
    keys = {key for name in names if (key := index_key(name))}
    rows = tables.INDEX.read_keys(store.definitions.rows)
    if keys != rows:
        yield "I8", f"index files without a row, or rows without a file: {sorted(keys ^ rows)}"
    names = files.list_directory(f"{store.directory}/{SEGMENTS}")
    numbers = set(segment_numbers(names))
    segments = tables.SEGMENTS.read_keys(store.definitions.rows)
    odd = (numbers ^ segments) - {store.log.position.segment}
    if odd:
        yield "I8", f"segments without a row, or rows without a file: {sorted(odd)}"
    for table in (tables.OFFSET_TABLES, tables.SEGMENT_ENDS):
        unknown = table.read_keys(store.definitions.rows) - segments - numbers
        if unknown:
            yield "I8", f"the catalog's {table.name} of missing segments: {sorted(unknown)}"


def _seed(store: Store, files: Files) -> int:
    found = marker.read(files, store.directory)
    if found is None:
        raise FileNotFoundError(store.directory)
    return found.seed
