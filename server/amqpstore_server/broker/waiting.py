"""Timed gets: basic.get with `x-wait`, an extension, whose answer waits for a message.

A get that finds nothing stands in two lines. In its channel's, since an answer does not say which
get it is for: gets are answered in the order in which they were sent, one without `x-wait` too.
And, once it is the first of its channel, in its queue's: there the gets are served in the order
in which they came, each with one message, before the consumers. Whoever waits looks again when
the queue is touched, and goes on waiting where others were there first; so no wake-up is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpstore_server.broker.errors import PreconditionFailedError

if TYPE_CHECKING:
    from amqpstore import Run
    from amqpstore_server.broker.channel import Channel
    from amqpstore_server.broker.permissions import Access
    from amqpstore_server.broker.queue import Queue
    from amqpstore_server.broker.timers import Timer

MOST_WAIT_MS = (1 << 31) - 1
MOST_WAITING = 1024
"""Gets that may wait for their answer on one channel."""

Fetched = tuple[int, "Run"] | None
"""What a get brought: a delivery tag and one message, or nothing."""


class WaitingGet:
    """A get that was not answered yet. With `is_due` it waits no longer than for its turn.

    One that `is_given_up` gets nothing, whatever is ready by then.
    """

    __slots__ = ("gets", "is_due", "is_given_up", "no_ack", "queue", "timer")

    def __init__(self, gets: Gets, queue: Queue, *, no_ack: bool) -> None:
        self.gets = gets
        self.queue = queue
        self.no_ack = no_ack
        self.is_due = False
        self.is_given_up = False
        self.timer: Timer | None = None

    @property
    def is_able(self) -> bool:
        """Whether a message could be sent now: not while the client leaves too much unread."""
        return self.is_due or self.gets.channel.outlet.is_writable

    def end_wait(self) -> None:
        """The timer's: its time is over."""
        self.is_due = True
        self.queue.waiting.note_due(self)
        self.queue.touch()


class QueueLine:
    """The gets that wait at one queue, each the first of its channel, in the order they came."""

    __slots__ = ("_due", "_queue", "_waiting")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: dict[WaitingGet, None] = {}
        self._due: dict[WaitingGet, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def able_count(self) -> int:
        """How many messages would be taken at once."""
        return sum([get.is_able for get in self._waiting])

    def join(self, get: WaitingGet) -> None:
        """Stand at the end of the line."""
        self._waiting[get] = None
        if get.is_due:
            self._due[get] = None

    def note_due(self, get: WaitingGet) -> None:
        """The time of a get is over, whether it stands here already or not."""
        if get in self._waiting:
            self._due[get] = None

    def leave(self, get: WaitingGet) -> None:
        """Be answered, or given up."""
        self._waiting.pop(get, None)
        self._due.pop(get, None)

    def pump(self) -> None:
        """Hand out what is ready, one message each; whose time is over goes without."""
        queue = self._queue
        while queue.ready_count:
            able = next((get for get in self._waiting if get.is_able), None)
            if able is None or (fetched := able.gets.fetch(able)) is None:
                break
            able.gets.answered(fetched)
        while self._due:
            next(iter(self._due)).gets.answered(None)

    def dissolve(self) -> None:
        """The queue is deleted: all go without."""
        while self._waiting:
            next(iter(self._waiting)).gets.answered(None)


class Gets:
    """The gets of one channel. `answer` is called for each, in their order.

    Args: answer, takes the queue and what it gave; not called any more after `close`.
    """

    def __init__(self, channel: Channel, answer: Callable[[Queue, Fetched], None]) -> None:
        self.channel = channel
        self._answer = answer
        self._line: deque[WaitingGet] = deque()

    def get(self, queue: Queue, *, no_ack: bool, wait_ms: int = 0) -> None:
        """Fetch one message, now or within `wait_ms`. Raises: PreconditionFailedError."""
        if not self._line and not wait_ms and not queue.waiting:
            self._answer(queue, self.channel.get(queue, no_ack=no_ack))
            return
        if len(self._line) >= MOST_WAITING:
            raise PreconditionFailedError(
                f"{MOST_WAITING} gets wait on this channel, which is the maximum: wait for an "
                "answer first"
            )
        get = WaitingGet(self, queue, no_ack=no_ack)
        get.is_due = not wait_ms
        if wait_ms:
            core = self.channel.vhost.core
            get.timer = core.timers.timer(get.end_wait)
            get.timer.set(core.clock.monotonic_ms() + wait_ms)
        self._line.append(get)
        if len(self._line) == 1:
            self._serve_first()

    def fetch(self, get: WaitingGet) -> Fetched:
        """Take a message off the queue, where there is one, for the first in line."""
        return self.channel.fetch(get.queue, no_ack=get.no_ack)

    def answered(self, fetched: Fetched) -> None:
        """The first in line has its answer; the next has its turn."""
        self._leave(fetched)
        self._serve_first()

    def resume(self) -> None:
        """The client can be sent messages again."""
        if self._line:
            self._line[0].queue.touch()

    def end_waits(self, access: Access) -> None:
        """Answer the gets from queues that may not be read any more, each when its turn comes."""
        for get in self._line:
            get.is_given_up = not access.may("read", get.queue.name)
        if self._line and self._line[0].is_given_up:
            self.answered(None)

    def close(self) -> None:
        """The channel is gone: nobody is there to be answered."""
        waiting, self._line = self._line, deque()
        for get in waiting:
            _end(get)

    def _serve_first(self) -> None:
        """Answer gets until one has to wait."""
        while self._line:
            get = self._line[0]
            queue = get.queue
            if queue.is_deleted or get.is_given_up:
                self._leave(None)
                continue
            if queue.waiting:
                # Those in front of it are served first, when the queue has its turn.
                queue.waiting.join(get)
                queue.touch()
                return
            fetched = self.channel.get(queue, no_ack=get.no_ack) if get.is_able else None
            if fetched is None and not get.is_due:
                queue.waiting.join(get)
                queue.used()
                return
            self._leave(fetched)

    def _leave(self, fetched: Fetched) -> None:
        get = self._line.popleft()
        _end(get)
        self._answer(get.queue, fetched)


def _end(get: WaitingGet) -> None:
    if get.timer is not None:
        get.timer.end()
    get.queue.waiting.leave(get)
    get.queue.used()
