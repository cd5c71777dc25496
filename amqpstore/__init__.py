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

The rooms, from the disk upwards:

- `files`, the one door to the operating system, `descriptors`, how many files are open, and
  `filenames`; `catalog` (LMDB), which looks at its pages with `lmdb_pages` first; `backing`, all of
  this and which store it is; `clock`, what time it is;
- `records` (framing and checksums) of `message`s, with `compression`; `segments`, one file of
  records; `log`, all of them, and how a batch becomes durable;
- `runs` and `queue`, what waits in memory; `rereading`, what could not be read; `expiry`, when that
  expires; `memory`, how much of it may be there, `unacked`, of what was taken; `transient`, where
  messages go that are not in the log; `transaction` and `prepared`, one that waits for a decision;
- `ledger`, what the log says: of queues, with `index` and `index_writer`, and of segments, with
  `accounts`; `checkpoint` and `compaction`, which keep it on disk; `keeper`, when they are due, and
  `worker`, who does them; `space`, the reserve for a full disk;
- `arguments`, what may be published;
- `marker`, `opening` and `recovery`; `store`, the face of all this;
- `shared`, another face, for programs with threads and without a broker: see `SharedStore`.

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
from amqpstore.keeper import Options
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
