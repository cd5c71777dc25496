"""Timed gets: basic.get with `x-wait`, an extension, whose answer waits for a message.

A get that finds no message waits in two lines. First in its channel's, since an answer does not say
which get it is for: gets are answered in the order in which they were sent, those without `x-wait`
too. Once it is the first of its channel, also in its queue's: there gets are served in order of
arrival, one message each, before the consumers. Each waiting get looks again when the queue is
touched and goes on waiting if others were first, so no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.queues.waiting import Fetched, WaitingGet
from amqpstore_server.broker.rights.permissions import Access

MAX_WAIT_MS = (1 << 31) - 1
MAX_WAITING = 1024
"""The most gets that may wait on one channel."""


class Gets:
    """The waiting gets of one channel. `answer` is called for each, in their order.

    Args: answer, called with the queue and the message or None; not called after `close`.
    """

    def __init__(self, channel: Channel, answer: Callable[[Queue, Fetched], None]) -> None:
        self.channel = channel
        self._answer = answer
        self._line: list[WaitingGet] = []

    @property
    def is_writable(self) -> bool:
        """Whether a message could be sent now."""
        return self.channel.outlet.is_writable

    def get(self, queue: Queue, *, no_ack: bool, wait_ms: int = 0) -> bool:
        """Answer with one message, now or within `wait_ms`.

        Returns False if only a part of a large message was read: to be called again soon, and
        before anything else on this channel. Raises: PreconditionFailedError.
        """
        # A get without x-wait goes the short way only if none waits before it: answers do not name
        # their get.
        if not self._line and not wait_ms and not queue.waiting:
            queue.backlog.is_reading = False
            fetched = self.channel.get(queue, no_ack=no_ack, in_chunks=True)
            if fetched is None and queue.backlog.is_reading:
                return False
            self._answer(queue, fetched)
            return True
        if len(self._line) >= MAX_WAITING:
            raise PreconditionFailedError(
                f"{MAX_WAITING} gets wait on this channel, which is the maximum: wait for an "
                "answer first"
            )
        get = WaitingGet(self, queue, no_ack=no_ack)
        get.is_due = not wait_ms
        if wait_ms:
            services = self.channel.vhost.services
            get.timer = services.timers.timer(get.end_wait)
            get.timer.set(services.clock.monotonic_ms() + wait_ms)
        self._line.append(get)
        if len(self._line) == 1:
            self._serve_first()
        return True

    def fetch(self, get: WaitingGet) -> Fetched:
        """Take a message off the queue, if there is one, for the first in line."""
        return self.channel.fetch(get.queue, no_ack=get.no_ack, in_chunks=True)

    def answered(self, fetched: Fetched) -> None:
        """Answer the first in line; the next one has its turn."""
        self._answer_first(fetched)
        self._serve_first()

    def resume(self) -> None:
        """Continue: messages can be sent to the client again."""
        if self._line:
            self._line[0].queue.touch()

    def end_waits(self, access: Access) -> None:
        """Answer the gets from queues that the user may no longer read, each when its turn
        comes.
        """
        for get in self._line:
            get.is_given_up = not access.may("read", get.queue.name)
        # The others are answered in their turn: an answer out of order would be taken for another
        # get's.
        if self._line and self._line[0].is_given_up:
            self.answered(None)

    def close(self) -> None:
        """Drop all waiting gets: the channel is gone."""
        waiting, self._line = self._line, []
        for get in waiting:
            _end(get)

    def _serve_first(self) -> None:
        """Answer gets until one has to wait."""
        while self._line:
            get = self._line[0]
            queue = get.queue
            # get-empty: the client asked for a message, and will not get one from there.
            if queue.is_deleted or get.is_given_up:
                self._answer_first(None)
                continue
            if queue.waiting:
                # Gets ahead of it in the queue's line are served first, when the queue has its
                # turn.
                queue.waiting.join(get)
                queue.touch()
                return
            queue.backlog.is_reading = False
            fetched = (
                self.channel.get(queue, no_ack=get.no_ack, in_chunks=True) if get.is_able else None
            )
            if fetched is None and (queue.backlog.is_reading or not get.is_due):
                queue.waiting.join(get)
                queue.used()
                return
            self._answer_first(fetched)

    def _answer_first(self, fetched: Fetched) -> None:
        get = self._line.pop(0)
        _end(get)
        self._answer(get.queue, fetched)


def _end(get: WaitingGet) -> None:
    if get.timer is not None:
        get.timer.end()
    get.queue.waiting.remove(get)
    get.queue.used()
