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

The rooms, from the disk upwards. Each imports only those before it; a test holds their order:

- `errors`: every error; `terms`: the numbers of a log whose leaders change.
- `system`: files, syncs, descriptors and clocks of the operating system.
- `format`: records, messages, runs and index files.
- `catalog`: tables that change atomically, and what their rows mean.
- `identity`: which directory is a store, and which store it is.
- `log`: segments, and the open batch at their end.
- `queues`: ready and unacked messages, in memory and on disk.
- `options`: what the owner of a store chooses.
- `provenance`: what the log still says of one message.
- `evidence`: what the files of a store say of each other, also when some are lost.
- `checkpoints`: checkpoints and compaction, which keep the log short.
- `recovery`: how a directory is opened, and what it contains after a crash.
- `upkeep`: when background work is due, and who does it.
- `store`: the interface to all of this; `transaction`, `prepared`: transactions, and those that
  wait for a decision; `purges`: purges that can be undone.
- `shared`: another interface, for programs with threads and without a broker: see `SharedStore`.
- `replica`: the store of a follower, on another machine.

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
from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import Run
from amqpstore.options import Options
from amqpstore.prepared import Prepared, Publish
from amqpstore.purges import Purged
from amqpstore.queues.queue import Placement, Queue
from amqpstore.recovery.recovered import RecoveryReport
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
