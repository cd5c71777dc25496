"""Client trails: who published the messages of the log, who got them, and what they did with them.

The log says what happened to a message, but not to whom: its operations name queues and sequences.
So the owner of the store notes the clients here, a run at a time, and the notes are written beside
the log, to a bounded number of files, the oldest of which is removed for a new one.

Nothing is promised about them, and nothing is synced: a crash loses what was noted last. But what
they say is true: notes are written only once everything before them is durable, because the
sequences of a batch that a crash has rolled back are given again, to other messages.
"""

from __future__ import annotations

import enum
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, repeat
from operator import is_not, sub
from typing import NamedTuple

import msgpack
from crc32c import crc32c

from amqpstore.format.compression import compress_columns, decompress_columns
from amqpstore.format.runs import Run
from amqpstore.log.log import Log
from amqpstore.queues.queue import Queue
from amqpstore.queues.transient import FIRST_TRANSIENT
from amqpstore.system.clock import Clock
from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import TRAILS, trail_name, trail_number
from amqpstore.system.files import File, Files

_log = logging.getLogger(__name__)

FILE_BYTES = 4 << 20
"""The size from which on a file gets no further block."""

BLOCK_NOTES = 512
"""Notes that are written together: to encode them takes about 0.2 ms."""

MAX_WAITING_BLOCKS = 64
"""Blocks that may wait until everything before them is durable; others are dropped."""

MAGIC = b"\xc7TRL"

BLOCK_HEADER = struct.Struct(">4sIIIIII")
"""magic, number of the file, count of notes, bytes of names, payload length, two checksums."""

_IDENTITY = struct.Struct(">4sIIII")
_CHECKSUMS = struct.Struct(">II")

COLUMNS = "QQQIHHB"
"""time (ms since 1970), queue id, first sequence, count, number of the client, number of the
consumer tag, what happened: a column each, in order.
"""

NOTE_BYTES = struct.calcsize(">" + COLUMNS)

_RETRY_MS = 60_000

_NEWEST_BYTES = 1 << 20
"""How much of the newest notes is read: to decode them takes about 0.2 s."""


class What(enum.IntEnum):
    """Something that a client did with a run of messages, or what was done for it."""

    PUBLISHED = 1
    DELIVERED = 2
    ACKED = 3
    REJECTED = 4
    REQUEUED = 5


_PUBLISHED = What.PUBLISHED


class NotedClient(NamedTuple):
    """A client: the name of its connection, the number of the channel, and the user."""

    connection: str
    channel: int
    user: str


class Note(NamedTuple):
    """An event in the lives of `message_count` messages of a queue, from `first_sequence` on.

    `consumer_tag` is empty unless they were delivered to a consumer.
    """

    what: What
    at_ms: int
    client: NotedClient
    consumer_tag: str
    queue_id: int
    first_sequence: int
    message_count: int


_Noted = tuple[int, int, tuple[str, int, str], str, int, int, int]


