"""Catching up of a follower that joins: it is sent all definitions, and the batches that it lacks,
from the leader's own segments.
"""

from __future__ import annotations

from collections.abc import Callable

from amqpstore import DamageError
from amqpstore.replica import SealedBatch
from amqpstore_server.cluster.effects import CatchUp
from amqpstore_server.cluster.frames import ReplicaPosition, ShippedBatch
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.links import Write
from amqpstore_server.replication.member_log import MemberLog


def catch_up(asked: CatchUp, companion: LeaderCompanion, log: MemberLog) -> Callable[[Write], None]:
    """Return the job that sends the definitions and batches on a link."""

    def job(write: Write) -> None:
        end = log.end_of(asked.behind)
        if end is None:
            raise OSError(f"nothing is known of batch {asked.behind.number} any longer")
        # A file that is missing, or damaged, ends the connection: the follower tries again.
        try:
            write(companion.snapshot())
            for sealed in log.reader().sealed(end):
                # Renewed with each batch: on a narrow link the catch-up lasts longer than a
                # segment is held, and the next one must not be removed before it is read.
                log.hold(sealed.segment)
                # What is sealed from here on reaches the follower as a live frame; sent twice, it
                # would be a batch out of order there.
                if ReplicaPosition.of_lsn(sealed.lsn).number > asked.number:
                    return
                write(_shipped(sealed, companion.term))
        except DamageError as error:
            raise OSError(str(error)) from error

    return job


def _shipped(sealed: SealedBatch, term: int) -> ShippedBatch:
    position = ReplicaPosition.of_lsn(sealed.lsn)
    return ShippedBatch(term, 0, position, 0, sealed.layout(), sealed.content)
