"""Ack timeouts: finds the channels whose oldest unacked message was delivered too long ago.

No delivery has a time of its own. A look at a channel notes its next delivery tag, so that every
message with a smaller tag is known to be at least as old as the note: one note for however many
messages. A message is found late, never too early: the note may come up to a second after it, or a
32nd of the timeout if that is more, and the look that finds it up to a second after its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from amqpstore import Queue, Run

_LOOK_EVERY_MS = 1000
"""The least time between two looks at one channel."""

_LOOKS_AT_ONCE = 1000
"""Channels that are looked at in one go, so that many thousands of them do not hold up clients."""

_NOTES = 32
"""About how many notes there are within a timeout."""


class UnackedRun(Protocol):
    """A run that was delivered, of a queue of the store."""

    store_queue: Queue
    run: Run

    @property
    def consumer_tag(self) -> str | None:
        """The consumer's tag; None for a message that was fetched with basic.get."""


class WatchedChannel(Protocol):
    """A channel with unacked messages."""

    tag_notes: TagNotes
    next_delivery_tag: int

    @property
    def oldest_unacked(self) -> tuple[int, int] | None:
        """The tag of its oldest unacked message and how many ms that one may stay so; 0 if for
        ever. None if it has none.
        """

    @property
    def origin(self) -> tuple[str, int, str]:
        """The owner of the channel: the connection's name, the channel's number and the user."""

    def unacked_in(self, queue: object) -> Iterator[UnackedRun]:
        """Yield what its client has of a queue."""

    def giving_up_deleted(self, at_once: int) -> Iterator[int]:
        """Free what its client has of deleted queues: see `late_acks`."""

    def ack_timed_out(self, timeout_ms: int) -> None:
        """Close the channel."""


class TagNotes:
    """The times since which delivery tags have existed, by a few samples: ascending tags and their
    times.
    """

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        self._notes: list[tuple[int, int]] = []

    def add(self, next_tag: int, now_ms: int, gap_ms: int) -> None:
        """Note that all tags below `next_tag` exist now, unless there is a note that is younger
        than `gap_ms`, or one that says as much.
        """
        notes = self._notes
        if not notes or (notes[-1][0] != next_tag and now_ms - notes[-1][1] >= gap_ms):
            notes.append((next_tag, now_ms))

    def age_ms(self, tag: int, now_ms: int) -> int:
        """Return how long a tag has existed at least. Older tags must not be asked for later."""
        notes = self._notes
        passed = 0
        # Such a note was made before the tag existed, and says nothing of later ones either.
        while passed < len(notes) and notes[passed][0] <= tag:
            passed += 1
        del notes[:passed]
        return now_ms - notes[0][1] if notes else 0

    def clear(self) -> None:
        """Forget all notes: no tag is unacked."""
        self._notes.clear()


class AckTimeouts:
    """The channels that a client may owe an ack on: they add themselves."""

    def __init__(self) -> None:
        self.channels: dict[WatchedChannel, None] = {}
        self._left: deque[WatchedChannel] = deque()
        self._look_at_ms = 0
        self._still_ms = 0

    def stood_still(self, ms: int) -> None:
        """Do not count these milliseconds, in which acks were not read."""
        self._still_ms += ms

    def look(self, now_ms: int) -> bool:
        """Close the channels that are too late. To be called about once a second.

        Returns whether there were any.
        """
        # While the process stood still, clients could not get an ack through.
        now_ms -= self._still_ms
        if not self._left:
            if now_ms < self._look_at_ms:
                return False
            self._look_at_ms = now_ms + _LOOK_EVERY_MS
            self._left.extend(self.channels)
        found = False
        for _ in range(min(len(self._left), _LOOKS_AT_ONCE)):
            channel = self._left.popleft()
            # It may have been closed since the look at all of them began, some calls ago.
            if channel in self.channels:
                found |= _is_late(channel, now_ms)
        return found


def _is_late(channel: WatchedChannel, now_ms: int) -> bool:
    """Close a channel if it is too late. Returns whether it was."""
    notes = channel.tag_notes
    oldest = channel.oldest_unacked
    if oldest is None:
        notes.clear()
        return False
    tag, timeout_ms = oldest
    if not timeout_ms:
        return False
    if notes.age_ms(tag, now_ms) >= timeout_ms:
        channel.ack_timed_out(timeout_ms)
        return True
    notes.add(channel.next_delivery_tag, now_ms, timeout_ms // _NOTES)
    return False
