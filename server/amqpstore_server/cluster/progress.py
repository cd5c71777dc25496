"""A follower as its leader sees it."""

from __future__ import annotations

from enum import Enum
from math import inf

from amqpstore_server.cluster.frames import START


class DropReason(Enum):
    """The reason why a follower leaves the in-sync list, for people; its name in small letters is a
    label.
    """

    LOST = "its disk has lost data"
    REMOVED = "it is not a voter of this group any longer"
    STOPPED = "it has been stopped"
    OVERDUE = "it has acked nothing for cluster_ack_timeout_s"
    SILENT = "nothing has come from it for some seconds"
    SLOW = "it is slow: it lacks most of the time what the others have had for a while"
    UNKNOWN = "etcd says so"


class FollowerProgress:
    """The progress of one follower; it outlives its connections."""

    __slots__ = (
        "acked",
        "common",
        "counted_s",
        "dropped_at",
        "followed",
        "generation",
        "has_lost",
        "heard_at",
        "held_up_s",
        "is_retrying",
        "is_stopped",
        "is_streaming",
        "late_s",
        "link",
        "may_enter_at",
        "promised_until",
        "received_at",
        "spoke_at",
    )

    def __init__(self, heard_at: float = -inf) -> None:
        self.link: int | None = None
        self.common = START
        """Behind it the follower lacks all, or has to replace it."""
        self.generation = 0
        """The number of the process of its member; 0 if it does not say."""
        self.is_streaming = False
        self.acked = 0
        self.is_retrying = False
        """Whether it has acked nothing on this connection nor on the one before: then it does not
        count that it receives something.
        """
        self.heard_at = heard_at
        """The time at which it last acked something, or a part of a frame, or connected for the
        first time.
        """
        self.received_at = -inf
        """The time at which it last said that it is receiving something, with nothing on disk yet.
        """
        self.spoke_at = heard_at
        """The time at which anything last came from it: an ack, or the answer to a beat."""
        self.held_up_s = 0.0
        """For how long it has lately lacked what others had had for a while."""
        self.followed = 0
        """A frame that others had, and that this follower is looked at for; 0 if it has all."""
        self.late_s = 0.0
        """For how long it has lacked that frame."""
        self.counted_s = 0.0
        """How much of that is in `held_up_s`."""
        self.promised_until = -inf
        self.is_stopped = False
        """Whether it has stopped in order, and is not back yet."""
        self.has_lost = False
        """Whether it came back with less than it had acked."""
        self.dropped_at: list[float] = []
        self.may_enter_at = -inf

    def follow_frame(self, had: int, late_s: float) -> None:
        """Begin to look how long it takes for the frame that others have, if it lacks that: it has
        for `late_s`.
        """
        self.followed = had if self.acked < had else 0
        self.late_s, self.counted_s = late_s if self.followed else 0.0, 0.0
