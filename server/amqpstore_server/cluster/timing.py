"""Time limits of a group. The safety of confirms depends on none of it: see `in_sync`."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Durations in seconds, on each machine's monotonic clock."""

    lease_s: float = 3.0
    """How long the leader's key outlives its last renewal. etcd grants at least 2."""
    margin_s: float = 0.5
    """A leader stops serving this long before its proof of leadership ends."""
    keep_alive_s: float = 1.0
    beat_s: float = 0.5
    promise_s: float = 3.0
    """How long a follower does not stand for election after it has answered a beat."""
    ack_timeout_s: float = 2.0
    """The time after which a follower leaves the list that has neither acked nor received a part of
    a large frame while frames wait for it.
    """
    slow_s: float = 0.25
    """The delay with which a follower holds the others up: it takes this long for what enough of
    them have, and longer than they took themselves. If it does so for most of the time it leaves
    the list: each of its acks may come in time, and all clients wait for it. A link to another
    continent takes less.
    """
    silent_s: float = 5.0
    """The time after which a follower of which nothing has come leaves the list, also when nothing
    waits for its ack: those who count on the list count the living.
    """
    turn_s: float = 0.3
    """Between the candidacies of two members that could both lead."""
    unfit_s: float = 3.0
    """The time after which a member whose disk or event loop hangs does not lead."""
    opening_s: float = 30.0
    """The time after which a member that was elected and has not served a client does not lead: the
    disk may hang while the store is opened. Recovery reads what no checkpoint covers, and queues
    drop what has expired, which takes a second or two.
    """
    stall_s: float = 5.0
    """The time after which a leader that cannot commit lets others try."""
    disk_low_s: float = 10.0
    """The time after which a leader whose disk is nearly full lets a follower lead that has room:
    what its publishers wait for may never come.
    """
    unable_s: float = 10.0
    """The time after which a member that was elected and could not serve clients stands again."""
    hand_over_s: float = 5.0
    """How long a leader that hands over waits until everything is committed."""
    quiet_s: float = 0.25
    """How long it takes at most until publishers have stopped for that."""
    read_every_s: float = 1.0
    """A member looks at etcd this often, whatever its watch tells; a follower each `turn_s` while
    there is no leader.
    """
    alive_every_s: float = 3.0
    greeting_s: float = 10.0
    """A follower that has connected waits this long for its welcome: the leader may have to look
    for what both have in many segments, and each further connection would make it look again.
    """
    note_every_s: float = 1.0
    """How often a member notes in MEMBER what it has seen, and a leader in etcd what is confirmed,
    while that moves.
    """
    copy_silence_s: float = 30.0
    """The silence after which a follower that gets a copy of the store connects again."""
    copy_retry_s: float = 5.0
    """The time that a follower whose copy was cut off waits before it connects again."""
    drops_within_s: float = 600.0
    """The time within which three drops from the list make a follower wait."""
    first_wait_s: float = 10.0
    """The time that such a follower waits at first; each further time twice as long."""
    longest_wait_s: float = 60.0

    @property
    def held_up_s(self) -> float:
        """For how long in all a follower may hold others up: less than it may be silent."""
        return 0.75 * self.ack_timeout_s


class Health(NamedTuple):
    """Whether a machine is fit to lead, as its driver sees it. Waiting for others is no illness."""

    busy_since: float | None = None
    """The time at which the oldest local write or sync that has not returned began."""
    turned_at: float | None = None
    """The time at which the event loop that serves clients last turned; None while there is none.
    """
    opening_since: float | None = None
    """The time at which the store of a leader began to be opened; None while it is not being
    opened.
    """
    is_disk_low: bool = False
    """Whether the disk is nearly full, so that a leader takes no publishes."""

    def is_fit(self, now: float, timing: Timing) -> bool:
        """Tell whether neither the disk, the event loop nor the opening of a store has hung for too
        long.
        """
        if self.opening_since is not None and now - self.opening_since > timing.opening_s:
            return False
        oldest = min(at for at in (self.busy_since, self.turned_at, now) if at is not None)
        return now - oldest <= timing.unfit_s
