"""A queue, as the store knows it: an identity, a counter of sequences, and what is ready.

Who took a run off a queue holds it until `Store.ack` or `Store.requeue`. After a crash nobody
does: the run is ready again, and says that it was delivered.
"""

from __future__ import annotations

from amqpstore.runs import ReadyList, Run, RunList


class Queue:
    """A message queue. Made by `Store.create_queue`, changed by the store alone.

    `id` is never reused. Only a durable queue has an id in the log and messages there; any other
    lives and dies in memory. `definition` is the owner's, kept as given. `quarantined` are
    messages that it still holds and that cannot be read: they are neither ready nor gone.
    """

    __slots__ = (
        "definition",
        "deleted",
        "durable",
        "id",
        "next_sequence",
        "quarantined",
        "ready",
    )

    def __init__(self, id: int, definition: object, *, durable: bool) -> None:  # noqa: A002
        self.id = id
        self.definition = definition
        self.durable = durable
        self.deleted = False
        self.next_sequence = 1
        self.ready = ReadyList()
        self.quarantined: RunList[Run] = RunList()

    @property
    def ready_count(self) -> int:
        """Messages that wait to be taken."""
        return self.ready.count
