"""Runs: messages of contiguous sequences of one queue, handled together; and ordered lists of them.

A sequence is a message's place in its queue: ascending from 1, never reused. Everything that
applies to many neighbours at once (deliver these, ack these) is done for a run, so that the cost of
a batch does not grow with the number of its messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, Self, TypeVar

from amqpstore.format.message import Envelope, Message

_FIRST_SEQUENCE = attrgetter("first_sequence")
_ENVELOPE = attrgetter("envelope")

_MESSAGE_BYTES = 96
"""The memory of a message besides its body and its envelope: two objects and a reference."""

_ENVELOPE_BYTES = 256
"""The memory of an envelope besides the bytes in it."""


class Span(Protocol):
    """An element of a `RunList`: `count` neighbours from `first_sequence` on, which can be
    split.
    """

    first_sequence: int

    @property
    def count(self) -> int: ...

    @property
    def end(self) -> int: ...

    def split(self, count: int) -> Self: ...


SpanT = TypeVar("SpanT", bound=Span)

_GONE: Any = None
"""Stands for a run that was removed from the front of a list, or will be added there."""

_MANY = 64
"""More runs than this are removed together."""

_WITHOUT_ROOM = 64
"""A list of fewer runs is moved when one is added at its front."""


class RunAccount(Protocol):
    """Counts runs that were taken: those in memory, or those whose messages have left it."""

    def note_split(self, run: Run, head: Run) -> None:
        """Note that a counted run was split; the new run counts as well."""

    def remove(self, run: Run) -> None:
        """Stop counting a run."""


class Run:
    """`count` messages of one queue, from `first_sequence` on, delivered `delivery_count` times.

    All have one `priority`, and expire together: `expires_ms` since 1970, or never if that is 0.
    Those that are in the log have contiguous ids from `first_id` on, or those in `ids`, ascending;
    `first_id` 0 says that none is.
    `messages` holds them when they are in memory; otherwise it is None. Then `body_bytes` is the
    size of their bodies, and `memory_bytes` the memory they take, with everything that belongs to
    them; if it `is_short`, except an envelope that counts in another run. `body_bytes` stays when
    the bodies have left memory. Of a run on disk it is 0 if it is unknown, as after a split without
    `body_sizes`: see `RunSizes.measure`. `returned_by` is who
    requeued the run last: its owner's, and lost when the process ends. `account` is the store's,
    while it counts the run among those that were taken.
    """

    __slots__ = (
        "account",
        "body_bytes",
        "body_sizes",
        "count",
        "delivery_count",
        "expires_ms",
        "first_id",
        "first_sequence",
        "ids",
        "is_short",
        "memory_bytes",
        "messages",
        "priority",
        "returned_by",
    )

    def __init__(
        self,
        first_sequence: int,
        count: int,
        *,
        first_id: int = 0,
        ids: array[int] | None = None,
        messages: list[Message] | None = None,
        body_bytes: int = 0,
        memory_bytes: int = 0,
        delivery_count: int = 0,
        expires_ms: int = 0,
        priority: int = 0,
        returned_by: object | None = None,
    ) -> None:
        self.first_sequence = first_sequence
        self.count = count
        self.first_id = first_id
        self.ids = ids
        self.messages = messages
        self.body_bytes = body_bytes
        self.memory_bytes = memory_bytes
        self.is_short = False
        self.delivery_count = delivery_count
        self.expires_ms = expires_ms
        self.priority = priority
        self.returned_by = returned_by
        self.body_sizes: array[int] | None = None
        self.account: RunAccount | None = None

    @property
    def end(self) -> int:
        """The sequence after the last."""
        return self.first_sequence + self.count

    @property
    def end_id(self) -> int:
        """The id after the last, of a run in the log."""
        return self.first_id + self.count if self.ids is None else self.ids[-1] + 1

    def id_at(self, index: int) -> int:
        """Return the id of one message, of a run in the log."""
        return self.first_id + index if self.ids is None else self.ids[index]

    def contiguous_from(self, index: int, count: int) -> int:
        """Return how many of `count` messages from one on have contiguous ids."""
        ids = self.ids
        if ids is None:
            return count
        first = ids[index]
        if ids[index + count - 1] - first == count - 1:
            return count
        found = 1
        while ids[index + found] == first + found:
            found += 1
        return found

    def split(self, count: int) -> Run:
        """Split off the first `count` messages (fewer than all) as a run of their own."""
        messages = self.messages
        head = Run(
            self.first_sequence,
            count,
            first_id=self.first_id,
            delivery_count=self.delivery_count,
            expires_ms=self.expires_ms,
            priority=self.priority,
            returned_by=self.returned_by,
        )
        self.first_sequence += count
        self.count -= count
        if self.ids is not None:
            head.ids, self.ids = self.ids[:count], self.ids[count:]
            self.first_id = self.ids[0]
        elif self.first_id:
            self.first_id += count
        if messages is not None:
            head.messages, self.messages = messages[:count], messages[count:]
            self._share_memory(head)
        elif self.body_sizes is not None:
            head.body_sizes, self.body_sizes = self.body_sizes[:count], self.body_sizes[count:]
            if count > self.count:
                head.body_bytes = self.body_bytes - sum(self.body_sizes)
            else:
                head.body_bytes = sum(head.body_sizes)
            self.body_bytes -= head.body_bytes
        else:
            self.body_bytes = 0  # unknown, as that of the other part
        if self.account is not None:
            self.account.note_split(self, head)
        return head

    def _share_memory(self, head: Run) -> None:
        """Share the bytes that were counted for all messages with those that were split off.

        Only the fewer messages of both are looked at: acks that come one by one, in whatever order,
        must not each look at all that the client has.
        """
        first, rest = head.messages, self.messages
        assert first is not None  # it is called for messages in memory
        assert rest is not None
        is_shared = first[-1].envelope is rest[0].envelope
        head.is_short = is_shared
        if len(rest) < len(first):
            size = body_bytes(rest)
            memory_bytes = size + overhead_bytes(rest)
            if self.is_short:
                memory_bytes -= _envelope_bytes(rest[-1].envelope)
            head.body_bytes = self.body_bytes - size
            head.memory_bytes = self.memory_bytes - memory_bytes
        else:
            head.body_bytes = body_bytes(first)
            head.memory_bytes = head.body_bytes + overhead_bytes(first)
            if is_shared:
                # The rest keeps it in memory, so it counts there.
                head.memory_bytes -= _envelope_bytes(rest[0].envelope)
        self.body_bytes -= head.body_bytes
        self.memory_bytes -= head.memory_bytes

    def join(self, after: Run) -> None:
        """Add the messages of the run that follows, which are in memory as these are.

        `memory_bytes` of that one are then what was added.
        """
        messages, more = self.messages, after.messages
        assert messages is not None  # both are in memory
        assert more is not None
        if messages[-1].envelope is more[0].envelope:
            after.memory_bytes -= _envelope_bytes(more[0].envelope)
        # A list may be another queue's as well.
        self.messages = messages + more
        is_contiguous = self.ids is None and after.ids is None and self.end_id == after.first_id
        if self.first_id and not is_contiguous:
            self.ids = self._own_ids() + after._own_ids()
        self.count += after.count
        self.body_bytes += after.body_bytes
        self.memory_bytes += after.memory_bytes

    def join_stored(self, after: Run) -> None:
        """Add the messages of the run that follows, which are on disk as these are: `goes_on`."""
        self.count += after.count
        if self.body_bytes and after.body_bytes:
            self.body_bytes += after.body_bytes
        else:
            self.body_bytes = 0  # unknown, if either of them is

    def _own_ids(self) -> array[int]:
        return array("Q", range(self.first_id, self.end_id)) if self.ids is None else self.ids

    def bring_back(self, messages: list[Message]) -> None:
        """Put the messages back into memory."""
        self.messages = messages
        self.body_sizes = None
        self.body_bytes = body_bytes(messages)
        self.memory_bytes = self.body_bytes + overhead_bytes(messages)
        self.is_short = False

    def let_go(self) -> None:
        """Drop the messages, which are on disk, from memory."""
        self.messages = self.body_sizes = None
        self.memory_bytes = 0

    def unload(self) -> None:
        """Drop the messages of a run that somebody holds from memory; the size of their bodies is
        kept.
        """
        if self.count > 1:
            self.body_sizes = array("I", [len(message.body) for message in self.messages or ()])
        self.messages = None
        self.memory_bytes = 0

    def __repr__(self) -> str:
        where = "on disk" if self.messages is None else "in memory"
        return (
            f"<Run {self.first_sequence}..{self.end - 1} {where}, delivered {self.delivery_count}x>"
        )


class RunList(Generic[SpanT]):
    """Runs in ascending, disjoint order of sequence. `count` is the number of messages in all."""

    __slots__ = ("_head", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[SpanT] = []
        self._head = 0
        self.count = 0

    def __iter__(self) -> Iterator[SpanT]:
        runs = self._runs
        return (runs[i] for i in range(self._head, len(runs)))

    def __len__(self) -> int:
        """Return how many runs there are (`count` is the number of messages)."""
        return len(self._runs) - self._head

    @property
    def first(self) -> SpanT:
        """The run with the lowest sequence. Raises: IndexError when there is none."""
        return self._runs[self._head]

    @property
    def last(self) -> SpanT:
        """The run with the highest sequence. Raises: IndexError when there is none."""
        return self._runs[-1]

    def append(self, run: SpanT) -> None:
        """Add a run after all others."""
        self._runs.append(run)
        self.count += run.count

    def insert(self, run: SpanT) -> None:
        """Insert a run in its place. Raises: ValueError, when another run overlaps it."""
        runs = self._runs
        index = bisect_right(runs, run.first_sequence, self._head, key=_FIRST_SEQUENCE)
        for neighbour in runs[max(index - 1, self._head) : index + 1]:
            if neighbour.first_sequence < run.end and run.first_sequence < neighbour.end:
                raise ValueError(f"{run!r} overlaps {neighbour!r}")
        if index == self._head and (index or len(runs) >= _WITHOUT_ROOM):
            if not index:
                # Runs that are returned in reverse order would each move all the others. The gap is
                # smaller than what `_drop_first` cuts off again.
                self._head = len(runs) // 2
                runs[:0] = [_GONE] * self._head
            self._head -= 1
            runs[self._head] = run
        else:
            runs.insert(index, run)
        self.count += run.count

    def split_first(self, count: int) -> SpanT:
        """Split the first run after `count` messages. Returns these, the first run now."""
        head = self.first.split(count)
        self._runs.insert(self._head, head)
        return head

    def take_first(self, limit: int) -> SpanT:
        """Remove and return up to `limit` messages, all from the first run."""
        runs = self._runs
        run = runs[self._head]
        if run.count > limit:
            run = run.split(limit)
        else:
            self._drop_first()
        self.count -= run.count
        return run

    def remove(self, first_sequence: int, count: int) -> list[SpanT]:
        """Remove and return the existing ones of `count` messages from `first_sequence` on."""
        removed: list[SpanT] = []
        end = first_sequence + count
        runs = self._runs
        index = bisect_right(runs, first_sequence, self._head, key=_FIRST_SEQUENCE) - 1
        if index < self._head or runs[index].end <= first_sequence:
            index += 1
        far = index + _MANY
        if count > _MANY and (beyond := runs[far : far + 1]) and beyond[0].first_sequence < end:
            # One by one, each would move those behind it.
            if runs[index].first_sequence < first_sequence:
                runs.insert(index, runs[index].split(first_sequence - runs[index].first_sequence))
                index += 1
            stop = bisect_left(runs, end, far, key=_FIRST_SEQUENCE)
            if runs[stop - 1].end > end:
                stop -= 1
            removed = runs[index:stop]
            del runs[index:stop]
            self.count -= sum([run.count for run in removed])
        while index < len(runs) and runs[index].first_sequence < end:
            run = runs[index]
            if run.first_sequence < first_sequence:
                runs.insert(index, run.split(first_sequence - run.first_sequence))
                index += 1
                continue
            if run.end > end:
                run = run.split(end - run.first_sequence)
            elif index == self._head:
                self._drop_first()
                index = self._head
            else:
                del runs[index]
            removed.append(run)
            self.count -= run.count
        return removed

    def clear(self) -> list[SpanT]:
        """Remove and return all runs."""
        removed = self._runs[self._head :]
        self._runs = []
        self._head = self.count = 0
        return removed

    def _drop_first(self) -> None:
        # The list is cut only now and then, as a cut moves everything after it. Until then it must
        # not keep removed runs alive.
        self._runs[self._head] = _GONE
        self._head += 1
        if self._head >= 64 and self._head * 2 >= len(self._runs):
            del self._runs[: self._head]
            self._head = 0


class ReadyList(RunList[Run]):
    """The runs of a queue that are ready."""

    __slots__ = ()

    def insert_all(self, runs: Sequence[Run]) -> None:
        """Insert runs in their places: ascending, and no other run overlaps them."""
        if not runs:
            return
        index = bisect_right(self._runs, runs[0].first_sequence, self._head, key=_FIRST_SEQUENCE)
        if index < len(self._runs) and self._runs[index].first_sequence < runs[-1].end:
            # Messages that are not in the log, and so in no index, may lie between them.
            for run in runs:
                self.insert(run)
            return
        self._runs[index:index] = runs
        self.count += sum(run.count for run in runs)

    def overlap(self, runs: Sequence[Run]) -> Run | None:
        """Return a run that has a message of the same sequence as some of these, which ascend; None
        if there is none.
        """
        index = 0
        for run in self.between(runs[0].first_sequence, runs[-1].end) if runs else ():
            while index < len(runs) and runs[index].end <= run.first_sequence:
                index += 1
            if index < len(runs) and runs[index].first_sequence < run.end:
                return run
        return None

    def at(self, sequence: int) -> Run | None:
        """Return the run that includes a sequence."""
        index = bisect_right(self._runs, sequence, self._head, key=_FIRST_SEQUENCE) - 1
        if index < self._head or self._runs[index].end <= sequence:
            return None
        return self._runs[index]

    def at_or_after(self, sequence: int) -> Run | None:
        """Return the first run that includes a sequence, or a later one."""
        runs = self._runs
        index = bisect_right(runs, sequence, self._head, key=_FIRST_SEQUENCE) - 1
        if index < self._head or runs[index].end <= sequence:
            index += 1
        return runs[index] if index < len(runs) else None

    def between(self, first: int, end: int) -> list[Run]:
        """Return the runs that lie from sequence `first` to before `end`, in part or as a whole."""
        runs = self._runs
        index = bisect_right(runs, first, self._head, key=_FIRST_SEQUENCE) - 1
        if index < self._head or runs[index].end <= first:
            index += 1
        stop = bisect_left(runs, end, index, key=_FIRST_SEQUENCE)
        return runs[index:stop]

    def has(self, run: Run) -> bool:
        """Tell whether a run is still in the list, and not taken."""
        index = self._index_of(run)
        return index >= self._head and self._runs[index] is run

    def let_go(self, run: Run) -> bool:
        """Drop the bodies of a run that is on disk, if it is still in the list. Returns whether it
        was.
        """
        if not self.has(run):
            return False
        runs = self._runs
        index = self._index_of(run)
        run.let_go()
        if index > self._head and goes_on(runs[index - 1], run):
            runs[index - 1].join_stored(run)
            del runs[index]
        return True

    def _index_of(self, run: Run) -> int:
        return bisect_right(self._runs, run.first_sequence, self._head, key=_FIRST_SEQUENCE) - 1

    def append_new(self, run: Run, most_bytes: int) -> Run:
        """Add a run that was just published after all others; if it continues the last, which was
        not delivered yet, and takes less memory than `most_bytes`, it becomes part of that.
        Returns the run that has its messages.
        """
        runs = self._runs
        if self._head < len(runs):
            last = runs[-1]
            if (
                last.memory_bytes < most_bytes
                and last.messages is not None
                and last.first_sequence + last.count == run.first_sequence
                and last.priority == run.priority
                and bool(last.first_id) == bool(run.first_id)
                and not (last.delivery_count or last.expires_ms or run.expires_ms)
                and last.returned_by is None
            ):
                last.join(run)
                self.count += run.count
                return last
        runs.append(run)
        self.count += run.count
        return run

    def append_stored(self, run: Run) -> None:
        """Add a run on disk after all others; one that continues the last becomes part of it."""
        if len(self):
            last = self.last
            if goes_on(last, run):
                last.join_stored(run)
                self.count += run.count
                return
        self.append(run)

    def split_at(self, sequence: int) -> Run | None:
        """Split the run on disk that has messages before a sequence and from it on. Returns the
        first part; None if there is no such run.
        """
        run = self.at(sequence)
        if run is None or run.messages is not None or run.first_sequence == sequence:
            return None
        head = run.split(sequence - run.first_sequence)
        self._runs.insert(self._index_of(run), head)
        return head


def body_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes in the bodies of messages."""
    return sum([len(message.body) for message in messages])


