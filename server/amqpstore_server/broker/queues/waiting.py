"""The gets that wait for a message of a queue, first come, first served (see `gets`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqpstore_server.broker.weak_references import weakly

if TYPE_CHECKING:
    from amqpstore import Run
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.work.timers import Timer

Fetched = tuple[int, "Run"] | None
"""The result of a get: a delivery tag and one message, or None."""


class Waiter(Protocol):
    """The gets of one channel that wait in a queue's line."""

    @property
    def is_writable(self) -> bool:
        """Whether a message could be sent now."""

    def fetch(self, get: WaitingGet) -> Fetched:
        """Take a message off the queue, if there is one, for the first in line."""

    def answered(self, fetched: Fetched) -> None:
        """Answer the first in line; the next one has its turn."""


class WaitingGet:
    """A get that was not answered yet. With `is_due` it is answered at its next turn at the latest.

    With `is_given_up` it is answered as empty, even if a message is ready by then.
    """

    __slots__ = ("gets", "is_due", "is_given_up", "no_ack", "queue", "timer")

    def __init__(self, gets: Waiter, queue: Queue, *, no_ack: bool) -> None:
        self.gets = gets
        self.queue = queue
        self.no_ack = no_ack
        self.is_due = False
        self.is_given_up = False
        self.timer: Timer | None = None

    @property
    def is_able(self) -> bool:
        """Whether a message could be sent now: not while the client leaves too much unread."""
        return self.is_due or self.gets.is_writable

    def end_wait(self) -> None:
        """End the wait: the time is over. Called by the timer."""
        self.is_due = True
        # The get is answered in the next round, and not here: a message may have come in this one.
        self.queue.waiting.note_due(self)
        self.queue.touch()


class GetLine:
    """The gets that wait at one queue, each the first of its channel, in order of arrival."""

    __slots__ = ("_due", "_queue", "gets")

    def __init__(self, queue: Queue) -> None:
        self._queue = weakly(queue)
        self.gets: dict[WaitingGet, None] = {}
        self._due: dict[WaitingGet, None] = {}

    def __len__(self) -> int:
        return len(self.gets)

    @property
    def able_count(self) -> int:
        """The number of messages that the gets would take at once."""
        return sum([get.is_able for get in self.gets])

    def join(self, get: WaitingGet) -> None:
        """Add a get at the end of the line."""
        self.gets[get] = None
        if get.is_due:
            self._due[get] = None

    def note_due(self, get: WaitingGet) -> None:
        """Note that the time of a get is over, whether it is in this line already or not."""
        if get in self.gets:
            self._due[get] = None

    def remove(self, get: WaitingGet) -> None:
        """Remove a get that was answered or given up."""
        self.gets.pop(get, None)
        self._due.pop(get, None)

    def pump(self) -> None:
        """Hand out ready messages, one each; gets whose time is over are answered as empty."""
        priorities, backlog = self._queue().priorities, self._queue().backlog
        backlog.is_reading = False
        while priorities.ready_count:
            # A client that leaves its answers unread must not hold up those behind it.
            able = next((get for get in self.gets if get.is_able), None)
            if able is None:
                break
            if (fetched := able.gets.fetch(able)) is None:
                if backlog.is_reading:
                    return  # the queue is touched: there is a message, which is large
                break
            able.gets.answered(fetched)
        # Timeouts come last: a message that is ready now still reaches a get whose time has just
        # ended.
        while self._due:
            next(iter(self._due)).gets.answered(None)

    def answer_all(self) -> None:
        """Answer all gets as empty: the queue is deleted."""
        while self.gets:
            next(iter(self.gets)).gets.answered(None)