class ClientTrails:
    """Notes clients, and writes the notes to `trails/`.

    Args: seed, see `checksum_seed`; may_write, tells whether the disk has room for them; max_files,
    how many files are kept, two at least.
    Raises: OSError, when the directory cannot be made.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        seed: int,
        log: Log,
        clock: Clock,
        may_write: Callable[[], bool],
        max_files: int,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._files = files
        self._directory = f"{directory}/{TRAILS}"
        self._seed = seed
        self._log = log
        self._clock = clock
        self._may_write = may_write
        self._max_files = max_files
        self._file_bytes = file_bytes
        self._noted: list[_Noted] = []
        self._waiting_blocks = 0
        self._file: File | None = None
        self._number = 0
        self._retry_at_ms = 0
        files.make_directory(self._directory)

    def note(
        self,
        what: int,
        client: tuple[str, int, str],
        consumer_tag: str,
        queue_id: int,
        run: Run,
    ) -> None:
        """Note what happened to a run, if it is in the log. Args: client, the same object for all
        that one client does, as they are told apart by identity.
        """
        # The sequences of others may be given again by the next process.
        if 0 < run.first_id < FIRST_TRANSIENT:
            self._note(what, client, consumer_tag, queue_id, run.first_sequence, run.count)

    def published(
        self,
        client: tuple[str, int, str],
        queue: Queue,
        first_sequence: int,
        count: int,
        *,
        persistent: bool,
    ) -> None:
        """Note who published messages, if those of that queue are in the log: see `note`."""
        if queue.durable and (persistent or queue.keeps_transient):
            self._note(_PUBLISHED, client, "", queue.id, first_sequence, count)

    def _note(
        self,
        what: int,
        client: tuple[str, int, str],
        consumer_tag: str,
        queue_id: int,
        first_sequence: int,
        count: int,
    ) -> None:
        now_ms = self._clock.wall_ms()
        self._noted.append((what, now_ms, client, consumer_tag, queue_id, first_sequence, count))
        if len(self._noted) >= BLOCK_NOTES:
            self.flush()

    def published_by(
        self,
        clients: Sequence[tuple[str, int, str]],
        queue: Queue,
        first_sequence: int,
        *,
        persistent: bool,
    ) -> None:
        """Note who published each of the messages that follow each other from a sequence on."""
        if not queue.durable or not (persistent or queue.keeps_transient):
            return
        count = len(clients)
        # One note for neighbours of one client: a batch of a thousand publishes by one client is
        # one row.
        starts = [0, *compress(range(1, count), map(is_not, clients[1:], clients))]
        self._noted += zip(
            *(repeat(_PUBLISHED), repeat(self._clock.wall_ms())),
            *([clients[start] for start in starts], repeat(""), repeat(queue.id)),
            *([first_sequence + start for start in starts], map(sub, [*starts[1:], count], starts)),
            strict=False,  # three of them never end
        )
        if len(self._noted) >= BLOCK_NOTES:
            self.flush()

    def flush(self) -> None:
        """Have what was noted written, as soon as everything before it is durable."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        # Behind a disk that hangs the notes are dropped: they must not take the memory of
        # messages.
        if self._waiting_blocks < MAX_WAITING_BLOCKS:
            self._waiting_blocks += 1
            self._log.when_durable(partial(self._write, noted))

    def close(self) -> None:
        """Flush, and close the file. To be called once the log is durable."""
        self.flush()
        self._end_file()

    def _write(self, noted: list[_Noted]) -> None:
        self._waiting_blocks -= 1
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._retry_at_ms or not self._may_write():
            return
        try:
            file = self._file or self._begin_file()
            file.append([encode_block(noted, self._number, self._seed)])
        except OSError as error:
            _log.warning(
                "who published and received messages is not noted for a minute: %s",
                reason_of(error),
            )
            self._retry_at_ms = now_ms + _RETRY_MS
            # It is unknown how much of the block was written: nothing is written behind it.
            self._end_file()
            return
        if file.end() >= self._file_bytes:
            self._end_file()

    def _begin_file(self) -> File:
        numbers = _numbers(self._files, self._directory)
        # The oldest go before the new one is begun, so there is never one more than allowed.
        for number in numbers[: max(0, len(numbers) + 1 - self._max_files)]:
            self._files.remove(f"{self._directory}/{trail_name(number)}")
        # Each process begins a new file, and so does each error: what is at the end of the last
        # one is not known.
        self._number = max(numbers, default=0) + 1
        self._file = self._files.create(f"{self._directory}/{trail_name(self._number)}")
        return self._file

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def encode_block(noted: list[_Noted], number: int, seed: int) -> bytes:
    """Return a block of notes of file `number`."""
    whats, times, clients, tags, queue_ids, sequences, counts = zip(*noted, strict=True)
    # By identity: to compare names takes longer than all the rest.
    ids = list(map(id, clients))
    by_id = dict(zip(ids, clients, strict=True))
    client_numbers = dict(zip(by_id, range(len(by_id)), strict=True))
    tag_numbers = {tag: index for index, tag in enumerate(dict.fromkeys(tags))}
    names = msgpack.packb([[*map(list, by_id.values())], [*tag_numbers]])
    columns = struct.pack(
        _columns(len(noted)),
        *times,
        *queue_ids,
        *sequences,
        *counts,
        *map(client_numbers.__getitem__, ids),
        *map(tag_numbers.__getitem__, tags),
        *whats,
    )
    payload = compress_columns(columns + names)
    identity = _IDENTITY.pack(MAGIC, number, len(noted), len(names), len(payload))
    checksum = crc32c(identity, seed)
    return b"%b%b%b" % (identity, _CHECKSUMS.pack(checksum, crc32c(payload, checksum)), payload)


