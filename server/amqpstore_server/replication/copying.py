"""Sends a copy of a leader's whole store to a follower, while the leader goes on.

The files that belong to the copy are pinned by hard links, so the store may remove its own names of
them at any time; they are never written again, except behind the end that the copy has. The log
behind the copy is kept for the follower meanwhile. One piece of one file is in memory at a time,
and the next one is read when the follower has taken it. Files that the follower has from a copy
that was cut off are read here, and not sent, if they are the same.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from crc32c import crc32c

from amqpstore import DamageError
from amqpstore.replica import CopySource
from amqpstore.system import ownership
from amqpstore.system.files import naming
from amqpstore_server.cluster.effects import SendCopy
from amqpstore_server.cluster.frames import ReceivedFile, Refused, StoreCopy, StorePiece
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.links import Write
from amqpstore_server.replication.member_log import MemberLog

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_MAX_PAUSE_S = 0.5


class CopyCounts:
    """Copies that this process has sent, and sends now: `left_bytes` are still to be sent, by link.

    Any thread may look at it.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.left_bytes: dict[int, int] = {}


def send_copy(
    asked: SendCopy, directory: str, companion: LeaderCompanion, log: MemberLog, counts: CopyCounts
) -> Callable[[Write], None]:
    """Return the job that sends a copy of the store in a directory on a link."""
    link = asked.link

    def job(write: Write) -> None:
        pinned = log.copies(str(link))
        counts.left_bytes[link] = 0
        try:
            # Under the catalog's lock: a checkpoint or a compaction that committed in between
            # would remove files that the copied rows still name.
            source = companion.pinned(lambda source: _pin(source, directory, pinned))
            began = time.monotonic()
            sizes = _sizes(source, pinned)
            extra: dict[str, float] = {"files": len(sizes), "bytes": sum(sizes.values())}
            _log.info("a follower gets a copy of the store", extra=extra)
            received = {one.name: one for one in asked.received}
            for piece in _pieces(companion.term, sizes, pinned, received):
                # Meanwhile the log goes on, and the follower needs that next.
                log.hold(source.segment)
                if companion.is_deposed:
                    raise OSError("this member leads no longer")
                counts.left_bytes[link] = piece.total - piece.sent
                _write_slowly(write, piece)
                counts.sent_bytes += len(piece.content)
            # The rows last: a follower whose link breaks before this has files, and no catalog
            # that claims them.
            write(StoreCopy(companion.term, source.copy(sizes).encode()))
            extra["seconds"] = round(time.monotonic() - began, 3)
            _log.info("a copy of the store was sent", extra=extra)
        # Trying again would not help: the follower is told why, for its operator.
        except ValueError as error:
            write(Refused(f"it needs a copy of the whole store, and {error}"))
        except DamageError as error:
            raise OSError(str(error)) from error
        finally:
            del counts.left_bytes[link]
            # Links of a copy that a crash has cut off are removed by the next start, in
            # `KeptSegments`.
            shutil.rmtree(pinned, ignore_errors=True)

    return job


def _write_slowly(write: Write, piece: StorePiece) -> None:
    """Send a piece, and leave as much time as that took to the leader's clients."""
    with _slowly():
        write(piece)


@contextmanager
def _slowly() -> Iterator[None]:
    before = time.monotonic()
    yield
    time.sleep(min(time.monotonic() - before, _MAX_PAUSE_S))


def _pin(source: CopySource, directory: str, pinned: str) -> None:
    """Give the files names that stay. A file that was lost is not in the copy either.

    Raises: OSError.
    """
    ownership.make_directories(pinned)
    for name in source.sizes:
        with suppress(FileNotFoundError):
            os.link(f"{directory}/{name}", _path(pinned, name))


def _path(pinned: str, name: str) -> str:
    return os.path.join(pinned, os.path.basename(name))


def _sizes(source: CopySource, pinned: str) -> dict[str, int]:
    """Return how much of each file is copied."""
    found = {}
    for name, size in source.sizes.items():
        with suppress(FileNotFoundError):
            there = os.stat(_path(pinned, name)).st_size
            # Segments and index files are appended to while they are sent. What lies behind the
            # recorded end is not in the copied rows, and may be the first half of a batch.
            found[name] = there if size is None else min(size, there)
    return found


def _pieces(
    term: int, sizes: dict[str, int], pinned: str, received: Mapping[str, ReceivedFile]
) -> Iterator[StorePiece]:
    """Yield all bytes of all files that were not received, and at least one piece of each file.

    Raises: OSError.
    """
    total = sum(sizes.values())
    sent = 0
    for name, size in sizes.items():
        path = _path(pinned, name)
        with naming(path), open(path, "rb", buffering=0) as file:
            if size and name in received and _is_same(file.fileno(), size, received[name]):
                sent += size
                yield StorePiece(term, name, size, sent, total, b"")
                continue
            # An empty file has a piece as well, or the follower would miss a file that a row
            # names.
            for offset in range(0, max(size, 1), _PIECE_BYTES):
                wanted = min(_PIECE_BYTES, size - offset)
                content = os.pread(file.fileno(), wanted, offset)
                # Somebody has cut a pinned file by hand. Padding it would be a copy with a hole
                # under a sound catalog.
                if len(content) < wanted:
                    raise OSError(f"{name} of the copy has become shorter than {size} bytes")
                sent += wanted
                yield StorePiece(term, name, offset, sent, total, content)


def _is_same(descriptor: int, size: int, received: ReceivedFile) -> bool:
    """Tell whether a follower has received all that is copied of a file."""
    if received.size != size:
        return False
    checksum = 0
    for offset in range(0, size, _PIECE_BYTES):
        with _slowly():
            content = os.pread(descriptor, min(_PIECE_BYTES, size - offset), offset)
            # The size alone proves nothing: after a power cut the follower may have the length of
            # a file, and zeros in it.
            checksum = crc32c(content, checksum)
    return checksum == received.checksum
