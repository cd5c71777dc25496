"""The operations of an operator on the messages of a queue, which stay unread by its consumers.

To browse takes the permission to read a queue, to move or copy messages also the one to write to
the target, by its name; to delete messages, like a purge, the one to read. A replay takes the one
to read, and for each letter the one to write to the queue or the exchange that it goes to. To undo
a purge takes the permissions to read and to write to the queue. An exclusive queue is its
connection's: it can be browsed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import msgspec

from amqpstore import ReadLaterError
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.rendering import rendered
from amqpstore_server.administration.work import ResultT, Work
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.messages.filters import Matcher, MessageFilter
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.queues.browsing import MessagePosition, PageRequest, browse
from amqpstore_server.broker.queues.kinds import ReplyQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rights.permissions import Rights
from amqpstore_server.broker.routing.publish_rights import PublishRights
from amqpstore_server.broker.transactions.dead_letter_replay import (
    MAX_REPLAYS,
    Return,
    replaying_dead_letters,
)
from amqpstore_server.broker.transactions.selected import (
    Handled,
    Selection,
    deleting,
    durable,
    moving,
)

MAX_PAGE = 1000
MAX_POSITIONS = 10_000
MAX_PAYLOAD_BYTES = 1 << 20
_MAX_SCANNED = 10_000_000


class _Everything:
    """The rights of somebody who may do everything."""

    def check(self, permission: str, kind: str, name: str) -> None:
        pass

    def check_topic(self, permission: str, exchange: str, routing_key: str) -> None:
        pass


EVERYTHING = _Everything()


class Browsing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A page of a queue: up to `limit` messages from position `start` on, or after `offset` ready
    ones.

    With `filter` no more than `max_scanned` are looked at. Bodies are cut after
    `max_payload_bytes`, as they are read.
    """

    start: str | int | None = None
    offset: int = 0
    limit: int = 100
    filter: MessageFilter | None = None
    max_scanned: int = 100_000
    max_payload_bytes: int = 4096


