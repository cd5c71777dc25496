"""The companion of a leader's log: hands each batch to the state machine, which ships it, and waits
until that says that it is committed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from amqpstore import DeposedError
from amqpstore.catalog.catalog import Catalog
from amqpstore.log.batch import Batch
from amqpstore.replica import CopySource, SealedBatch
from amqpstore.replica.log_reading import named_batch
from amqpstore_server.cluster.frames import Definition, DefinitionsSnapshot, ShippedBatch
from amqpstore_server.replication.definitions import ReplicatedCatalog
from amqpstore_server.replication.member_log import MemberLog


class Leading(Protocol):
    """A question to the state machine of a leader, in any thread. None: it leads no longer."""

    def seal(self, layout: bytes, content: bytes) -> ShippedBatch | None: ...

    def define(self, number: int, content: bytes) -> Definition | None: ...

    def synced(self, term: int, seq: int) -> None: ...


class LeaderCompanion:
    """The companion of one term. See `Companion`. `committed` and `depose` are called by the thread
    that the state machine has just told something.
    """

    def __init__(self, leading: Leading, log: MemberLog, directory: str, term: int) -> None:
        self.term = term
        self.busy_since: float | None = None
        """The time at which the write under way here began, by the monotonic clock."""
        self.on_committed: Callable[[], None] = lambda: None
        self.on_settled: Callable[[], None] = lambda: None
        """Called when definitions were committed that somebody waits for; in any thread."""
        self._leading = leading
        self._log = log
        self._directory = directory
        self._catalog: ReplicatedCatalog | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._committed = 0
        self._awaited = 0
        """The frame for which `on_committed` is to be called; 0 if there is none."""
        self._deposed = ""
        self._shipped: ShippedBatch | None = None
        self._sealed: SealedBatch | None = None
        self._defined = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    # The log: see `Companion`.

    def begin(self, batch: Batch) -> None:
        sealed = SealedBatch.of(batch)
        # Joined once, for the file here and for all followers.
        batch.buffers = [sealed.content]
        # Sent before it is written here: the followers' syncs then run beside this one, and a
        # confirm waits for the slowest disk and not for the sum of two.
        shipped = self._leading.seal(sealed.layout(), sealed.content)
        # Nothing of the batch has been written yet: it is refused as a whole, and clients publish
        # it again elsewhere.
        if shipped is None:
            raise DeposedError(self._directory, self._deposed or "another member may lead by now")
        if shipped.position.lsn != sealed.lsn:
            raise ValueError(f"batch {sealed.lsn} was shipped as {shipped.position}")
        self._shipped, self._sealed = shipped, sealed
        self.busy_since = time.monotonic()

    def written(self, batch: Batch) -> None:
        shipped, sealed = self._shipped, self._sealed
        if shipped is None or sealed is None:
            raise ValueError("the batch was not begun")
        self._sealed = self.busy_since = None
        # The log first: `synced` may commit the batch at once, and a follower that then says hello
        # has to find it.
        self._log.wrote(named_batch(sealed, batch.first_id + len(batch.lengths)))
        self._leading.synced(shipped.term, shipped.seq)

    def is_committed(
        self,
        batch: Batch,  # noqa: ARG002 - one is under way at a time
        *,
        wait: bool = False,
    ) -> bool:
        shipped = self._shipped
        if shipped is None:
            raise ValueError("the batch was not begun")
        with self._lock:
            if wait:
                self._changed.wait_for(lambda: self._committed >= shipped.seq or self._deposed)
            # Asked first: what was committed stays so, whoever leads by now.
            if self._committed >= shipped.seq:
                return True
            # The batch may be durable on followers and come back with the next leader. It was not
            # confirmed, so both outcomes are allowed.
            if self._deposed:
                raise DeposedError(self._directory, self._deposed)
            # Under the lock of `committed`, which calls `on_committed` for it: no call is missed.
            self._awaited = shipped.seq
            return False

    def replicate(self, catalog: Catalog) -> Catalog:
        self._catalog = ReplicatedCatalog(catalog, self._define)
        return self._catalog

    def _define(self, number: int, content: bytes) -> None:
        definition = self._leading.define(number, content)
        if definition is None:
            raise DeposedError(self._directory, self._deposed or "another member may lead by now")
        # A definition may be committed before this line; `when_defined` then finds `_committed`
        # beyond it.
        with self._lock:
            self._defined = definition.seq

    # Definitions that somebody waits for.

    def when_defined(self, callback: Callable[[], None]) -> None:
        """Call back, from `call_settled`, once all definitions until now are committed; at once if
        they are.
        """
        with self._lock:
            if self._committed < self._defined:
                self._waiting.append((self._defined, callback))
                return
        callback()

    def call_settled(self) -> None:
        """Call those back whose definitions are committed."""
        settled = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= self._committed:
                settled.append(self._waiting.popleft()[1])
        for callback in settled:
            callback()

    def snapshot(self) -> DefinitionsSnapshot:
        """Return all definitions, for a follower that joins. Raises: DamageError, OSError."""
        if self._catalog is None:
            raise ValueError("the store is not open")
        # Another batch may be sealed this moment, before definitions that are in the snapshot.
        number, content = self._catalog.snapshot(lambda: self._log.last().number + 2)
        return DefinitionsSnapshot(self.term, number, content)

    def pinned(self, pin: Callable[[CopySource], None]) -> CopySource:
        """Return what a copy of the store is made from, with its files pinned.

        Raises: ValueError, DamageError, OSError: see `ReplicatedCatalog.pinned`.
        """
        if self._catalog is None:
            raise ValueError("the store is not open")
        return self._catalog.pinned(pin, self._log.ends_of_batches())

    # From the state machine.

    def committed(self, seq: int) -> None:
        """All frames up to one are committed."""
        with self._lock:
            self._committed = seq
            self._changed.notify_all()
            is_settled = bool(self._waiting and self._waiting[0][0] <= seq)
            is_awaited = 0 < self._awaited <= seq
            if is_awaited:
                self._awaited = 0
        # Outside the lock: the callbacks take locks of their own, which other threads hold when
        # they ask here.
        if is_awaited:
            self.on_committed()
        if is_settled:
            self.on_settled()

    def depose(self, reason: str) -> None:
        """End the leadership of this member: none of its clients waits any more."""
        with self._lock:
            self._deposed = reason
            # The committer's thread may stand in `is_committed` for a batch that will never be
            # committed.
            self._changed.notify_all()
        self.on_committed()

    @property
    def is_deposed(self) -> bool:
        """Whether this member leads no longer."""
        return bool(self._deposed)

    @property
    def is_waiting(self) -> bool:
        """Whether a batch is durable here and others are waited for."""
        shipped = self._shipped
        return shipped is not None and self.busy_since is None and self._committed < shipped.seq
