"""The storage engine of a message broker: queues of messages in a directory, safe from crashes.

Synchronous, without sockets, and usable as a library:

    >>> import tempfile
    >>> from amqpstore import Envelope, Message, Store
    >>> directory = tempfile.mkdtemp()
    >>> with Store.open(directory) as store:
    ...     orders = store.create_queue({"name": "orders"})
    ...     audit = store.create_queue({"name": "audit"})
    ...     envelope = Envelope(exchange="", routing_key="orders")
    ...     messages = [Message(envelope, b"one"), Message(envelope, b"two")]
    ...     logged = store.publish([orders, audit], messages)
    ...     store.sync()  # both messages are in both queues, on disk
    ...     run = store.take(orders, limit=1)
    ...     print([message.body for message in run.messages])
    ...     with store.transaction() as transaction:  # all of it or nothing, whatever happens
    ...         transaction.ack(orders, run)
    ...         transaction.publish([audit], [Message(envelope, b"one is done")])
    ...     store.sync()
    [b'one']
    >>> with Store.open(directory) as store:
    ...     queues = {queue.definition["name"]: queue for queue in store.queues.values()}
    ...     print({name: queue.ready_count for name, queue in queues.items()})
    ...     removed = store.purge(queues["audit"])
    ...     store.delete_queue(queues["orders"])
    {'orders': 1, 'audit': 3}

The modules, from the disk upwards:

- `files`, `ownership`, `datasyncs`, `descriptors`, `durability`, `filenames`: the interface to the
  operating system, whose the files are that root creates, datasyncs that the kernel does in the
  background, the limit of open files, syncs whose failure is fatal, and file names; `clock`: the
  wall clock and the monotonic clock.
- `options`, `limits`: what the owner of a store chooses, and sizes that the engine chooses for
  itself.
- `catalog`, `lmdb_pages`, `rows`, `shapes`, `catalog_checks`: tables that change atomically (LMDB),
  the check of its pages before they are mapped, the encoding and the form of rows, and rows that
  contradict each other; `definitions`: a copy of the
  tables that only the catalog has; `backing`: all of this, passed to the modules above.
- `keys`, `tables`: the keys of the catalog's tables, and their rows with types.
- `records`, `message`, `compression`: framing and checksums, messages, and zstd.
- `segments`, `filling`, `spares`, `log_batch`, `log`: one file of records, zeros that it is filled
  with ahead of use, files of dropped segments that are used again, a batch on its way to the disk,
  and all files with the open batch at their end;
  `companion`: who sends a leader's batches to others.
- `batches`, `enqueue_order`: the one rule for what a batch is, where a torn tail starts, and what a
  batch may enqueue; `windows`: the records of a file that is not in memory; `provenance`: what the
  log still says of one message; `client_trails`: which clients had to do with it.
- `departures`: every way in which a message leaves, with a number for the log.
- `queue`, `runs`: the ready messages of a queue; `expiry`, `body_sizes`: when they expire, and how
  large they are; `stored_runs`, `rereading`, `large_reads`: reads of their messages that are on
  disk, retries of failed ones, and reads of large ones in parts; `browsing`: reads that leave them.
- `memory`, `unacked`, `transient`: which ready and unacked messages stay in memory, and where
  transient messages go that must leave it; `disposal`: messages that nobody needs, freed by and by.
- `arguments`, `publishing`: checks of published messages, and how they enter the log and their
  queues; `withdrawals`: how messages leave their queues; `open_state`, `grouped_definitions`:
  whether the store is open, and what is defined in it.
- `transaction`, `acks`, `prepared`: transactions, their acks, and those that wait for a decision;
  `purges`: purges that can be undone.
- `checkpoint_state`, `segment_accounts`: the state that the next checkpoint writes, for queues, and
  for live messages and garbage in each segment; `index`, `index_writer`, `index_merge`: index
  files.
- `checkpoint`, `batch_merge`, `compaction`, `removal`: the background work; `maintenance`,
  `worker`, `space`: when it is due, the thread that does it, and the reserve for a full disk.
- `evidence`: what the files of a store say of each other, also when some are lost.
- `marker`, `replacing`, `identity`, `expected_segments`: which directory is a store, which store it
  is, and which segments it should have; `opening`, `recovery`, `present_numbers`, `recovered`: how
  it is opened, and what it contains after a crash; `terms`, `next_term`: the numbers of a log whose
  leaders change, and where that of a new leader begins.
- `measures`, `figures`: how long the work takes, and what there is, for those who watch.
- `store`: the interface to all of this; `errors`: every error.
- `shared`: another interface, for programs with threads and without a broker: see `SharedStore`.
- `replica`: the store of a follower, on another machine. Nothing else imports it.

FORMAT.md has every byte on disk.
"""

from amqpstore.errors import (
    DamageError,
    DeposedError,
    DiskFullError,
    DivergedError,
    DurabilityError,
    ForkedError,
    FormatVersionError,
    MembershipError,
    MessageDamagedError,
    NoMemoryError,
    NotAStoreError,
    NotInTransactionError,
    OtherOwnerError,
    PartlyReadError,
    QueueDiffersError,
    QueueNotFoundError,
    ReadLaterError,
    ReenteredError,
    RefusedBatchError,
    RefusedCopyError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    TransactionEndedError,
    UndecidableError,
    UnfinishedRepairError,
    UnreadableFileError,
    UnreadableLogError,
)
from amqpstore.message import Envelope, Message
from amqpstore.options import Options
from amqpstore.prepared import Prepared, Publish
from amqpstore.purges import Purged
from amqpstore.queue import Placement, Queue
from amqpstore.recovered import RecoveryReport
from amqpstore.runs import Run
from amqpstore.shared import (
    Consumed,
    QueueState,
    Received,
    SharedPrepared,
    SharedStore,
    SharedTransaction,
)
from amqpstore.store import Store
from amqpstore.transaction import Transaction

__all__ = [
    "Consumed",
    "DamageError",
    "DeposedError",
    "DiskFullError",
    "DivergedError",
    "DurabilityError",
    "Envelope",
    "ForkedError",
    "FormatVersionError",
    "MembershipError",
    "Message",
    "MessageDamagedError",
    "NoMemoryError",
    "NotAStoreError",
    "NotInTransactionError",
    "Options",
    "OtherOwnerError",
    "PartlyReadError",
    "Placement",
    "Prepared",
    "Publish",
    "Purged",
    "Queue",
    "QueueDiffersError",
    "QueueNotFoundError",
    "QueueState",
    "ReadLaterError",
    "Received",
    "RecoveryReport",
    "ReenteredError",
    "RefusedBatchError",
    "RefusedCopyError",
    "Run",
    "SharedPrepared",
    "SharedStore",
    "SharedTransaction",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
    "Transaction",
    "TransactionEndedError",
    "UndecidableError",
    "UnfinishedRepairError",
    "UnreadableFileError",
    "UnreadableLogError",
]
