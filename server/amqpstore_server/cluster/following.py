"""A follower: the stream that it takes, and what it has promised.

It acks a frame when it is on disk, and only in a term that it has made durable before: a follower
that has acked in a term never again takes a frame of an older one, also after a restart.
"""

from __future__ import annotations

from enum import Enum
from math import inf

from amqpstore_server.cluster.effects import (
    Append,
    Dial,
    Discard,
    Effect,
    HangUp,
    Persist,
    ReadKeys,
    Send,
)
from amqpstore_server.cluster.frames import (
    Ack,
    Beat,
    Hello,
    Promise,
    Ready,
    Resign,
    ShippedBatch,
    Welcome,
)
from amqpstore_server.cluster.keys import View
from amqpstore_server.cluster.leading import ReplicaLog
from amqpstore_server.cluster.timing import Timing


class Stream(Enum):
    """How far a follower's connection has come."""

    NONE = "no connection"
    DIALLED = "connecting"
    GREETED = "Hello sent"
    VERIFYING = "asking etcd whether this leader may discard anything here"
    DISCARDING = "removing what was never committed"
    PERSISTING = "making the leader's term durable"
    STREAMING = "taking frames"


NEXT = {
    Stream.NONE: {Stream.DIALLED},
    Stream.DIALLED: {Stream.GREETED, Stream.NONE},
    Stream.GREETED: {Stream.VERIFYING, Stream.PERSISTING, Stream.NONE},
    Stream.VERIFYING: {Stream.DISCARDING, Stream.NONE},
    Stream.DISCARDING: {Stream.PERSISTING, Stream.NONE},
    Stream.PERSISTING: {Stream.STREAMING, Stream.NONE},
    Stream.STREAMING: {Stream.NONE},
}
"""What may follow each state: nothing else is legal."""


class Following:
    """The stream of one follower. Args: term, the highest durable one."""

    def __init__(
        self,
        member: str,
        incarnation: str,
        term: int,
        log: ReplicaLog,
        timing: Timing,
        effects: list[Effect],
        promised_until: float = -inf,
    ) -> None:
        self.term = term
        self.state = Stream.NONE
        self.promised_until = promised_until
        """Until then this member does not stand for election."""
        self.has_resigned = False
        """Whether the leader has given up, and asked to be followed."""
        self._member = member
        self._incarnation = incarnation
        self._log = log
        self._timing = timing
        self._effects = effects
        self._link: int | None = None
        self._welcome: Welcome | None = None
        self._dialled_at = -inf
        self._heard_at = -inf

    def _go(self, state: Stream) -> None:
        if state not in NEXT[self.state]:
            raise ValueError(f"a stream cannot go from {self.state.name} to {state.name}")
        self.state = state

    # The connection.

    def tick(self, view: View | None, now: float) -> None:
        """Connect to the leader that etcd named last, each second until there is an answer."""
        if self.state is Stream.STREAMING:
            # Beats come twice a second: whoever is silent for so long is gone, or leads no more.
            if now - self._heard_at > self._timing.promise_s:
                self.hang_up()
                self._effects.append(ReadKeys())
            return
        if now - self._dialled_at < self._timing.read_every_s:
            return
        if self.state is not Stream.NONE:
            # A dial or a greeting that nobody has answered.
            self.hang_up()
        if (
            view is not None
            and view.leader is not None
            and view.leader.value["member"] != self._member
        ):
            self._dialled_at = now
            self._go(Stream.DIALLED)
            self._effects.append(Dial(str(view.leader.value["member"])))

    def connected(self, link: int) -> None:
        """The connection stands: say who this is, and what is on disk here."""
        if self.state is not Stream.DIALLED:
            self._effects.append(HangUp(link))
            return
        self._link = link
        self._go(Stream.GREETED)
        hello = Hello(self._member, self._incarnation, self.term, self._log.positions())
        self._effects.append(Send(link, hello))

    def disconnected(self, link: int) -> None:
        """The connection is gone."""
        if link == self._link:
            self._forget()

    def hang_up(self) -> None:
        """Take nothing more from the leader."""
        if self._link is not None:
            self._effects.append(HangUp(self._link))
        self._forget()

    def _forget(self) -> None:
        self._link = None
        self._welcome = None
        self.state = Stream.NONE

    # The handshake.

    def welcome(self, link: int, welcome: Welcome) -> None:
        """Hear where the log goes on."""
        if link != self._link or self.state is not Stream.GREETED:
            return
        if welcome.term < self.term:
            self.hang_up()
            self._effects.append(ReadKeys())
            return
        self._welcome = welcome
        if welcome.is_destructive:
            self._go(Stream.VERIFYING)
            self._effects.append(ReadKeys())
        else:
            self._persist(welcome)

    def viewed(self, view: View) -> None:
        """Discard only what a leader that etcd names has not: nothing goes because of a rumour."""
        welcome = self._welcome
        if self.state is not Stream.VERIFYING or welcome is None:
            return
        named = view.leader.value if view.leader is not None else {}
        same = (named.get("member"), named.get("incarnation"), named.get("term"))
        if same != (welcome.member, welcome.incarnation, welcome.term):
            self.hang_up()
            return
        self._go(Stream.DISCARDING)
        self._effects.append(Discard(welcome.common))

    def discarded(self) -> None:
        """What was behind the common position is in quarantine."""
        if self.state is Stream.DISCARDING and self._welcome is not None:
            self._persist(self._welcome)

    def _persist(self, welcome: Welcome) -> None:
        self._go(Stream.PERSISTING)
        self._effects.append(Persist(welcome.term))

    def persisted(self, term: int, now: float) -> None:
        """The term is durable: frames may be acked in it."""
        self.term = max(self.term, term)
        welcome = self._welcome
        if self.state is not Stream.PERSISTING or welcome is None or welcome.term != term:
            return
        self._go(Stream.STREAMING)
        self._heard_at = now
        if self._link is not None:
            self._effects.append(Send(self._link, Ack(term, welcome.seq)))
            self._effects.append(Send(self._link, Ready(term, welcome.common)))

    # The stream.

    def batch(self, link: int, batch: ShippedBatch) -> None:
        """Write a batch."""
        if self._is_stream(link, batch.term):
            self._effects.append(Append(batch))

    def appended(self, batch: ShippedBatch) -> None:
        """A batch, and all before it, is on disk."""
        if self._link is not None and self._is_stream(self._link, batch.term):
            self._effects.append(Send(self._link, Ack(batch.term, batch.seq)))

    def beat(self, link: int, beat: Beat, now: float) -> None:
        """Promise not to stand for election for a while."""
        if self._is_stream(link, beat.term):
            self._heard_at = now
            self.promised_until = max(self.promised_until, now + self._timing.promise_s)
            self._effects.append(Send(link, Promise(beat.term, beat.number)))

    def resigned(self, link: int, resign: Resign) -> None:
        """The leader gives up: no promise holds any longer."""
        if link == self._link and resign.term == self.term:
            self.promised_until = -inf
            self.has_resigned = True
            self.hang_up()
            self._effects.append(ReadKeys())

    def _is_stream(self, link: int, term: int) -> bool:
        return (
            link == self._link
            and self.state is Stream.STREAMING
            and self._welcome is not None
            and term == self._welcome.term
        )
