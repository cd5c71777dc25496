"""The storage engine of a message broker: queues of messages in a directory, safe from crashes.

Synchronous, without sockets or threads of its own, and usable as a library:

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
    ...     store.ack(orders, run)
    [b'one']
    >>> with Store.open(directory) as store:
    ...     {queue.definition["name"]: queue.ready_count for queue in store.queues.values()}
    {'orders': 1, 'audit': 2}

The rooms, from the disk upwards: `files` (the one door to the operating system) and `filenames`;
`records` (framing and checksums) of `message`s; `segments` (one file of records) and `log` (all of
them, and how a batch becomes durable); `runs` and `queue` (what is in memory); `catalog` (LMDB);
`marker` and `recovery` (opening); `store` (the face of all this). FORMAT.md has every byte on disk.
"""

from amqpstore.errors import (
    DamageError,
    DurabilityError,
    FormatVersionError,
    MessageDamagedError,
    NotAStoreError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from amqpstore.keeper import Options
from amqpstore.message import Envelope, Message
from amqpstore.queue import Queue
from amqpstore.recovery import RecoveryReport
from amqpstore.runs import Run
from amqpstore.store import Store

__all__ = [
    "DamageError",
    "DurabilityError",
    "Envelope",
    "FormatVersionError",
    "Message",
    "MessageDamagedError",
    "NotAStoreError",
    "Options",
    "Queue",
    "RecoveryReport",
    "Run",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
]
