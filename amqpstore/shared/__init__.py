"""The engine for programs that use it as a library, from many threads: no broker, no sockets.

    >>> import tempfile
    >>> from amqpstore import SharedStore
    >>> with SharedStore.open(tempfile.mkdtemp()) as shared:
    ...     shared.declare("orders", history_length=100)
    ...     shared.declare("receipts")
    ...     with shared.transaction() as transaction:
    ...         transaction.send("orders", [b"one", b"two"])  # on disk at the end of the block
    ...     with shared.transaction() as transaction:  # all of it or nothing, whatever happens
    ...         (order,) = transaction.receive("orders", timeout_s=5)
    ...         transaction.send("receipts", [b"for " + order.body])
    ...     print([(queue.name, queue.ready_count) for queue in shared.queues()])
    ...     print([consumed.message.body for consumed in shared.history("orders")])
    [('orders', 1), ('receipts', 1)]
    [b'one']

- `locked_store`: the lock, and group commit; `arrivals`: receivers that wait for messages.
- `queues`, `history`: queues by name, and copies of what was received from them.
- `transaction`, `prepared`: transactions, and undecided ones; `commit_effects`: history copies and
  wake-ups of a commit.
- `housekeeping`: work that is due by time; `store`: `SharedStore`, the interface to all of it.
"""

from amqpstore.shared.history import Consumed
from amqpstore.shared.prepared import SharedPrepared
from amqpstore.shared.store import QueueState, SharedStore
from amqpstore.shared.transaction import Received, SharedTransaction

__all__ = [
    "Consumed",
    "QueueState",
    "Received",
    "SharedPrepared",
    "SharedStore",
    "SharedTransaction",
]
