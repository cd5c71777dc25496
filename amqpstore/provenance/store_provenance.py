"""The provenance of the messages of an open store: who reads it, and who notes it."""

from __future__ import annotations

from amqpstore.catalog.backing import Backing
from amqpstore.format.compression import Decompressor
from amqpstore.format.records import MessageDecoder
from amqpstore.log.log import Log
from amqpstore.log.space import Space
from amqpstore.provenance.client_trails import FILE_BYTES, ClientTrails
from amqpstore.provenance.log_reading import GoesOn, LogReading
from amqpstore.provenance.origins import IsCopy
from amqpstore.provenance.provenance import ProvenanceReader
from amqpstore.system.clock import Clock


class StoreProvenance:
    """Makes readers of the log of one open store, and what notes its clients. It has no state of
    its own.
    """

    def __init__(self, backing: Backing, log: Log, space: Space, clock: Clock) -> None:
        self._backing = backing
        self._log = log
        self._space = space
        self._clock = clock

    def reader(self, is_copy: IsCopy, goes_on: GoesOn) -> ProvenanceReader:
        """Return a reader of what the log says of one message. It may be used in another thread."""
        backing = self._backing
        # A copy of the dictionaries: compaction adds to them in the store's thread.
        decoder = MessageDecoder({}, Decompressor(dict(self._log.dictionaries)).decompress)
        reading = LogReading(backing.files, backing.directory, backing.seed, decoder, goes_on)
        return ProvenanceReader(reading, is_copy)

    def client_trails(self, max_files: int, file_bytes: int = FILE_BYTES) -> ClientTrails:
        """Return what notes who published messages of this store, and who got them.

        Args, raises: as `ClientTrails`.
        """
        backing, space = self._backing, self._space
        return ClientTrails(
            *(backing.files, backing.directory, backing.seed, self._log, self._clock),
            may_write=lambda: not space.is_low,
            max_files=max_files,
            file_bytes=file_bytes,
        )