class Selecting(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of messages: those at some positions, or all; of them those that match a filter,
    and the first `limit` of them. Positions or a filter have to be given.
    """

    positions: list[str | int] | None = None
    filter: MessageFilter | None = None
    limit: int | None = None


class Replaying(Selecting, kw_only=True):
    """Dead letters, and how they go back: to the `queue` they died in, or through the `exchange`
    they had come from. Letters whose x-death this broker has not written stay, unless it
    `trusts_publishers`.
    """

    to: Literal["queue", "exchange"] = "queue"
    max_replays: int = MAX_REPLAYS
    trusts_publishers: bool = False


class Messages:
    """The operations on messages that one operator asks for."""

    def __init__(self, broker: Broker, rights: Rights, by: By) -> None:
        self._broker = broker
        self._rights = rights
        self._by = by

    def queue(self, vhost: str, name: str) -> Queue:
        """Return a queue. Raises: MissingError."""
        if vhost not in self._broker.vhosts:
            raise MissingError(f"no vhost '{vhost}'")
        queue = self._broker.vhosts[vhost].queues.get(name)
        if queue is None or queue.kind == ReplyQueue.kind:
            raise MissingError(f"no queue '{name}' in vhost '{vhost}'")
        return queue

    def browse(self, queue: Queue, asked: Browsing) -> Work[dict[str, Any]]:
        """Return a page of messages, which stay where they are and as they are.

        Raises: AdministrationError, AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        _check_range("limit", asked.limit, 1, MAX_PAGE)
        _check_range("offset", asked.offset, 0)
        _check_range("max_scanned", asked.max_scanned, 1, _MAX_SCANNED)
        _check_range("max_payload_bytes", asked.max_payload_bytes, 0, MAX_PAYLOAD_BYTES)
        wanted = PageRequest(
            None if asked.start is None else MessagePosition.of(asked.start),
            asked.offset,
            asked.limit,
            _matcher(asked.filter),
            asked.max_scanned,
            asked.max_payload_bytes,
        )
        page = yield from _readable(browse(self._broker.services, queue, wanted))
        messages = yield from rendered(page.messages)
        return {
            "messages": messages,
            "next": None if page.next is None else str(page.next),
            "scanned": page.scanned,
            "ready": queue.ready_count,
            "unacked": page.unacked,
            "purges": queue.purges.rows(),
        }

    def move(
        self, vhost: str, queue: Queue, target: Queue, asked: Selecting, *, copies: bool = False
    ) -> Work[dict[str, Any]]:
        """Move messages to the end of another queue, or put copies of them there.

        Durable when it returns, and atomic in pieces: see `broker.transactions.selected`.
        Raises: AdministrationError, AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        self._publish_rights(vhost).check_queue(target.name)
        self._check_usable(vhost, target)
        if not copies:
            self._check_usable(vhost, queue)
            if queue is target:
                raise AdministrationError(f"queue '{queue.name}' is the target as well")
        selection = _selection(asked)
        handled = yield from _readable(
            moving(self._broker.services, queue, target, selection, copies=copies)
        )
        event = "messages copied" if copies else "messages moved"
        self._audit(event, vhost, queue, handled.count, target=target.name)
        return _answer("copied" if copies else "moved", handled)

    def delete(self, vhost: str, queue: Queue, asked: Selecting) -> Work[dict[str, Any]]:
        """Delete messages; they become no dead letters. Durable when it returns.

        Raises: AdministrationError, AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        queue.check_owner(None)
        queue.check_served(vhost)
        handled = yield from _readable(deleting(self._broker.services, queue, _selection(asked)))
        self._audit("messages deleted", vhost, queue, handled.count)
        return _answer("deleted", handled)

    def replay(self, vhost: str, queue: Queue, asked: Replaying) -> Work[dict[str, Any]]:
        """Send dead letters back to where they died. Durable when it returns.

        Raises: AdministrationError, AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        self._check_usable(vhost, queue)
        _check_range("max_replays", asked.max_replays, 1)
        where = self._broker.vhosts[vhost]
        work = replaying_dead_letters(
            self._broker.services,
            where.router,
            where.queues,
            queue,
            _selection(asked),
            Return(
                asked.to == "exchange",
                asked.max_replays,
                self._publish_rights(vhost),
                asked.trusts_publishers,
            ),
        )
        handled = yield from _readable(work)
        self._audit("dead letters replayed", vhost, queue, handled.count)
        return _answer("replayed", handled)

    def purges(self, queue: Queue) -> list[dict[str, int]]:
        """Return the purges that can be undone, the last one first: how many messages each had, and
        until when, in ms since 1970. Raises: AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        return queue.purges.rows()

    def undo_purge(self, vhost: str, queue: Queue) -> Work[dict[str, Any]]:
        """Undo the last purge of a queue that can be undone. Durable when it returns.

        Raises: AdministrationError (there is none), AccessRefusedError.
        """
        self._rights.check("read", "queue", queue.name)
        self._publish_rights(vhost).check_queue(queue.name)
        queue.check_owner(None)
        queue.check_served(vhost)
        # Before that it cannot be undone.
        yield from durable(self._broker.services)
        # The queue may have been deleted, or the time be up, during the wait.
        purged = queue.purges.last
        if purged is None:
            raise AdministrationError(
                f"no purge of queue '{queue.name}' can be undone: there was none, or its time is up"
            )
        count = queue.purges.undo(purged)
        self._audit("purge undone", vhost, queue, count)
        return {"restored": count, "purges": queue.purges.rows()}

    def _publish_rights(self, vhost: str) -> PublishRights:
        return PublishRights(self._broker.vhosts[vhost].router, self._rights)

    def _check_usable(self, vhost: str, queue: Queue) -> None:
        """Make sure that messages may be put in a queue, and taken off it, by this broker's
        operators. Raises: BrokerError.
        """
        self._broker.vhosts[vhost].check_usable(queue)
        queue.check_owner(None)
        queue.check_served(vhost)

    def _audit(self, event: str, vhost: str, queue: Queue, count: int, **what: Any) -> None:
        self._broker.services.events.happened(
            event, by=self._by, vhost=vhost, queue=queue.name, count=count, **what
        )


def _readable(work: Generator[None, None, ResultT]) -> Work[ResultT]:
    """Do work that reads messages. Raises: AdministrationError, if one cannot be read now: what was
    done so far stays.
    """
    try:
        return (yield from work)
    except ReadLaterError as error:
        raise AdministrationError(str(error)) from error


def _answer(done: str, handled: Handled) -> dict[str, Any]:
    return {done: handled.count, "left": dict(handled.left), "stopped": handled.stopped}


def _selection(asked: Selecting) -> Selection:
    """Raises: AdministrationError."""
    if asked.positions is None and asked.filter is None:
        raise AdministrationError("which messages? positions or a filter have to be given")
    if asked.limit is not None:
        _check_range("limit", asked.limit, 1)
    positions = None
    if asked.positions is not None:
        if len(asked.positions) > MAX_POSITIONS:
            raise AdministrationError(f"more than {MAX_POSITIONS:,} positions: ask several times")
        positions = [MessagePosition.of(one) for one in asked.positions]
    return Selection(positions, _matcher(asked.filter), asked.limit)


def _matcher(wanted: MessageFilter | None) -> Matcher | None:
    """Raises: AdministrationError."""
    if wanted is None or wanted == MessageFilter():
        return None
    try:
        return Matcher(wanted)
    except ValueError as error:
        raise AdministrationError(f"invalid filter: {error}") from None


def _check_range(name: str, value: int, least: int, most: int = 1 << 62) -> None:
    """Raises: AdministrationError."""
    if not least <= value <= most:
        raise AdministrationError(f"invalid {name}: {value} is not from {least} to {most}")