def decode_block(payload: bytes, count: int, names_bytes: int) -> list[Note]:
    """Return the notes of a sound block. Raises: ValueError, if its lengths are inconsistent."""
    content = decompress_columns(payload, count * NOTE_BYTES + names_bytes)
    names = msgpack.unpackb(content[count * NOTE_BYTES :])
    clients = [NotedClient(*one) for one in names[0]]
    tags: list[str] = names[1]
    values = struct.unpack_from(_columns(count), content)
    columns = [values[first : first + count] for first in range(0, len(values), count)]
    return [
        Note(What(what), at_ms, clients[client], tags[tag], queue_id, first_sequence, many)
        for at_ms, queue_id, first_sequence, many, client, tag, what in zip(*columns, strict=True)
    ]


def _columns(count: int) -> str:
    return ">" + "".join(f"{count}{code}" for code in COLUMNS)


def read_notes(files: Files, directory: str, seed: int) -> Iterator[list[Note]]:
    """Yield what was noted, block by block, oldest first. What is not sound is left out.

    It may be read in another thread than the one that writes. Raises: OSError.
    """
    trails = f"{directory}/{TRAILS}"
    if not files.exists(trails):
        return
    for number in _numbers(files, trails):
        try:
            file = files.open(f"{trails}/{trail_name(number)}")
        except FileNotFoundError:
            continue  # it was removed meanwhile
        try:
            content = file.read(0, file.size())
        finally:
            file.close()
        yield from _blocks(content, number, seed)


def newest_notes(files: Files, directory: str, seed: int) -> Iterator[Note]:
    """Yield what was noted last, some hundred thousand notes at most, in any order.

    Raises: OSError.
    """
    trails = f"{directory}/{TRAILS}"
    if not files.exists(trails):
        return
    left = _NEWEST_BYTES
    for number in reversed(_numbers(files, trails)):
        file = files.open(f"{trails}/{trail_name(number)}")
        try:
            start = max(file.size() - left, 0)
            content = file.read(start, left)
        finally:
            file.close()
        for notes in _blocks(content, number, seed):
            yield from notes
        left -= len(content)
        if left <= 0:
            return


def _blocks(content: bytes, number: int, seed: int) -> Iterator[list[Note]]:
    # Nothing is synced: a crash may have left anything between two whole blocks.
    offset = content.find(MAGIC)
    while 0 <= offset <= len(content) - BLOCK_HEADER.size:
        _, of_file, count, names_bytes, size, checksum, payload_checksum = BLOCK_HEADER.unpack_from(
            content, offset
        )
        start = offset + BLOCK_HEADER.size
        identity = content[offset : offset + _IDENTITY.size]
        if crc32c(identity, seed) == checksum and of_file == number:
            payload = content[start : start + size]
            # The checksum continues the header's, so a payload behind the wrong header does not
            # match.
            if crc32c(payload, checksum) == payload_checksum:
                yield decode_block(payload, count, names_bytes)
                offset = content.find(MAGIC, start + size)
                continue
        # The header may have been a piece of a payload that looks like one: one byte further, not
        # behind its length.
        offset = content.find(MAGIC, offset + 1)


def _numbers(files: Files, trails: str) -> list[int]:
    names: Iterable[str] = files.list_directory(trails)
    return sorted(number for name in names if (number := trail_number(name)))
