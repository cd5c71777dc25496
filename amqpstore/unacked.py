"""Bodies of messages that were taken and are neither acked nor back in their queues.

Whoever took a run holds it, perhaps for ever. An ack needs no body, so the bodies need not wait for
it in memory: where they are too many, the oldest are let go. Those that are in the log are there
already; the others are written aside. They are read back where they are needed after all, which is
to deliver them once more or to have them go elsewhere: see `Store.bring_back`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from amqpstore.queue import Queue
from amqpstore.runs import Run
from amqpstore.transient import TransientLog

_log = logging.getLogger(__name__)


class Unacked:
    """The account of the runs that were taken, and whose messages are in memory.

    It is kept by the run, so that an ack costs the same however many messages it is for.
    Args: transient, where messages go that are not in the log.
    """

    def __init__(self, transient: TransientLog) -> None:
        self._transient_log = transient
        # Those that have been taken for the longest time come first.
        self._logged: OrderedDict[Run, Queue] = OrderedDict()
        self._transient: OrderedDict[Run, Queue] = OrderedDict()
        self.memory_bytes = 0

    def add(self, queue: Queue, run: Run) -> None:
        """A run was taken, and has its messages."""
        run.account = self
        (self._logged if run.first_id else self._transient)[run] = queue
        self.memory_bytes += run.memory_bytes

    def remove(self, run: Run) -> None:
        """A run that is counted is acked, or goes back."""
        run.account = None
        del (self._logged if run.first_id else self._transient)[run]
        self.memory_bytes -= run.memory_bytes

    def was_split(self, run: Run, head: Run) -> None:
        """Part of a run is one of its own: what both have is what the run had."""
        head.account = self
        runs = self._logged if run.first_id else self._transient
        runs[head] = runs[run]

    def let_go(self, most_bytes: int, next_message_id: int) -> None:
        """Have no more than `most_bytes` in memory, as far as that can be.

        What is in the log can be read back once it is durable: ids below `next_message_id` are.
        """
        logged = self._logged
        while logged and self.memory_bytes > most_bytes:
            run = next(iter(logged))
            if run.first_id + run.count > next_message_id:
                break
            self._unload(run)
        transient = self._transient
        while transient and self.memory_bytes > most_bytes:
            run, queue = next(iter(transient.items()))
            first_id = 0
            # What was in a queue that is deleted by now is never needed again.
            if not queue.deleted:
                try:
                    first_id = self._transient_log.write(run.messages or [])
                except OSError as error:
                    _log.warning(
                        "transient messages stay in memory, as writing them out failed: %s", error
                    )
                    break
            self._unload(run)
            run.first_id = first_id

    def _unload(self, run: Run) -> None:
        self.remove(run)
        run.unload()
