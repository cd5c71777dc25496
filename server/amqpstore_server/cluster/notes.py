"""A member's notes, beside its store, on how far its group had come, and what they tell it.

An etcd is known by what it holds, not by its cluster id, which is derived from its arguments: one
that was made anew by the same command has the same. It is the group's if it has the group's id, and
nothing in it is older than what this member, or another one that runs, has seen there before. One
that was put back from a backup names members that the group has gone on without since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amqpstore_server.cluster.frames import START, ReplicaPosition
from amqpstore_server.cluster.keys import View


class Notes(NamedTuple):
    """The state of the group as it was seen last. It may be late by a moment: it tells the least
    that is true.
    """

    group: str = ""
    """The group's id; empty if it has none, or was not seen yet."""
    revision: int = 0
    """The revision of the last change in etcd that mattered."""
    term: int = 0
    floor: ReplicaPosition = START
    generation: int = 0
    """How often a process of this member was registered in etcd."""
    confirmed: ReplicaPosition = START
    """Up to here the own log is known to be confirmed."""

    def seen(self, view: View) -> Notes:
        """Return the notes with what is in an etcd that is the group's."""
        return self._replace(
            group=view.group_id,
            revision=view.decided_at,
            term=view.term,
            floor=view.floor,
        )

    def binding(self, view: View) -> ReplicaPosition:
        """Return up to where nothing may be lost: what is known to be confirmed, unless a person
        has decided since that another history holds.
        """
        return START if self.confirmed.term < view.forced_term else self.confirmed

    def shown(self) -> dict[str, object]:
        """Return what others have to know of it."""
        floor = [self.floor.term, self.floor.number]
        return {"group": self.group, "revision": self.revision, "term": self.term, "floor": floor}

    @classmethod
    def of_shown(cls, value: Mapping[str, Any]) -> Notes:
        """Return the notes that another member shows. Raises: KeyError, ValueError, TypeError."""
        term, number = value["floor"]
        return cls(
            str(value["group"]),
            int(value["revision"]),
            int(value["term"]),
            ReplicaPosition(int(term), int(number)),
        )


def objection(notes: Notes, view: View) -> str:
    """Return why an etcd is not used that is not the group's, or is older than it was; empty if it
    is used.
    """
    if notes.group and not view.group_id:
        return (
            f"it has no group with the id {notes.group}, which this member belongs to: it was made "
            "anew, or the prefix of the keys is another one"
        )
    if notes.group and view.group_id != notes.group:
        return (
            f"its group has the id {view.group_id}, and this member belongs to {notes.group}: a "
            "group was founded in its place; to have this member in that, stop it and run "
            "`amqpstore cluster join`"
        )
    return _older(notes, view, "this member")


def objection_of_others(view: View, member: str) -> str:
    """Return why an etcd is not used that is older than other members that run have seen it."""
    for name in view.members:
        shown = view.shown(name).get("seen")
        if name == member or not isinstance(shown, Mapping):
            continue
        try:
            notes = Notes.of_shown(shown)
        except (KeyError, ValueError, TypeError):
            continue
        # One that is of another group says nothing about this one.
        if notes.group == view.group_id and (reason := _older(notes, view, f"member {name}")):
            return reason
    return ""


def _older(notes: Notes, view: View, who: str) -> str:
    if notes.term < view.forced_term:
        return ""  # a person has decided since that what it holds is right
    if view.term < notes.term:
        what = f"term {view.term}, and {who} has seen term {notes.term}"
    elif view.floor < notes.floor:
        what = (
            f"batch {view.floor.number} of term {view.floor.term} as confirmed, and {who} has seen "
            f"batch {notes.floor.number} of term {notes.floor.term}"
        )
    elif view.decided_at < notes.revision:
        what = f"changes up to revision {view.decided_at}, and {who} has seen {notes.revision}"
    else:
        return ""
    return f"it has {what}: it was put back from a backup, or made anew"
