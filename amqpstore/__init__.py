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

- `files`, `descriptors`, `filenames`: the one door to the operating system, how many files are
  open, and what they are called; `clock`: what time it is.
- `limits`: sizes that the engine chooses for itself.
- `catalog`, `lmdb_pages`, `rows`, `shapes`: tables that change all at once (LMDB), a look at its
  pages before they are mapped, and how a row is encoded and has to look; `definitions`: a copy of
  what only the catalog says; `backing`: all of this, handed to those above.
- `keys`, `tables`: the keys of the catalog's tables, and their rows with types.
- `records`, `message`, `compression`: framing and checksums, what travels, and zstd.
- `segments`, `log`: one file of records, and all of them with the open batch at their end.
- `batches`: the one rule for what a batch is, and where a torn tail starts.
- `queue`, `runs`: what is ready in a queue; `expiry`, `body_sizes`: when it expires, and how large
  it is; `rereading`: another try for what could not be read.
- `memory`, `unacked`, `transient`: how much stays in memory, what of it was taken, and where
  transient messages go that must leave it.
- `transaction`, `prepared`: all or nothing, and one that waits for a decision; `arguments`: what
  may be published.
- `checkpoint_state`, `segment_accounts`: what the next checkpoint is to say, of queues, and of what
  is live and what is garbage in each segment; `index`, `index_writer`, `index_merge`: index files.
- `checkpoint`, `compaction`, `removal`: what keeps all this on disk and small; `maintenance`,
  `worker`, `space`: when it is due, who does it, and the reserve for a full disk.
- `marker`, `identity`, `opening`, `recovery`: which directory is a store, and which one, how it is
  opened, and what was true.
- `store`: the face of all this; `errors`: every error of it.
- `shared`: another face, for programs with threads and without a broker: see `SharedStore`.

FORMAT.md has every byte on disk.
"""

from amqpstore.errors import (
    DamageError,
    DiskFullError,
    DurabilityError,
    ForkedError,
    FormatVersionError,
    MessageDamagedError,
    NoMemoryError,
    NotAStoreError,
    NotInTransactionError,
    OtherOwnerError,
    QueueDiffersError,
    QueueNotFoundError,
    ReadLaterError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    TransactionEndedError,
    UndecidableError,
    UnreadableLogError,
)
from amqpstore.maintenance import Options
from amqpstore.message import Envelope, Message
from amqpstore.prepared import Prepared, Publish
from amqpstore.queue import Placement, Queue
from amqpstore.recovery import RecoveryReport
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
    "DiskFullError",
    "DurabilityError",
    "Envelope",
    "ForkedError",
    "FormatVersionError",
    "Message",
    "MessageDamagedError",
    "NoMemoryError",
    "NotAStoreError",
    "NotInTransactionError",
    "Options",
    "OtherOwnerError",
    "Placement",
    "Prepared",
    "Publish",
    "Queue",
    "QueueDiffersError",
    "QueueNotFoundError",
    "QueueState",
    "ReadLaterError",
    "Received",
    "RecoveryReport",
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
    "UnreadableLogError",
]
