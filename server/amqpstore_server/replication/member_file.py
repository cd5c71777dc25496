"""The file MEMBER, as a member's state machine reads and writes it."""

from __future__ import annotations

from amqpstore.replica import Membership, write_membership
from amqpstore.system.files import Files
from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.notes import Notes


def notes_of(found: Membership) -> Notes:
    """Return what a file MEMBER says of how far the group had come."""
    return Notes(
        found.group,
        found.revision,
        found.term,
        ReplicaPosition.of_lsn(found.floor),
        found.generation,
        ReplicaPosition.of_lsn(found.confirmed),
    )


class MemberFile:
    """The file MEMBER of one directory. Args: found, what it has."""

    def __init__(self, files: Files, directory: str, found: Membership) -> None:
        self._files = files
        self._directory = directory
        self._found = found

    @property
    def notes(self) -> Notes:
        """The file's notes on how far the group had come."""
        return notes_of(self._found)

    def write(self, notes: Notes) -> None:
        """Write notes, if they are not what it has. Durable on return. Raises: OSError."""
        group, revision, term, floor, generation, confirmed = notes
        found = Membership(
            *(self._found.member, self._found.cluster, group, revision, term),
            *(floor.lsn, generation, confirmed.lsn),
        )
        # Each write is a rename and two syncs; most calls change nothing.
        if found != self._found:
            write_membership(self._files, self._directory, found)
            self._found = found
