"""Reads index files: the entries that the last checkpoint knew as live, and the holes in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.format.index import Bits, Entries, IndexState, live_runs, no_entries
from amqpstore.format.records import Gap
from amqpstore_tools.offline.segments import IndexImage
from amqpstore_tools.repair.facts import Facts
from amqpstore_tools.repair.truth.holders import Holders
from amqpstore_tools.repair.truth.trust import MOST, Trust
from amqpstore_tools.repair.truth.values import Placements, QueueTruth


class Hole(NamedTuple):
    """Sequences whose entries in an index file are lost.

    `acked` of each, if known; `delivered` counts by sequence, if known.
    """

    first: int
    end: int
    acked: Bits | None
    delivered: dict[int, int]

    def times(self, sequence: int) -> int:
        """Return how often a message had been delivered, or may have been."""
        if self.acked is None:
            return max(self.delivered.values(), default=0)
        return self.delivered.get(sequence, 0)


class Indexed(NamedTuple):
    """Questions that reading index files left open: `holes` by queue.

    `elsewhere` counts live entries of deleted queues, which no checkpoint has released yet.
    `damaged`, by queue, are the rows of files that lack something that the row knows.
    """

    holes: dict[int, list[Hole]]
    elsewhere: Holders
    damaged: dict[int, list[IndexState]]

    @property
    def is_whole(self) -> bool:
        """Whether each file with a row has all that the row knows, unless its queue was deleted."""
        return not self.damaged


def read_index(facts: Facts, trust: Trust, placements: Placements) -> Indexed:
    """Put the live entries of index files into their queues. Raises: OSError."""
    return _Index(facts, trust, placements).run()


class _Index:
    def __init__(self, facts: Facts, trust: Trust, placements: Placements) -> None:
        self._facts = facts
        self._trust = trust
        self._placements = placements
        self._doubtful: list[tuple[QueueTruth, Entries, IndexState]] = []
        self._out = Indexed({}, Holders(), {})

    def run(self) -> Indexed:
        rows = self._facts.rows
        images: dict[tuple[int, int], list[IndexImage]] = {}
        for image in self._facts.index:
            images.setdefault((image.queue_id, image.number), []).append(image)
        states = tables.INDEX.read(rows.__getitem__) if rows is not None else {}
        others: list[tuple[IndexImage, int]] = []
        for key, state in sorted(states.items()):
            files = images.pop(key, [])
            whole = self._read_file(key.queue_id, state, files)
            if whole is None and key.queue_id in self._placements.queues:
                self._out.damaged.setdefault(key.queue_id, []).append(state)
            others += [(one, state.end_bytes if one is whole else 0) for one in files]
        others += [(one, 0) for files in images.values() for one in files]
        for image, known_bytes in others:
            self._read_unrowed(image, known_bytes)
        self._settle_doubts()
        return self._out

    def _read_file(
        self, queue_id: int, state: IndexState, images: Sequence[IndexImage]
    ) -> IndexImage | None:
        """Read an index file with a row. Returns which of its files has all that the row knows."""
        image, blocks = _best(images, state)
        queue = self._placements.queues.get(queue_id)
        entries = no_entries()
        for block in blocks:
            if block is not None:
                self._placements.explain(block.ids)
                entries.extend(block)
        is_whole = _is_whole(blocks, state) and _ascend(entries)
        if queue is None:
            if is_whole:
                self._out.elsewhere.add(live_runs(entries, state, 0, MOST))
            return image if is_whole else None
        if not is_whole:
            self._salvage(queue, state, blocks)
            return None
        for run in live_runs(entries, state, 0, MOST):
            queue.put(run)
        # If they differ, the bits or their number are damaged: the accounts decide, once all files
        # are read.
        acked = Bits.of(state.acked, state.entries)
        if acked.count(1) != state.acked_count:
            self._doubtful.append((queue, entries, state))
        queue.next_sequence = max(queue.next_sequence, entries.sequences[-1] + 1)
        return image

    def _salvage(self, queue: QueueTruth, state: IndexState, blocks: list[Entries | None]) -> None:
        """Use the sound part of a damaged index file, and note the rest."""
        acked = Bits.of(state.acked, state.entries)
        indexes = _with_indexes(blocks, state.entries)
        last_sequence, last_index = state.first - 1, 0
        for index, block in indexes:
            if block is None:
                continue
            # It is not known which bits of the row belong to this block.
            if index < 0:
                self._put_unsure(queue, block)
            else:
                count = len(block.ids)
                part = IndexState(
                    *(state.number, 0, count, block.sequences[0], block.sequences[-1] + 1),
                    acked=Bits(acked[index : index + count]).packed(),
                    delivered={
                        at - index: times
                        for at, times in state.delivered.items()
                        if index <= at < index + count
                    },
                    postponed=state.postponed,
                    postponed_deliveries=state.postponed_deliveries,
                )
                for run in live_runs(block, part, 0, MOST):
                    queue.put(run)
            self._note_hole(queue, state, last_sequence + 1, block.sequences[0], last_index, index)
            last_sequence = block.sequences[-1]
            last_index = index + len(block.ids) if index >= 0 else -1
        end = max(state.end, last_sequence + 1)
        self._note_hole(queue, state, last_sequence + 1, end, last_index, state.entries)
        queue.next_sequence = max(queue.next_sequence, end)

    def _note_hole(
        self, queue: QueueTruth, state: IndexState, first: int, end: int, index: int, stop: int
    ) -> None:
        """Note that entries of these places, within these sequences, are lost."""
        if first >= end or (index >= 0 and index == stop):
            return
        counts = [*state.delivered.values(), *(one[2] for one in state.postponed_deliveries)]
        hole = Hole(first, end, None, {first: max(counts)} if counts else {})
        if 0 <= index < stop and stop - index == end - first:
            acked = Bits.of(state.acked, state.entries)
            delivered = {
                first + at - index: times
                for at, times in state.delivered.items()
                if index <= at < stop
            }
            for start, behind, times in state.postponed_deliveries:
                for sequence in range(max(start, first), min(behind, end)):
                    delivered[sequence] = max(delivered.get(sequence, 0), times)
            hole = Hole(first, end, Bits(acked[index:stop]), delivered)
        self._out.holes.setdefault(queue.id, []).append(hole)

    def _read_unrowed(self, image: IndexImage, known_bytes: int) -> None:
        """Read what no row knows of an index file: all behind the first `known_bytes`.

        Where the last checkpoint had seen a sequence, the row of some file has its entry, and this
        one counts only where that is lost. Any later entry is newer than the catalog.
        """
        queue = self._placements.queues.get(image.queue_id)
        for block in _blocks(image, None, known_bytes):
            if block is None:
                continue
            self._placements.explain(block.ids)
            if queue is None:
                continue
            head = self._trust.head(queue.id)
            if self._trust.is_index_lost or head is None:
                self._put_unsure(queue, block)
                continue
            for hole in self._out.holes.get(queue.id, ()):
                self._put_unsure(queue, block, hole.first, min(hole.end, head), hole)
            for part in self._passed_over(block, head):
                self._put_unsure(queue, part)
            self._put_unsure(queue, block, head)

    def _passed_over(self, block: Entries, head: int) -> Iterator[Entries]:
        """Yield the entries before a sequence that no checkpoint has seen, as starts passed over
        them.
        """
        unseen = self._trust.passed_over.message_ids
        for index, (sequence, message_id) in enumerate(
            zip(block.sequences, block.ids, strict=True)
        ):
            if sequence < head and message_id in unseen:
                yield block.slice(index, index + 1)

    def _put_unsure(
        self,
        queue: QueueTruth,
        block: Entries,
        first: int = 0,
        end: int = MOST,
        hole: Hole | None = None,
    ) -> None:
        """Put entries of sequences from `first` to before `end`, unless they are known to be
        acked.
        """
        count = len(block.ids)
        delivered = {index: times for index, times in enumerate(block.delivery_counts) if times}
        state = IndexState(0, 0, count, block.sequences[0], block.sequences[-1] + 1)
        # An entry of before the checkpoint may have been acked at any time: no ack of it is missing
        # only if the whole log is there. Of one behind it, the log behind it has the acks.
        is_sure = self._trust.complete_from <= 1
        if not hole and first:
            is_sure = self._trust.is_log_whole
        for run in live_runs(block, state._replace(delivered=delivered), first, end):
            acked = None
            if hole and hole.acked is not None:
                start = run.first_sequence - hole.first
                acked = Bits(hole.acked[start : start + run.count])
            self._placements.consider(queue, run, acked, is_sure=is_sure)

    def _settle_doubts(self) -> None:
        """Decide by the accounts which entries are live if a bitmap and its count differ."""
        ids = {one for _, entries, _ in self._doubtful for one in entries.ids}
        held: Counter[int] = Counter()
        for queue in self._placements.queues.values() if ids else ():
            for run in queue.ready:
                held.update(ids.intersection(range(run.first_id, run.first_id + run.count)))
        for queue, entries, state in self._doubtful:
            acked = Bits.of(state.acked, state.entries)
            for index, (sequence, message_id) in enumerate(
                zip(entries.sequences, entries.ids, strict=True)
            ):
                references = self._trust.accounted.references(message_id)
                if references is None:
                    continue
                if acked[index] and references > held[message_id]:
                    entry = entries.slice(index, index + 1)
                    alone = IndexState(0, 0, 1, sequence, sequence + 1)
                    for run in live_runs(entry, alone, 0, MOST):
                        queue.put(run)
                    held[message_id] += 1
                elif not acked[index] and references < held[message_id]:
                    queue.ready.remove(sequence, 1)
                    held[message_id] -= 1


def _best(
    images: Sequence[IndexImage], state: IndexState
) -> tuple[IndexImage | None, list[Entries | None]]:
    """Return the file that has most of what a row knows, and its blocks."""
    best: tuple[IndexImage | None, list[Entries | None]] = None, [None]
    for image in images:
        blocks = list(_blocks(image, state.end_bytes))
        if _is_whole(blocks, state):
            return image, blocks
        if _count(blocks) > _count(best[1]) or best[0] is None:
            best = image, blocks
    return best


def _is_whole(blocks: Sequence[Entries | None], state: IndexState) -> bool:
    """Tell whether these are the blocks that a row knows: a number may be that of another file
    since.
    """
    there = [block.sequences for block in blocks if block is not None]
    if len(there) < len(blocks) or _count(blocks) != state.entries or not there:
        return False
    return (there[0][0], there[-1][-1] + 1) == (state.first, state.end)


def _count(blocks: Sequence[Entries | None]) -> int:
    return sum(len(block.ids) for block in blocks if block is not None)


def _blocks(image: IndexImage, size: int | None, start: int = 0) -> Iterator[Entries | None]:
    """Yield the blocks of an index file from `start` up to `size`, and None for lost ones."""
    was_lost = False
    for found in image.blocks(size):
        index = found.offset if isinstance(found, Gap) else found[0].offset
        if index < start:
            continue
        is_lost = isinstance(found, Gap) or found[1] != image.queue_id or not _ascend(found[2])
        if is_lost:
            if not was_lost:
                yield None
        elif not isinstance(found, Gap):
            yield found[2]
        was_lost = is_lost
    if size is not None and image.size is not None and image.size < size and not was_lost:
        yield None


def _ascend(entries: Entries) -> bool:
    return bool(entries.ids) and all(
        not any(map(int.__ge__, column, column[1:])) for column in (entries.sequences, entries.ids)
    )


def _with_indexes(blocks: Iterable[Entries | None], total: int) -> list[tuple[int, Entries | None]]:
    """Return each block with the place of its first entry in the file; -1 if unknown."""
    found = list(blocks)
    placed: list[tuple[int, Entries | None]] = [(-1, block) for block in found]
    index = 0
    for at, block in enumerate(found):
        if block is None:
            break
        placed[at] = index, block
        index += len(block.ids)
    index = total
    for at in range(len(found) - 1, -1, -1):
        block = found[at]
        if block is None or placed[at][0] >= 0:
            break
        index -= len(block.ids)
        placed[at] = index, block
    if index < 0 or (None not in found and index != total):
        return [(-1, block) for block in found]
    return placed
