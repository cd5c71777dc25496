"""The thread that has a follower's store: it carries out the effects of the disk, in order."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVarTuple

import msgspec

from amqpstore import DiskFullError, DurabilityError, StoreError
from amqpstore.replica import (
    LOG_START,
    FollowerStore,
    Replacement,
    SealedBatch,
    SegmentRewrite,
    WholeCopy,
)
from amqpstore.replica.log_reading import named_batch
from amqpstore.system.durability import reason_of
from amqpstore_server.cluster.effects import (
    Adopt,
    Append,
    CheckpointUpTo,
    Define,
    Dial,
    Discard,
    DiskEffect,
    FindReceived,
    Open,
    Persist,
    Receive,
    Restore,
    StreamEffect,
    Sync,
)
from amqpstore_server.cluster.frames import (
    MAX_RECEIVED,
    ReceivedFile,
    ReplicaPosition,
    ShippedBatch,
    StorePiece,
)
from amqpstore_server.replication.definitions import decode_changes, decode_tables
from amqpstore_server.replication.member_log import MemberLog

_log = logging.getLogger(__name__)

_IDLE_S = 0.5
"""How often a follower that is told nothing looks for housekeeping that is due."""
_HOUSEKEEP_S = 0.02
"""How often it looks, at most, while batches come: each look asks the disk how much is free."""
_TOLD_S = 0.2
"""How often a leader is told that something is on disk while a follower catches up."""
_MAX_WAITING_BYTES = 4 << 20
"""Receiving a copy of the leader's store stops while this much of it is still to be written."""
_SHOWN_S = 10.0
"""How often the progress of a copy is logged."""


class Follow(msgspec.Struct, frozen=True):
    """Open the store again, after a leadership."""


DiskJob: TypeAlias = DiskEffect | Follow
_Arguments = TypeVarTuple("_Arguments")


class DiskAnswers(Protocol):
    """Is told what was done, in the lane's thread."""

    def persisted(self, term: int) -> None: ...

    def not_persisted(self, error: DiskFullError) -> None:
        """There is no room for the term on the disk."""

    def synced(self, term: int, seq: int) -> None: ...

    def discarded(self) -> None: ...

    def found_received(self, term: int, received: tuple[ReceivedFile, ...]) -> None: ...

    def flushed(self, dial: Dial) -> None:
        """All that was asked for before is durable: connect."""

    def released(self, term: int) -> None:
        """The store is closed, to be opened by a leader."""

    def following(self) -> None:
        """The store is open again after a leadership."""

    def stream_failed(self) -> None:
        """Hang up, and connect again: what the leader sends cannot be taken."""

    def failed(self, error: BaseException) -> None:
        """The store is lost for this process."""


