"""The requests of operators about the messages of a queue (see `messages`).

Whoever reaches the admin socket may do everything, so permissions are not checked here.
"""

from __future__ import annotations

from typing import Any

from amqpstore_server.administration.messages import (
    EVERYTHING,
    Browsing,
    Messages,
    Replaying,
    Selecting,
)
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.provenance import of_message, of_position
from amqpstore_server.administration.request import OperatorRequest
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.queues.queue import Queue


class _OfQueue(OperatorRequest):
    """A request about the messages of one queue."""

    vhost: str
    queue: str

    def of(self, administration: Administration, by: By) -> tuple[Messages, Queue]:
        """Return the operations, and the queue. Raises: MissingError."""
        messages = Messages(administration.broker, EVERYTHING, by)
        return messages, messages.queue(self.vhost, self.queue)


class BrowseMessages(_OfQueue, tag="messages browse"):
    """A page of messages, which stay where they are."""

    page: Browsing

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        return (yield from messages.browse(queue, self.page))


class MoveMessages(_OfQueue, tag="messages move"):
    """Move messages to another queue."""

    target: str
    which: Selecting

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        target = messages.queue(self.vhost, self.target)
        return (yield from messages.move(self.vhost, queue, target, self.which))


class CopyMessages(_OfQueue, tag="messages copy"):
    """Put copies of messages in another queue, or once more in the same one."""

    target: str
    which: Selecting

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        target = messages.queue(self.vhost, self.target)
        return (yield from messages.move(self.vhost, queue, target, self.which, copies=True))


class DeleteMessages(_OfQueue, tag="messages delete"):
    """Delete messages."""

    which: Selecting

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        return (yield from messages.delete(self.vhost, queue, self.which))


class ReplayMessages(_OfQueue, tag="messages replay"):
    """Send dead letters back to where they died."""

    which: Replaying

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        return (yield from messages.replay(self.vhost, queue, self.which))


class UndoPurge(_OfQueue, tag="messages undo-purge"):
    """Undo the last purge of a queue."""

    def done(self, administration: Administration, by: By) -> Work[Any]:
        messages, queue = self.of(administration, by)
        return (yield from messages.undo_purge(self.vhost, queue))


class ProvenanceOfMessage(_OfQueue, tag="messages provenance"):
    """Ask where a message of a queue came from, and what became of it."""

    position: str | int

    def done(self, administration: Administration, by: By) -> Work[Any]:
        _, queue = self.of(administration, by)
        return (yield from of_position(administration, queue, str(self.position)))


class ProvenanceOfId(OperatorRequest, tag="messages provenance-of-id"):
    """Ask where the message of an id came from, and what became of it."""

    id: int

    def done(self, administration: Administration, _by: By) -> Work[Any]:
        return (yield from of_message(administration, self.id))
