"""Paging: ready messages that are in index files only, and how they come back into memory."""

from __future__ import annotations

from amqpstore.catalog.backing import Backing
from amqpstore.errors import DamageError, MessageDamagedError, ReadLaterError
from amqpstore.format.index import Entries, IndexReader, PagedFile, live_runs
from amqpstore.format.runs import Run
from amqpstore.log.segments import Unread
from amqpstore.queues.arguments import check_queue
from amqpstore.queues.quarantine import Quarantine
from amqpstore.queues.queue import Queue
from amqpstore.system.descriptors import is_shortage
from amqpstore.system.filenames import index_path


class Paging:
    """Reads the index files of one store's queues: which messages are where, without bodies.

    Each file of `Queue.paged` has ready messages that are in no run. Once it is paged in they are
    in runs, or, if it cannot be read, in `Queue.unread`, of which the quarantine takes care.
    """

    def __init__(self, backing: Backing, quarantine: Quarantine) -> None:
        self.reader = IndexReader(backing.files, backing.directory, backing.seed)
        self._directory = backing.directory
        self._quarantine = quarantine

    def runs_of(self, queue: Queue, file: PagedFile) -> list[Run]:
        """Return what is ready and in an index file only. Raises: DamageError, OSError."""
        state = queue.index[file.number]
        runs = live_runs(self.entries_of(queue, file), state, file.first, file.end)
        queue.check_apart(runs, index_path(self._directory, queue.id, file.number))
        return runs

    def entries_of(self, queue: Queue, file: PagedFile) -> Entries:
        """Return all entries of an index file, also those that are acked. Raises: DamageError,
        OSError.
        """
        return self.reader.entries(queue.id, queue.index[file.number])

    def page_in(self, queue: Queue, file: PagedFile) -> Unread | None:
        """Read what is in an index file only into memory."""
        try:
            runs = self.runs_of(queue, file)
        except (DamageError, OSError, MemoryError) as error:
            # A lack of descriptors or memory says nothing of the file: its messages stay where they
            # are.
            if is_shortage(error):
                path = index_path(self._directory, queue.id, file.number)
                return ReadLaterError(path, str(error) or "out of memory")
            # The file is moved out of the way, so that messages behind it are served; it is tried
            # again.
            queue.cannot_read(file)
            self._quarantine.retry(queue)
            return self.note_file(queue, file, error)
        queue.paged_in(file, runs)
        return None

    def read_index(self, queue: Queue) -> None:
        """Read everything that is ready, except bodies, into memory, to inspect `queue.ready`.

        Raises: ReadLaterError.
        """
        check_queue(queue)
        while queue.paged:
            if isinstance(error := self.page_in(queue, queue.paged[0]), ReadLaterError):
                raise error

    def note_file(self, queue: Queue, file: PagedFile, error: Exception) -> MessageDamagedError:
        """Note for the log that an index file cannot be read. Returns the messages' error."""
        path = index_path(self._directory, queue.id, file.number)
        damaged = MessageDamagedError(
            0,
            f"{file.live} messages of its queue: {error}",
            file.body_bytes or 0,
            path=path,
            message_count=file.live,
        )
        self._quarantine.note(queue.definition, damaged)
        return damaged
