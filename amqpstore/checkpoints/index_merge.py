"""Merges index files that are mostly acked, or mostly empty: compaction of the index.

Without it one message that is never acked would keep a file of 16,384 entries, and a queue that
gets a message a day would have a file for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amqpstore.checkpoints.checkpoint_state import Block, IndexFile, QueueIndex
from amqpstore.format.index import Entries, IndexState, Merged, encode_block
from amqpstore.format.limits import StoreLimits
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import INDEX, index_path
from amqpstore.system.files import Files
from amqpstore.system.removal import attempt


class IndexMerger:
    """Merges index files of queues: durable on return, and not in the catalog yet."""

    def __init__(self, files: Files, directory: str, seed: int, limits: StoreLimits) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._limits = limits

    def merge(self, queue: QueueIndex, kept: IndexFile | None) -> Iterator[Merged]:
        """Merge groups of files, and yield each group before the next one is begun.

        Args: kept, a file that is appended to, and so left alone.
        Raises: OSError; groups that were not yielded are unchanged then. DurabilityError.
        """
        for group in list(_groups(queue, kept, self._limits)):
            entries = queue.live_entries(group)
            # An unreadable file does no harm, and stays as it is.
            if entries is not None:
                yield self._merge(queue, group, entries)

    def _merge(self, queue: QueueIndex, group: Sequence[IndexFile], entries: Entries) -> Merged:
        number = queue.next_number
        queue.next_number += 1
        new = self._written(queue.id, number, entries)
        # The new file is durable. A crash before the commit of this checkpoint leaves it without a
        # row, and the old files with theirs; one after it the other way round.
        index = queue.files.index(group[0])
        old = [one.close() for one in group]
        queue.files[index : index + len(group)] = [new]
        return Merged(queue.id, old, number)

    def _written(self, queue_id: int, number: int, entries: Entries) -> IndexFile:
        """Return a new index file, durable. If it cannot be written, no file is left: on a full
        disk this is tried again and again.
        """
        path = index_path(self._directory, queue_id, number)
        block = encode_block(queue_id, number, entries, self._seed)
        file = self._files.create(path)
        try:
            file.append([block])
            sync_file(file)
            sync_directory(self._files, f"{self._directory}/{INDEX}")
        except OSError:
            attempt(self._files.remove, path)
            raise
        finally:
            file.close()
        new = IndexFile(IndexState(number, 0, 0, 0, 0))
        new.append(Block.of(entries, len(block)))
        return new


def _groups(
    queue: QueueIndex, kept: IndexFile | None, limits: StoreLimits
) -> Iterator[list[IndexFile]]:
    """Yield neighbours whose live entries fit in one file, if merging them is worth it."""
    group: list[IndexFile] = []
    live = 0
    for file in [*queue.files, None]:
        if file is not None and file is not kept and not file.is_behind:
            if live + file.live <= limits.entries_a_file:
                group.append(file)
                live += file.live
                continue
            following = [file]
        else:
            following = []
        if _is_worth_it(group, live, limits):
            yield group
        group = following
        live = sum(one.live for one in group)


def _is_worth_it(group: Sequence[IndexFile], live: int, limits: StoreLimits) -> bool:
    dead = sum(file.state.entries for file in group) - live
    return live > 0 and (
        (dead >= limits.min_acked and dead > live) or len(group) >= limits.max_small_files
    )
