"""A follower: the stream that it takes, and what it has promised.

It acks a frame when it is on disk, and only in a term that it has made durable before: a follower
that has acked in a term never again takes a frame of an older one, also after a restart.
"""

from __future__ import annotations

from enum import Enum
from math import inf

from amqpstore_server.cluster.effects import (
    Adopt,
    Append,
    CheckpointUpTo,
    Define,
    Dial,
    Discard,
    Effect,
    FindReceived,
    HangUp,
    Persist,
    ReadKeys,
    Receive,
    Restore,
    Send,
    Sync,
    TellOperator,
)
from amqpstore_server.cluster.frames import (
    CLAIM_PROTOCOL,
    FOUNDED_PROTOCOL,
    PROTOCOL,
    START,
    TAG_PROTOCOL,
    Ack,
    Beat,
    CaughtUp,
    Claim,
    Definition,
    DefinitionsSnapshot,
    Goodbye,
    Hello,
    Join,
    Promise,
    Ready,
    ReceivedFile,
    Refused,
    Resign,
    ShippedBatch,
    StoreCopy,
    StorePiece,
    Welcome,
)
from amqpstore_server.cluster.keys import MemberIdentity, View
from amqpstore_server.cluster.replica_log import ReplicaLog
from amqpstore_server.cluster.timing import Timing


class Stream(Enum):
    """The stage of a follower's connection."""

    NONE = "no connection"
    DIALLED = "connecting"
    GREETED = "Hello sent"
    VERIFYING = "asking etcd whether this leader may discard anything here"
    DISCARDING = "removing what was never committed"
    PERSISTING = "making the leader's term durable, and looking at what is here of a copy"
    COPYING = "receiving a copy of the leader's store"
    STREAMING = "taking frames"


NEXT = {
    Stream.NONE: {Stream.DIALLED},
    Stream.DIALLED: {Stream.GREETED, Stream.NONE},
    Stream.GREETED: {Stream.VERIFYING, Stream.PERSISTING, Stream.NONE},
    Stream.VERIFYING: {Stream.DISCARDING, Stream.PERSISTING, Stream.NONE},
    Stream.DISCARDING: {Stream.PERSISTING, Stream.NONE},
    Stream.PERSISTING: {Stream.COPYING, Stream.STREAMING, Stream.NONE},
    Stream.COPYING: {Stream.NONE},
    Stream.STREAMING: {Stream.NONE},
}
"""The states that may follow each state: nothing else is legal."""


