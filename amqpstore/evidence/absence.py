"""Messages that the catalog has counted, and the files of segments do not have.

A row in `segments` says how many messages of a segment are live, and how far its file goes. So if
the file is missing, is something other than a file, or ends too early (a volume that is not
mounted, an older copy), it is known at once, and without reading any message, how many cannot be
read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from amqpstore.catalog.tables import OffsetTableRow
from amqpstore.format.runs import Run
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.queues.queue import Queue
from amqpstore.system.descriptors import is_shortage, open_to_read
from amqpstore.system.filenames import segment_path
from amqpstore.system.files import Files

_SIZES_READ = 1024
"""How many segments have their sizes read: those of 16 GiB by default, in some milliseconds."""


class AbsentMessages(NamedTuple):
    """Messages that a segment's file does not have: those with ids from `first_id` to before
    `end_id`, and perhaps some before them.

    The file has `file_bytes`, 0 if there is none, and should have `end_bytes`. Queues hold these
    messages at least `at_least` and at most `at_most` times: one that is in two queues counts
    twice.
    """

    segment: int
    file_bytes: int
    end_bytes: int
    first_id: int
    end_id: int
    at_least: int
    at_most: int


def absent_messages(
    account: SegmentAccount, table: OffsetTableRow | None, file_bytes: int
) -> AbsentMessages | None:
    """Return what a segment's file does not have, by its size; None if it has its full size.

    Args: table, the segment's offset table, None if there is none: then it is not known which
    messages a file has that ends too early.
    """
    end_bytes, end_id = account.end_bytes, account.end_id
    if file_bytes >= end_bytes:
        return None
    if not file_bytes:
        held = held_from(account, account.first_id)
        return AbsentMessages(
            account.number, 0, account.end_bytes, account.first_id, account.end_id, held, held
        )
    # The file ends in a record between two that the table has, or at the start of one.
    first_id, last_id = account.first_id, end_id
    if table is not None:
        index = bisect_left(table.offsets, file_bytes)
        # The table has the offset of one message in several: what lies between two of its entries
        # may be there or not.
        first_id = table.ids[index - 1] if index else first_id
        last_id = table.ids[index] if index < len(table.ids) else last_id
    at_least, at_most = held_from(account, last_id), held_from(account, first_id)
    return AbsentMessages(
        account.number, file_bytes, account.end_bytes, last_id, account.end_id, at_least, at_most
    )


def find_absent(
    files: Files,
    directory: str,
    accounts: Sequence[SegmentAccount],
    offset_tables: Mapping[int, OffsetTableRow],
    there: Collection[int],
) -> Iterator[AbsentMessages]:
    """Yield what the files of segments do not have. Of very many segments whose names are there
    only the newest ones are looked at.

    Args: there, the numbers of the segments that have a name.
    """
    for index, account in enumerate(accounts, _SIZES_READ - len(accounts)):
        is_there = account.number in there
        # A start must not take the longer the larger the backlog is.
        if is_there and index < 0:
            continue
        size = size_of(files, segment_path(directory, account.number)) if is_there else 0
        if found := absent_messages(account, offset_tables.get(account.number), size):
            yield found


def held_from(account: SegmentAccount, first_id: int) -> int:
    """Count how often queues hold the messages of a segment with ids from `first_id` on."""
    if first_id <= account.first_id:
        return account.live_count if account.references is None else sum(account.references)
    return sum(number for message_id, number in account.live() if message_id >= first_id)


class AbsentIds:
    """The ids of absent messages, to tell which of a queue's messages are among them."""

    def __init__(self, absent: Iterable[AbsentMessages]) -> None:
        ranges = sorted((one.first_id, one.end_id) for one in absent if one.first_id < one.end_id)
        self._firsts = [first for first, _ in ranges]
        self._ends = [end for _, end in ranges]

    def count(self, runs: Iterable[Run]) -> int:
        """Count the messages of runs that are in the log and among the absent ones."""
        if not self._firsts:
            return 0
        return sum(self._in_range(first, end) for run in runs for first, end in _stretches(run))

    def _in_range(self, first: int, end: int) -> int:
        found = 0
        index = bisect_left(self._ends, first + 1)
        while index < len(self._firsts) and self._firsts[index] < end:
            found += min(end, self._ends[index]) - max(first, self._firsts[index])
            index += 1
        return found


class Absence:
    """Messages and batches that were absent when a store was opened, and still are.

    Messages are acked and purged unread, and a file may be put back. `messages` is how often queues
    hold absent messages, as of the last `look`; `ids` are theirs.
    """

    def __init__(self, files: Files, directory: str, absent: Iterable[AbsentMessages]) -> None:
        self._files = files
        self._directory = directory
        self._absent = {one.segment: one for one in absent}
        self._show()

    def look(self, accounts: Iterable[SegmentAccount]) -> None:
        """Look at the files again, and at the accounts of all segments. Raises: OSError."""
        if not self._absent:
            return
        still: dict[int, AbsentMessages] = {}
        for account in accounts:
            if (one := self._absent.get(account.number)) and self._is_short(account):
                held = held_from(account, one.first_id)
                still[account.number] = one._replace(at_least=held, at_most=max(held, one.at_most))
        self._absent = still
        self._show()

    def _is_short(self, account: SegmentAccount) -> bool:
        """Tell whether a segment's file still lacks messages."""
        path = segment_path(self._directory, account.number)
        return size_of(self._files, path) < account.end_bytes

    def _show(self) -> None:
        self.messages = sum(one.at_least for one in self._absent.values())
        self.ids = AbsentIds(self._absent.values())


class UnreadableCount:
    """Counts the messages that some queues hold and that cannot be read, at least: absent ones,
    those that could not be read when their turn came, and those whose index files cannot be read.
    """

    def __init__(self, absence: Absence) -> None:
        self._absence = absence
        self._elsewhere = 0
        self._unindexed = 0

    def add(self, queue: Queue) -> None:
        """Add what a queue holds."""
        quarantined = queue.quarantined
        self._elsewhere += quarantined.count
        if quarantined.count:
            # A message of an absent segment that was tried already is in quarantine, too, and
            # counts once.
            self._elsewhere -= self._absence.ids.count(quarantined)
        self._unindexed += queue.unreadable_count

    @property
    def messages(self) -> int:
        """The count. A message whose index file cannot be read may be an absent one: so only the
        larger of these two numbers is known.
        """
        return self._elsewhere + max(self._unindexed, self._absence.messages)


def size_of(files: Files, path: str) -> int:
    """Return the size of a file; 0 if it does not exist, or is not a file.

    Raises: OSError, if the process lacks a descriptor for it.
    """
    try:
        file = open_to_read(files, path)
    except OSError as error:
        # Nothing is known of the file then: with 0 its messages would count as absent.
        if is_shortage(error):
            raise
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _stretches(run: Run) -> Iterator[tuple[int, int]]:
    if run.ids is None:
        yield run.first_id, run.first_id + run.count
    else:
        yield from ((one, one + 1) for one in run.ids)