class DiskLane:
    """Has the store of a follower, from its thread's start to `Open`, and again from `Follow`."""

    def __init__(
        self,
        store: FollowerStore,
        reopen: Callable[[], FollowerStore],
        log: MemberLog,
        answers: DiskAnswers,
    ) -> None:
        self.busy_since: float | None = None
        """The time at which the job under way began, by the monotonic clock."""
        self._store: FollowerStore | None = store
        self._reopen = reopen
        self._log = log
        self._answers = answers
        self._newest_dial: Dial | None = None
        self._jobs: queue.SimpleQueue[DiskJob | None] = queue.SimpleQueue()
        self._is_broken = False
        """Whether the stream cannot go on: nothing more of it is written."""
        self._rewrite: SegmentRewrite | None = None
        self._rewritten: list[SealedBatch] = []
        self._discard_behind: ReplicaPosition | None = None
        self._is_joined = False
        """Whether the log was made to go on where the leader's does, on this connection."""
        self._defined: deque[tuple[int, int]] = deque()
        """Definitions that are not committed: committed behind which batch, and their number."""
        self._committed_definitions = 0
        self._committed = 0
        self._told_at = 0.0
        self._housekeep_at = 0.0
        self._replacement: Replacement | None = None
        self._shown_at = 0.0
        self._room = threading.Condition()
        self._waiting_bytes = 0
        """The bytes of a copy that were received and are still to be written."""
        self._has_ended = False
        self._thread = threading.Thread(target=self._work, name="follower's disk", daemon=True)
        self._thread.start()

    @property
    def is_disk_low(self) -> bool:
        """Whether the disk of a follower is nearly full."""
        store = self._store
        return store is not None and store.space.is_low

    def put(self, effect: DiskJob) -> None:
        """Have an effect carried out behind those before; never blocks."""
        if isinstance(effect, Receive):
            self._note_waiting(len(effect.piece.content))
        elif isinstance(effect, Dial):
            self._newest_dial = effect
        self._jobs.put(effect)

    def wait_for_room(self) -> None:
        """Wait until another piece of a copy may be received."""
        with self._room:
            self._room.wait_for(lambda: self._has_ended or self._waiting_bytes < _MAX_WAITING_BYTES)

    def _note_waiting(self, count: int) -> None:
        with self._room:
            self._waiting_bytes += count
            self._room.notify_all()

    def close(self) -> None:
        """Close the store behind what was asked for, and return when the thread has ended."""
        self._jobs.put(None)
        # A process that exits under the thread would leave the log without its last sync, and the
        # next start with a tail to examine.
        self._thread.join()

    def _work(self) -> None:
        try:
            while True:
                try:
                    effect = self._jobs.get(timeout=_IDLE_S)
                except queue.Empty:
                    self._busy(self._housekeep)
                    continue
                if effect is None:
                    break
                self.carry_out(effect)
            self._busy(self._close)
        except BaseException as error:  # noqa: BLE001 - it ends the process
            if self._store is not None:
                # Not `close`, which would write a checkpoint with a store that has just failed.
                self._store.abandon()
            self._answers.failed(error)
        finally:
            # A link's thread may stand in `wait_for_room`, and nothing would wake it any more.
            self._has_ended = True
            self._note_waiting(0)

    def carry_out(self, effect: DiskJob) -> None:
        """Carry out an effect, in the lane's thread."""
        self._busy(self._carry_out, effect)
        if isinstance(effect, Receive):
            self._note_waiting(-len(effect.piece.content))

    def _busy(self, work: Callable[[*_Arguments], None], *arguments: *_Arguments) -> None:
        self.busy_since = time.monotonic()
        try:
            work(*arguments)
        finally:
            self.busy_since = None

    def _carry_out(self, effect: DiskJob) -> None:
        if isinstance(effect, Follow):
            self._follow()
            return
        store = self._store
        # The leader that has the store by now writes the log itself.
        if store is None:
            return  # of a stream that has ended with the leadership
        if isinstance(effect, Open):
            # Before the store is closed: the unfinished segment has an open file in it.
            self._forget_stream()
            self._close()
            self._answers.released(effect.term)
        elif isinstance(effect, Dial):
            self._keep_rewritten(store)
            self._forget_stream()
            self._is_broken = False
            if effect is self._newest_dial:
                # Those that waited for a disk that hung are not made up for, all at once.
                self._answers.flushed(effect)
        elif isinstance(effect, Persist):
            self._persist(store, effect.term)
        elif not self._is_broken:
            self._stream(store, effect)
            if self._store is None:
                # A start puts the leader's store in the place of the one that was given up.
                self._log.discarded(LOG_START)
                self._store = self._reopen()
                _log.info("a copy of the leader's store is in the place of this one")

    def _persist(self, store: FollowerStore, term: int) -> None:
        try:
            store.adopt_term(term)
        except DiskFullError as error:
            self._answers.not_persisted(error)
        else:
            self._answers.persisted(term)

    def _stream(self, store: FollowerStore, effect: StreamEffect) -> None:
        try:
            match effect:
                case Append(batch):
                    self._append(store, batch)
                case CheckpointUpTo(number):
                    self._committed = max(self._committed, number)
                    self._commit(store)
                case Discard(behind):
                    self._discard_behind = behind
                    # Nothing is cut yet. If the leader dies before it has sent what comes behind,
                    # this member still has its whole log, with all that it knows to be confirmed.
                    self._answers.discarded()
                case Restore(snapshot):
                    self._restore(store, snapshot.number, snapshot.content)
                case Define(definition):
                    store.define(definition.number, decode_changes(definition.content))
                    self._note_definitions(self._log.last().number, definition.number)
                    self._answers.synced(definition.term, definition.seq)
                case Sync(term, seq):
                    self._join(store)
                    self._answers.synced(term, seq)
                case FindReceived(term):
                    self._answers.found_received(term, self._received(store))
                case Receive(piece):
                    self._receive(store, piece)
                case Adopt(copy, common):
                    replacement = self._replacement or store.replacement()
                    # Recorded durably before the store is closed: a crash from here on ends with
                    # the copy in place, and one before with the old store.
                    store.replace(replacement, WholeCopy.decode(copy.content), common.lsn)
                    self._store = self._replacement = None
        # A failed sync is fatal everywhere. Hanging up and trying again would ack from a page
        # cache that has dropped the write.
        except DurabilityError:
            raise
        except (StoreError, OSError, ValueError) as error:
            _log.error("what the leader sends cannot be taken", extra={"reason": reason_of(error)})
            self._is_broken = True
            self._forget_rewrite()
            # A full disk or a failed read says nothing against the pieces that were received: they
            # are kept for the next attempt. What contradicts itself is thrown away.
            self._forget_replacement(is_wrong=not isinstance(error, OSError | DiskFullError))
            self._answers.stream_failed()

    # The stream.

    def _restore(self, store: FollowerStore, number: int, content: bytes) -> None:
        found = decode_tables(content)
        store.replace_definitions(number, found.next_queue_id, found.tables)
        self._defined.clear()
        self._note_definitions(found.sealed, number)

    def _note_definitions(self, sealed: int, number: int) -> None:
        self._defined.append((sealed, number))

    def _append(self, store: FollowerStore, batch: ShippedBatch) -> None:
        sealed = SealedBatch.of_layout(batch.layout, batch.content)
        if not batch.seq:
            self._rewrite_with(store, sealed)
            # A sign of life with seq 0, which acks nothing: without it, a leader would drop a
            # follower whose catch-up lasts longer than the ack timeout.
            if time.monotonic() >= self._told_at:
                self._told_at = time.monotonic() + _TOLD_S
                self._answers.synced(batch.term, 0)
            return
        # Before the first batch that counts: acks in this term say that everything before is here
        # too.
        self._join(store)
        store.append(sealed)
        self._log.wrote(named_batch(sealed, store.last.message_id))
        # `append` has synced by now. An ack from the page cache would make two power cuts enough
        # to lose a confirm.
        self._answers.synced(batch.term, batch.seq)

    def _rewrite_with(self, store: FollowerStore, sealed: SealedBatch) -> None:
        """Put a batch that was missed in the segment that is written anew."""
        if self._rewrite is None:
            self._rewrite = self._resumed(store)
        if sealed.segment != self._rewrite.number:
            self._adopt(store, self._rewrite)
            self._rewrite = store.next_segment(sealed.segment)
        self._rewrite.append(sealed.content)
        self._rewritten.append(sealed)

    def _resumed(self, store: FollowerStore) -> SegmentRewrite:
        behind = self._discard_behind
        return store.resume(store.last.lsn if behind is None else behind.lsn)

    def _join(self, store: FollowerStore) -> None:
        """Have the log go on where the leader's does; before anything is acked in its term."""
        if self._is_joined:
            return
        # A tail that was torn, or that the leader does not have, is never appended to: the segment
        # is written anew up to the common batch, and takes the old one's name when it is durable.
        if self._rewrite is None and (self._discard_behind or not store.is_appendable):
            self._rewrite = self._resumed(store)
        if self._rewrite is not None:
            self._adopt(store, self._rewrite)
        self._is_joined = True
        self._commit(store)

    def _adopt(self, store: FollowerStore, rewrite: SegmentRewrite) -> None:
        store.adopt(rewrite)
        self._log.discarded(rewrite.end)
        for sealed in self._rewritten:
            self._log.wrote(named_batch(sealed, store.last.message_id))
        self._discard_behind = None
        self._rewritten.clear()
        self._rewrite = None

    def _commit(self, store: FollowerStore) -> None:
        """Let checkpoints cover what is committed."""
        last = store.last
        if not self._is_joined or not last.lsn:
            return
        # A checkpoint must not cover a definition before the batch behind it is committed: a new
        # leader may not have it, and checkpoints are not undone.
        while self._defined and self._defined[0][0] < self._committed:
            self._committed_definitions = self._defined.popleft()[1]
        lsn = self._log.lsn_up_to(self._committed)
        # Without one, all batches that are remembered are newer than what is committed:
        # checkpoints stay where they are.
        if lsn:
            store.commit(lsn, self._committed_definitions)
            self._log.confirmed_lsn = lsn
            self._log.covered(store.committed_lsn)
        if (now := time.monotonic()) >= self._housekeep_at:
            self._housekeep_at = now + _HOUSEKEEP_S
            store.housekeep()

    def _housekeep(self) -> None:
        if self._store is not None and self._is_joined:
            try:
                self._store.housekeep()
            except DurabilityError:
                # Anything else in the background can wait; a failed sync has already lost
                # something.
                raise
            except (StoreError, OSError) as error:
                _log.error("background work is postponed", extra={"reason": reason_of(error)})

    def _keep_rewritten(self, store: FollowerStore) -> None:
        """Keep what was received of the segment that is written anew, when a connection has ended:
        a link that breaks sooner than a segment is sent would never bring the log any further.
        """
        rewrite = self._rewrite
        # Only where the log becomes longer by it, and loses nothing.
        # With `_discard_behind` the old file has batches that the new one lacks, and those may be
        # confirmed.
        if rewrite is None or not self._rewritten or self._is_broken or self._discard_behind:
            return
        try:
            self._adopt(store, rewrite)
        except DurabilityError:
            raise
        except (StoreError, OSError) as error:
            _log.warning("what was received is sent again", extra={"reason": reason_of(error)})

    def _forget_stream(self) -> None:
        self._forget_rewrite()
        self._forget_replacement()
        self._discard_behind = None
        self._is_joined = False
        self._defined.clear()
        self._committed = self._committed_definitions = 0

    def _forget_rewrite(self) -> None:
        if self._rewrite is not None:
            self._rewrite.abandon()
        self._rewrite = None
        self._rewritten.clear()

    # A copy of the leader's store.

    def _received(self, store: FollowerStore) -> tuple[ReceivedFile, ...]:
        found = []
        for one in store.received():
            found.append(ReceivedFile(*one))
            # Their checksums are computed from whole files.
            # Each takes a while, and this is no sign of a disk that hangs.
            self.busy_since = time.monotonic()
        return tuple(found[:MAX_RECEIVED])

    def _receive(self, store: FollowerStore, piece: StorePiece) -> None:
        if self._replacement is None:
            self._replacement = store.replacement()
        content = piece.content
        # The leader sends no bytes of a file that was compared and is the same.
        if not content and piece.offset:
            self._replacement.take_over(piece.name, piece.offset)
        else:
            if not piece.offset:
                # The space is asked for once a file, for all that is still to come: a copy that
                # cannot end is not to fill the disk first.
                store.require_room(piece.total - piece.sent + len(content))
            self._replacement.append(piece.name, piece.offset, content)
        if time.monotonic() >= self._shown_at:
            self._shown_at = time.monotonic() + _SHOWN_S
            extra = {"bytes": piece.sent, "of_bytes": piece.total}
            _log.info("a copy of the leader's store is received", extra=extra)

    def _forget_replacement(self, *, is_wrong: bool = False) -> None:
        replacement, self._replacement = self._replacement, None
        if replacement is not None and is_wrong:
            replacement.abandon()
        elif replacement is not None:
            replacement.suspend()

    # The store.

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _follow(self) -> None:
        if self._store is None:
            self._store = self._reopen()
        self._is_broken = False
        self._answers.following()