class Following:
    """The stream of one follower. Args: term, the highest durable one."""

    def __init__(
        self,
        identity: MemberIdentity,
        term: int,
        log: ReplicaLog,
        timing: Timing,
        effects: list[Effect],
    ) -> None:
        self.term = term
        self.state = Stream.NONE
        self.promised_until = -inf
        """The time until which this member does not stand for election."""
        self.has_resigned = False
        """Whether the leader has given up, and asked to be followed."""
        self.received_bytes = self.copy_bytes = 0
        """How much of a copy of the leader's store is here, and of how much."""
        self._identity = identity
        self._log = log
        self._timing = timing
        self._effects = effects
        self.claim = Claim(0, START)
        """The process of its member that this is, and what it knows to be confirmed."""
        self.withheld = ""
        """The reason why it does not follow the present leader: that one lacks what was confirmed.
        """
        self._leader_protocol = FOUNDED_PROTOCOL
        self._link: int | None = None
        self._welcome: Welcome | None = None
        self._join = Join.STREAM
        self._number = 0
        """The last batch that was taken."""
        self._definitions = 0
        self._seq = 0
        self.committed_number = 0
        """The last batch that is committed, as the leader says on this connection."""
        self._dialled = ""
        """The request that made the leader that was dialled last the leader."""
        self._dial_at = -inf
        """The time before which the same leader is not dialled again."""
        self._heard_at = -inf

    def _go(self, state: Stream) -> None:
        if state not in NEXT[self.state]:
            raise ValueError(f"a stream cannot go from {self.state.name} to {state.name}")
        self.state = state

    # The connection.

    def tick(self, view: View | None, now: float) -> None:
        """Connect to the leader that etcd named last, each second until it is reached."""
        if self.state is Stream.STREAMING:
            # Beats come twice a second, and frames while it catches up: a leader that is silent for
            # `promise_s` is gone, or leads no more.
            if now - self._heard_at > self._timing.promise_s:
                self.hang_up()
                self._effects.append(ReadKeys())
            return
        leader = view.leader.value if view is not None and view.leader is not None else None
        is_another = leader is not None and leader["request"] != self._dialled
        if self.state is Stream.COPYING:
            if not is_another and now - self._heard_at < self._timing.copy_silence_s:
                return
            self.hang_up()
        if not is_another and now < self._dial_at:
            return
        is_greeted = self.state in (Stream.GREETED, Stream.VERIFYING)
        if is_greeted and not is_another and now < self._dial_at + self._timing.greeting_s:
            return
        if is_greeted or self.state is Stream.DIALLED:
            # The leader has not answered, or another member leads by now.
            self.hang_up()
        if (
            self.state is Stream.NONE
            and leader is not None
            and leader["member"] != self._identity.member
        ):
            if is_another:
                self.withheld = ""
            self._dialled = leader["request"]
            self._leader_protocol = int(leader.get("protocol", FOUNDED_PROTOCOL))
            self._dial_at = now + self._timing.read_every_s
            self._go(Stream.DIALLED)
            takes_tags = self._leader_protocol >= TAG_PROTOCOL
            self._effects.append(Dial(str(leader["member"]), str(leader["replicate"]), takes_tags))

    def connected(self, link: int) -> None:
        """The connection stands: say who this is, and what is on disk here."""
        if self.state is not Stream.DIALLED:
            self._effects.append(HangUp(link))
            return
        self._link = link
        self._go(Stream.GREETED)
        identity = self._identity
        hello = Hello(
            identity.member,
            identity.incarnation,
            identity.store_id,
            PROTOCOL,
            self.term,
            self._log.tail(),
        )
        # Before Hello, which the leader answers by what it claims.
        if self._leader_protocol >= CLAIM_PROTOCOL:
            self._effects.append(Send(link, self.claim))
        self._effects.append(Send(link, hello))

    def disconnected(self, link: int) -> None:
        """The connection is gone."""
        if link == self._link:
            self._forget()

    def stop(self) -> None:
        """Tell the leader that this member stops. Its connection is ended by the driver, behind
        what is sent; until then it goes on.
        """
        is_known = self._leader_protocol >= CLAIM_PROTOCOL
        link, welcome = self._link, self._welcome
        if is_known and self.state is Stream.STREAMING and link is not None and welcome is not None:
            self._effects.append(Send(link, Goodbye(welcome.term)))

    def hang_up(self) -> None:
        """Take nothing more from the leader."""
        if self._link is not None:
            self._effects.append(HangUp(self._link))
        self._forget()

    def _forget(self) -> None:
        if self.state is Stream.COPYING:
            self._dial_at = self._heard_at + self._timing.copy_retry_s
        self._link = None
        self._welcome = None
        self.state = Stream.NONE

    # The handshake.

    def refused(self, link: int, refused: Refused) -> None:
        """The leader does not take this member."""
        if link == self._link:
            self._effects.append(TellOperator(f"this member is refused: {refused.reason}"))
            self.hang_up()

    def welcome(self, link: int, welcome: Welcome) -> None:
        """Hear where the log goes on."""
        if link != self._link or self.state is not Stream.GREETED:
            return
        # It was deposed and does not know it yet: what it sends is not to be acked any more.
        if welcome.term < self.term:
            self.hang_up()
            self._effects.append(ReadKeys())
            return
        self._welcome = welcome
        self._join = welcome.join
        if welcome.common.number < self._log.checkpoint():
            # What a checkpoint has cannot be taken back, if the leader was made one by force, nor
            # sent again, if the own log has lost it.
            self._join = Join.COPY
        if self._join is Join.STREAM:
            self._persist(welcome)
        else:
            self._go(Stream.VERIFYING)
            self._effects.append(ReadKeys())

    def viewed(self, view: View) -> None:
        """Discard only what a leader that etcd names has not: nothing goes because of a rumour."""
        welcome = self._welcome
        if self.state is not Stream.VERIFYING or welcome is None:
            return
        named = view.leader.value if view.leader is not None else {}
        same = (named.get("member"), named.get("incarnation"), named.get("term"))
        if same != (welcome.member, welcome.incarnation, welcome.term):
            self.hang_up()
        elif reason := self._missing(welcome, view):
            self._withhold(reason)
        elif self._join is Join.COPY:
            self._persist(welcome)
        else:
            self._go(Stream.DISCARDING)
            self._effects.append(Discard(welcome.common))

    def _missing(self, welcome: Welcome, view: View) -> str:
        """Return what the leader lacks of what is known to be confirmed; empty if it may have all
        of it.
        """
        confirmed = self.claim.confirmed
        if welcome.join is Join.REPLACE:
            kept = welcome.common
        else:
            # What was compacted away cannot be compared: the leader must be as far, by its word.
            kept = view.floor if view.floor != START else confirmed
        if confirmed.number <= kept.number:
            return ""
        return (
            f"batch {confirmed.number} of term {confirmed.term} is here and known to be confirmed, "
            f"and the leader {welcome.member} has no more than batch {kept.number} in common"
        )

    def _withhold(self, reason: str) -> None:
        """Stay out, and keep every byte: a person has to say which history holds."""
        self.withheld = (
            f"{reason}: this member stays out and keeps what it has. Decide which history holds: "
            "`amqpstore cluster force-leader`"
        )
        self.hang_up()

    def discarded(self) -> None:
        """Note that the batches behind the common position are in quarantine."""
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
        if self._join is Join.COPY:
            self._effects.append(FindReceived(term))
        else:
            self._begin(Stream.STREAMING, welcome, (), now)

    def found_received(self, term: int, received: tuple[ReceivedFile, ...], now: float) -> None:
        """Hear what is here of a copy that was cut off: that need not be sent again."""
        welcome = self._welcome
        if self.state is Stream.PERSISTING and welcome is not None and welcome.term == term:
            self._begin(Stream.COPYING, welcome, received, now)

    def _begin(
        self, state: Stream, welcome: Welcome, received: tuple[ReceivedFile, ...], now: float
    ) -> None:
        self._go(state)
        self._heard_at = now
        self._number = welcome.common.number
        self._definitions = self._seq = self.committed_number = 0
        self.received_bytes = self.copy_bytes = 0
        if self._link is not None:
            self._effects.append(Send(self._link, Ready(welcome.term, self._join, received)))

    # The stream.

    def heard(self, link: int, now: float) -> None:
        """Something has come on a connection, whatever it is: its leader is there."""
        if link == self._link:
            self._heard_at = now

    def snapshot(self, link: int, snapshot: DefinitionsSnapshot) -> None:
        """Take all definitions."""
        if self._is_stream(link, snapshot.term):
            self._definitions = snapshot.number
            self._effects.append(Restore(snapshot))

    def piece(self, link: int, piece: StorePiece) -> None:
        """Take a part of a copy of the leader's store."""
        if self._is_at(Stream.COPYING, link, piece.term):
            self.received_bytes, self.copy_bytes = piece.sent, piece.total
            self._effects.append(Receive(piece))

    def copy(self, link: int, copy: StoreCopy) -> None:
        """Put a copy of the leader's store in the place of the own one, and connect again: the log
        goes on where the copy ends.
        """
        welcome = self._welcome
        if welcome is not None and self._is_at(Stream.COPYING, link, copy.term):
            self._effects.append(Adopt(copy, welcome.common))
            self.hang_up()
            self._dial_at = -inf

    def batch(self, link: int, batch: ShippedBatch) -> None:
        """Write a batch."""
        if not self._is_stream(link, batch.term):
            return
        position = batch.position
        if position.number != self._number + 1 or position.term > batch.term:
            self._object(
                f"batch {position.number} of term {position.term} behind batch {self._number}"
            )
        elif self._is_next(batch.seq):
            self._number = position.number
            self._effects.append(Append(batch))
            self._commit(batch.committed)

    def definition(self, link: int, definition: Definition) -> None:
        """Commit a change of definitions; the snapshot may have it already."""
        if not self._is_stream(link, definition.term) or not self._is_next(definition.seq):
            return
        if definition.number <= self._definitions:
            self._effects.append(Sync(definition.term, definition.seq))
        elif definition.number == self._definitions + 1:
            self._definitions = definition.number
            self._effects.append(Define(definition))
        else:
            self._object(f"definitions {definition.number} behind {self._definitions}")
            return
        self._commit(definition.committed)

    def caught_up(self, link: int, caught_up: CaughtUp) -> None:
        """All that was missing has been sent."""
        if not self._is_stream(link, caught_up.term):
            return
        if self._seq not in (0, caught_up.seq):
            self._object(f"{caught_up.seq} as its last frame behind {self._seq}")
            return
        if self.claim.confirmed.number > self._number:
            # Nothing is there to be kept: the own log has lost it, and the leader never had it.
            self._withhold(
                f"batch {self.claim.confirmed.number} is known to be confirmed, and the leader's "
                f"log ends with batch {self._number}"
            )
            return
        self.withheld = ""
        self._seq = caught_up.seq
        self._effects.append(Sync(caught_up.term, caught_up.seq))
        self._commit(caught_up.committed)

    def synced(self, term: int, seq: int) -> None:
        """All that was asked for up to a frame is on disk."""
        if self._link is not None and self._is_stream(self._link, term):
            self._effects.append(Send(self._link, Ack(term, seq)))

    def beat(self, link: int, beat: Beat, now: float) -> None:
        """Promise not to stand for election for a while."""
        if self._is_stream(link, beat.term):
            self.promised_until = max(self.promised_until, now + self._timing.promise_s)
            self._effects.append(Send(link, Promise(beat.term, beat.number)))
            self._commit(beat.committed)

    def progressed(self, link: int, now: float) -> None:
        """A part of a frame has come: neither side is to take the wait for silence."""
        if link != self._link:
            return
        self._heard_at = now
        if self.state is Stream.STREAMING and self._welcome is not None:
            self._effects.append(Send(link, Ack(self._welcome.term, 0)))

    def resigned(self, link: int, resign: Resign) -> None:
        """The leader gives up: no promise holds any longer."""
        if link == self._link and resign.term == self.term:
            self.promised_until = -inf
            self.has_resigned = True
            self.hang_up()
            self._effects.append(ReadKeys())

    def _commit(self, number: int) -> None:
        if number > self.committed_number:
            self.committed_number = number
            self._effects.append(CheckpointUpTo(number))

    def _is_next(self, seq: int) -> bool:
        """Tell whether this frame follows those before it. 0: it is not one of this term's."""
        if seq and self._seq and seq != self._seq + 1:
            self._object(f"frame {seq} behind frame {self._seq}")
            return False
        self._seq = seq or self._seq
        return True

    def _object(self, what: str) -> None:
        """Hang up on a leader that sends what cannot be."""
        leader = self._welcome.member if self._welcome is not None else "the leader"
        self._effects.append(TellOperator(f"{leader} has sent {what}: connecting anew"))
        self.hang_up()

    def _is_stream(self, link: int, term: int) -> bool:
        return self._is_at(Stream.STREAMING, link, term)

    def _is_at(self, state: Stream, link: int, term: int) -> bool:
        return (
            link == self._link
            and self.state is state
            and self._welcome is not None
            and term == self._welcome.term
        )
