"""Bodies on disk: the messages of runs that are not in memory, read from where they are."""

from __future__ import annotations

import time

from amqpstore.format.message import Message
from amqpstore.format.runs import Run, body_bytes
from amqpstore.log.large_reads import LargeReads
from amqpstore.log.log import Log
from amqpstore.log.segments import Unread
from amqpstore.queues.transient import FIRST_TRANSIENT, TransientLog
from amqpstore.system.clock import Clock

_READ_BYTES = 1 << 20
"""How many bytes of bodies are read at a time."""


class BodyReader:
    """Reads the messages of runs of one store from the log, or from `transient` if they are not
    logged; and measures how long that takes.

    It changes no run and no queue: what it returns belongs to the caller. A message that cannot be
    read is returned as the error that says why, and is not noted anywhere.
    """

    def __init__(self, log: Log, transient: TransientLog, chunk_bytes: int, clock: Clock) -> None:
        self._log = log
        self._transient = transient
        self._large = LargeReads(chunk_bytes, clock)

    def read_back(
        self, run: Run, skipped: int, count: int, *, in_chunks: bool = False
    ) -> list[Message] | Unread:
        """Read back some, at least one, of the messages of a run that is on disk.

        With `in_chunks`, a large message may need some calls: PartlyReadError until then.
        """
        began_s = time.perf_counter()
        found = self._read_back(run, skipped, count, in_chunks=in_chunks)
        measures = self._log.measures
        measures.read_count += 1
        measures.read_s += time.perf_counter() - began_s
        if isinstance(found, list):
            measures.read_bytes += body_bytes(found)
        return found

    def _read_back(
        self, run: Run, skipped: int, count: int, *, in_chunks: bool
    ) -> list[Message] | Unread:
        if run.ids is not None:
            return self._read_spread(run, skipped, count, in_chunks=in_chunks)
        first_id = run.first_id + skipped
        log = self._transient if first_id >= FIRST_TRANSIENT else self._log
        if in_chunks:
            return self._large.read(log, first_id, count)
        return log.read(first_id, count)

    def _read_spread(
        self, run: Run, skipped: int, count: int, *, in_chunks: bool
    ) -> list[Message] | Unread:
        """Read back messages whose ids are not contiguous, about as many bytes as of others."""
        messages: list[Message] = []
        size = 0
        while len(messages) < count and size < _READ_BYTES:
            index = skipped + len(messages)
            stretch = run.contiguous_from(index, skipped + count - index)
            first_id = run.id_at(index)
            if in_chunks:
                found = self._large.read(self._log, first_id, stretch)
            else:
                found = self._log.read(first_id, stretch)
            if not isinstance(found, list):
                # The next call meets the error again, and then it stands for one message.
                return messages or found
            messages += found
            size += body_bytes(found)
        return messages

    def release_transient(self, run: Run) -> None:
        """Release the messages of a run that are in `transient/`."""
        if run.first_id >= FIRST_TRANSIENT:
            self._transient.release(run.first_id, run.count)

    def drop_abandoned(self) -> None:
        """Forget large messages whose read was abandoned. To be called about once a second."""
        self._large.drop_abandoned()

    def forget_damage(self) -> None:
        """Look again at what could not be read."""
        self._log.forget_damage()
        self._transient.forget_damage()
