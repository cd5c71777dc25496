"""The limits of the event loop's policy, which the package's docstring tells."""

from __future__ import annotations

from typing import NamedTuple


class LoopLimits(NamedTuple):
    """Limits of what the loop does in one round, and for whom. They are not configured: tests pass
    others in.

    A field that ends in `_s` has seconds: of the wall clock, unless it says that they are of
    processor time. One that ends in `_bytes` has bytes.
    """

    # Rounds.

    reading_s: float = 0.005
    """How long one round reads before the messages are delivered and their batch is started."""

    short_round_s: float = 0.0002
    """A round that read from one socket in less than this time ends: hardly any other client can
    have written meanwhile, and its batch can be started.
    """

    linger_s: float = 0.001
    """How long trio does not hear of its own timers and sockets, at most, when nothing happens in
    the loop. A sync ends sooner, and so does the answer of a client that waits for it.
    """

    alone_s: float = 0.005
    """How long trio does not hear of them while something happens in the loop."""

    max_closing: int = 8
    """From how many clients that have closed their side a round reads. What follows from the end of
    a connection takes about as long as twenty messages: of thousands that leave at once, the others
    should notice little.
    """

    ends_first_s: float = 2.0
    """For how long at most no client is let in because the ends of others have not been read. A
    client that comes back at once is to find that it has left, but those that leave may have sent
    much before.
    """

    max_pumps: int = 4
    """How often a round pumps the queues, at most, until it has handed out as many messages as have
    come: a read of 512 KiB can have 3,000 small ones, and queues that get more than they hand out
    end up on the disk.
    """

    max_sent_bytes: int = 2 << 20
    """How much a round sends to one connection: a client that reads as fast as this process sends
    could otherwise hold up everybody.
    """

    max_pending_bytes: int = 64 << 20
    """Above this many bytes that wait for the disk, publishers have to wait."""

    probing_s: float = 0.01
    """How often it is measured how long a message waits for its delivery."""

    # One read.

    min_read_bytes: int = 16 << 10
    max_read_bytes: int = 512 << 10
    """The smallest and the largest read of a client that is not costly."""

    max_frames: int = 12 << 10
    chunk_frames: int = 6 << 10
    """A read of more frames than `max_frames` is handled in chunks of about `chunk_frames`, or
    2,000 messages.
    """

    long_read_s: float = 0.01
    """Processor time of a read after which the client's next one is smaller. 512 KiB may be 500
    messages of everyday size, or 60,000 body frames of one byte, which take more than ten times as
    long.
    """

    long_small_read_s: float = 0.004
    small_read_bytes: int = 128 << 10
    """Processor time of a read of `small_read_bytes` or less after which the next one is smaller:
    a client whose messages are costly gets fewer of them done at once, and so not much more than
    the others in the same time.
    """

    # Busy.

    collecting_s: float = 0.015
    """How long a queue collects messages while rounds are busy."""

    busy_s: float = 1.0
    """How long the broker counts as busy after a busy round: traffic of many messages comes in
    bursts.
    """

    switch_s: float = 0.00002
    busy_switch_s: float = 0.0005
    """The interpreter's switch interval, usually and while the broker is busy."""

    # Costly.

    costly_s: float = 0.001
    """A client is costly whose last reads took longer than this in processor time, and twice as
    long as ordinary ones of as many messages and bytes may take.
    """

    suspect_s: float = 0.00025
    """A client whose reads all take less than this is not costly: each read counts three quarters
    of the one after it, so they add up to less than `costly_s`.
    """

    max_charged_s: float = 0.008
    """The most that one read counts: it is forgotten after some ordinary ones. A declare waits for
    the disk, which may take half a second when others use it.
    """

    min_costly_read_bytes: int = 1 << 10
    """The smallest read of a client whose every message takes long, such as one for a thousand
    bindings of wildcards.
    """

    long_costly_read_s: float = 0.0005
    """The processor time that a read of a costly client may take: others hardly notice such a read.
    """

    costly_reading_s: float = 0.002
    """How long one round reads from costly clients."""

    # Shares.

    others_s: float = 0.002
    """Others are at work if something was read from a client in that time."""

    costly_pause_ratio: float = 9.0
    """Costly clients pause this many times as long as the last read of one of them took, while
    others are at work: so they have a tenth of the time.
    """

    moves_pause_ratio: float = 4.0
    """The pause after messages were moved or dropped, divided by the time that this took, while
    others are at work: so it has a fifth of the time.
    """

    max_added_pause_s: float = 0.1
    """Work in many pieces owes the others no longer a pause than this, or than one of the pieces
    asks for: while they are at work it pauses after each round, and what it did when they were not
    took nothing from them.
    """

    # Hurry.

    hurry_s: float = 0.3
    """For how long at most other tasks run after each round, for one of them that is in a hurry."""

    hurried_reading_s: float = 0.001
    """How long a round reads while a task is in a hurry."""

    # Memory.

    collect_young_s: float = 0.025
    """Processor time in which no more objects are made than a collection of garbage looks at in a
    few milliseconds. With less between them, more of those in flight are looked at while they live.
    """

    collect_all_every_s: float = 60.0
    """How often all objects are looked at, where that takes little time."""

    collect_all_s: float = 0.01
    """Processor time that looking at all objects may take while clients are served."""

    unserved_collect_all_s: float = 0.1
    """Processor time that looking at all objects may take while no clients are connected, as some
    may be about to connect.
    """

    min_trimmed_bytes: int = 500 * (16 << 10)
    """Memory of which less than this was freed is not given back: what 500 idle clients take."""

    trim_after_s: float = 10.0
    """How long after that it is given back: some clients take seconds to be closed, and trio's
    deadlines are kept until they would have passed.
    """


LOOP_LIMITS = LoopLimits()
"""The limits of every broker, unless others are given."""
