"""Makes batches durable as the server's committer does, with plain threads.

While one thread writes and syncs a batch, the other publishes the next one.
"""

import queue
import threading
import time

from amqpstore import DurabilityError, Store
from amqpstore.log.batch import Batch


class Commits:
    """Makes the batches of one store durable. With `inline` there is no thread, and `commit`
    returns when the batch is durable.

    `waited_ns` is how long the caller waited for the other thread, in all.
    """

    def __init__(self, store: Store, *, inline: bool) -> None:
        self.waited_ns = 0
        self._store = store
        self._inline = inline
        self._under_way: Batch | None = None
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[DurabilityError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_batches, name="committer", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Hand the open batch over once the one before it is durable. Raises: DurabilityError."""
        if self._inline:
            before = time.perf_counter_ns()
            self._store.sync()
            self.waited_ns += time.perf_counter_ns() - before
            return
        self.wait()
        if batch := self._store.log.seal(self._store.clock.wall_ms()):
            self._under_way = batch
            self._batches.put(batch)

    def wait(self) -> None:
        """Return when everything that was handed over is durable. Raises: DurabilityError."""
        if self._under_way is None:
            return
        before = time.perf_counter_ns()
        failure = self._outcomes.get()
        self.waited_ns += time.perf_counter_ns() - before
        if failure:
            raise failure
        batch, self._under_way = self._under_way, None
        self._store.log.complete(batch)
        self._store.upkeep.housekeep()

    def finish(self) -> None:
        """Make everything durable and end the thread. Raises: DurabilityError."""
        self.commit()
        self.wait()
        self._batches.put(None)
        self._thread.join()

    def _write_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._store.log.write(batch)
            except DurabilityError as error:
                self._outcomes.put(error)
                return
            self._outcomes.put(None)