def overhead_bytes(messages: Sequence[Message]) -> int:
    """Return about how much memory messages take besides their bodies.

    An envelope that neighbours share counts once for them.
    """
    if len(messages) == 1:
        envelope = messages[0].envelope
        return _MESSAGE_BYTES + _ENVELOPE_BYTES + len(envelope.head) + len(envelope.properties)
    envelopes = [envelope for envelope, _ in groupby(messages, _ENVELOPE)]
    # As `_envelope_bytes`, without a call for each.
    texts = sum([len(envelope.head) + len(envelope.properties) for envelope in envelopes])
    return len(messages) * _MESSAGE_BYTES + len(envelopes) * _ENVELOPE_BYTES + texts


def _envelope_bytes(envelope: Envelope) -> int:
    # Its properties exist twice: as received, and in the encoded form.
    return _ENVELOPE_BYTES + len(envelope.head) + len(envelope.properties)


def goes_on(before: Run, after: Run) -> bool:
    """Tell whether two runs on disk are one."""
    return (
        before.messages is None
        and after.messages is None
        and before.ids is None
        and after.ids is None
        and before.end == after.first_sequence
        and before.first_id + before.count == after.first_id
        and before.delivery_count == after.delivery_count
        and before.expires_ms == after.expires_ms
        and before.priority == after.priority
        and before.returned_by is after.returned_by
    )
