"""Quarantine: what cannot be read of queues, so that what is behind it is served all the same."""

from __future__ import annotations

from collections.abc import Iterator

from amqpstore.catalog.catalog import Value
from amqpstore.errors import MessageDamagedError, ReadLaterError
from amqpstore.format.index import PagedFile
from amqpstore.format.runs import Run
from amqpstore.log.segments import Unread
from amqpstore.queues.body_reader import BodyReader
from amqpstore.queues.queue import Queue
from amqpstore.queues.rereading import Rereading, UnreadLog
from amqpstore.system.clock import Clock


class Quarantine:
    """The unreadable messages and index files of one store's queues, which are tried again.

    A message is in `Queue.quarantined` or in a run that is ready or taken, never in both: whoever
    puts it here has removed it from its run. Nothing of this is on disk: after a restart it is
    ready, and found to be unreadable once more.
    """

    def __init__(self, reader: BodyReader, clock: Clock) -> None:
        self._reader = reader
        self._rereading = Rereading(reader.read_back, reader.forget_damage, clock)
        self._unread_log = UnreadLog(clock)

    def put(self, queue: Queue, run: Run) -> None:
        """Put messages that cannot be read and are in no run any more in quarantine, to be tried
        again.
        """
        run.let_go()
        # Its queue may have been deleted while a consumer had it: nothing would try it again.
        if queue.deleted:
            self._reader.release_transient(run)
        else:
            queue.quarantined.insert(run)
            self._rereading.add(queue)

    def set_aside(self, queue: Queue, run: Run, error: MessageDamagedError) -> None:
        """Put a run that cannot be read into quarantine, and note it for the log."""
        self._unread_log.note(queue.definition, error)
        self.put(queue, run)

    def note(self, definition: Value, error: MessageDamagedError) -> None:
        """Note for the log that messages of a queue cannot be read. Args: definition, of it."""
        self._unread_log.note(definition, error)

    def note_skipped(self, definition: Value, found: Unread) -> None:
        """Note for the log that a message is left out. One that can be read later is, too."""
        if isinstance(found, ReadLaterError):
            found = MessageDamagedError(0, str(found))
        self._unread_log.note(definition, found)

    def retry(self, queue: Queue) -> None:
        """Retry what cannot be read of a queue: see `readable`."""
        self._rereading.add(queue)

    def readable(
        self,
    ) -> tuple[Iterator[tuple[Queue, Run]], Iterator[tuple[Queue, PagedFile]]] | None:
        """Return what is to be tried again, about once a second; None in between.

        Returns: messages that can be read, each of which leaves quarantine as it is yielded, and
        index files, until the caller stops at one that cannot be read.
        """
        self._unread_log.write()
        if not self._rereading.is_due():
            return None
        return self._rereading.messages(), self._rereading.index_files()
