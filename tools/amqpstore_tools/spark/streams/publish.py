"""Rows published to an exchange, each batch exactly once: two-phase commit over the tasks.

A task publishes in a branch of a distributed transaction (server/PROTOCOL.md, "Distributed
transactions") and prepares it: durable, undecided, invisible. The driver decides, in `commit`:

1. It locks the stream (see `broker.lock`), and reads the stream's *ledger*, a queue with one
   message: the last decision, as the batch id and the names of its branches.
2. If that is for this batch or a later one, the batch is a replay: the rest of the decision is
   carried out, the replay's branches are rolled back, and nothing else is done.
3. Otherwise the decision is published to the ledger, replacing the one before, and confirmed.
4. The branches are committed. Other branches of this stream in doubt are rolled back.

A crash before 3 leaves undecided branches: the next commit rolls them back. A crash after it leaves
some that have to be committed: Spark asks for the batch again, and 2 commits them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType

from amqpstore_tools.offline.contents import edited_properties, properties_of
from amqpstore_tools.pika import Outgoing, RawProperties, XaResource, XaStatus, Xid, publish
from amqpstore_tools.spark.reading.envelopes import text_of
from amqpstore_tools.spark.reading.options import OptionError, PublishOptions
from amqpstore_tools.spark.reading.schemas import ENVELOPE, PROPERTIES
from amqpstore_tools.spark.streams.broker import connect, locked, queue_name

XID_FORMAT = 0x5350524B
"""Marks the branches of this module: "SPRK"."""

_KNOWN = {"body", *(name for name, _ in ENVELOPE)}
_LISTS = ("CC", "BCC")
_ONE_BATCH = 0
_NO_PROPERTIES = b"\0\0"
_PERSISTENT = 2


@dataclass
class PreparedBranch(WriterCommitMessage):
    """A task's branch, in hex; empty if there is nothing to commit."""

    branch: str


def check_columns(schema: StructType, options: PublishOptions) -> None:
    """Raises: OptionError, if rows with these columns could not be published."""
    names = schema.fieldNames()
    if "body" not in names:
        raise OptionError("the data has no column body, which would be published")
    for name in names:
        if name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise OptionError(
                f"column {name} is not a property: leave it out. Known columns: {known}"
            )
    if "routing_key" not in names and not options.routing_key and not options.exchange:
        raise OptionError("without an exchange, option or column routing_key has to name a queue")


class _Publisher:
    """The common base of the writers of data frames and of streams."""

    def __init__(self, options: PublishOptions) -> None:
        self._options = options
        self._stream = options.stream or f"once-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Row]) -> PreparedBranch:
        first = next(iterator, None)
        if first is None:
            return PreparedBranch("")
        xid = Xid.new(XID_FORMAT, self._prefix(), b"\0")
        connection = connect(self._options.url)
        try:
            channel = connection.channel()
            branch = XaResource(channel)
            branch.start(xid)
            publish(channel, map(self._message, chain((first,), iterator)))
            branch.end(xid)
            if branch.prepare(xid) is XaStatus.RDONLY:
                # Nothing of it was routed anywhere.
                return PreparedBranch("")
        finally:
            connection.close()
        return PreparedBranch(xid.global_id.hex())

    def decide(self, batch: int, branches: Collection[str]) -> None:
        """Commit a batch, or the rest of an earlier decision for it."""
        ledger = queue_name(self._stream, "ledger")
        with locked(self._options.url, self._stream) as channel:
            connection = channel.connection
            channel.queue_declare(ledger, durable=True, arguments={"x-max-length": 1})
            last, decided = _last_decision(connection.channel(), ledger)
            if last is None or last < batch:
                # The rest of the last decision comes first: the new one replaces it in the ledger.
                self._carry_out(connection.channel(), decided, keep=branches)
                _decide(connection.channel(), ledger, batch, sorted(branches))
                decided = set(branches)
            self._carry_out(connection.channel(), decided)
            if not self._options.stream:
                connection.channel().queue_delete(ledger)

    def undo(self, branches: Collection[str]) -> None:
        """Roll back branches that were prepared and will not be committed."""
        with locked(self._options.url, self._stream) as channel:
            resource = XaResource(channel.connection.channel())
            for xid in resource.recover():
                if xid.format_id == XID_FORMAT and xid.global_id.hex() in branches:
                    resource.rollback(xid)

    def _carry_out(
        self, channel: BlockingChannel, decided: Collection[str], keep: Collection[str] = ()
    ) -> None:
        """Commit the decided branches, and roll back the others of the stream.

        Args: keep, those that are not decided yet.
        """
        resource = XaResource(channel)
        for xid in resource.recover():
            # Other applications may have branches in doubt in this virtual host.
            name = xid.global_id.hex()
            if xid.format_id != XID_FORMAT or not xid.global_id.startswith(self._prefix()):
                continue
            if name in decided:
                resource.commit(xid)
            elif name not in keep:
                resource.rollback(xid)

    def _prefix(self) -> bytes:
        """Return the first 16 bytes of the names of the stream's branches."""
        return hashlib.sha256(self._stream.encode()).digest()[:16]

    def _message(self, given: Row) -> Outgoing:
        options, row = self._options, given.asDict()
        exchange = row.get("exchange", options.exchange)
        routing_key = row.get("routing_key", options.routing_key)
        return Outgoing(
            options.exchange if exchange is None else exchange,
            options.routing_key if routing_key is None else routing_key,
            RawProperties(properties_from(row)),
            _body_of(row["body"]),
        )


def _body_of(value: Any) -> bytes:
    """Raises: ValueError."""
    if value is None:
        raise ValueError("column body is null in a row: use an empty body, or leave the row out")
    return value.encode() if isinstance(value, str) else bytes(value)


def properties_from(row: dict[str, Any]) -> bytes:
    """Return properties from the columns of a row, applied over those in its column `properties`.

    Persistent, unless either says otherwise. A header that is equal in `properties` keeps its type;
    any other is text.
    Raises: ValueError.
    """
    raw = bytes(row.get("properties") or _NO_PROPERTIES)
    try:
        known = properties_of(raw)
    except ValueError as error:
        raise ValueError(f"column properties: {error}") from error
    set_to = {
        name: row[name] for name, _ in PROPERTIES if name != "headers" and row.get(name) is not None
    }
    if isinstance(at := set_to.get("timestamp"), datetime):
        set_to["timestamp"] = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    if "delivery_mode" not in known:
        set_to.setdefault("delivery_mode", _PERSISTENT)
    headers = known.get("headers", {})
    wanted = row.get("headers")
    changed, gone = {}, set()
    if wanted is not None:
        gone = headers.keys() - wanted.keys()
        changed = {
            name: _header(name, text)
            for name, text in wanted.items()
            if name not in headers or text_of(headers[name]) != text
        }
    return edited_properties(raw, headers=changed, without_headers=gone, **set_to)


def _header(name: str, text: str | None) -> Any:
    """Return a header of the column `headers`, where all are text: a broker requires other types
    for some.
    """
    return json.loads(text) if name in _LISTS and text and text.startswith("[") else text


class PublishWriter(_Publisher, DataSourceWriter):
    """`df.write.format("amqpstore")`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        batch = self._options.batch_id
        self.decide(_ONE_BATCH if batch is None else batch, _branches(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.undo(_branches(messages))


class PublishStreamWriter(_Publisher, DataSourceStreamWriter):
    """`df.writeStream.format("amqpstore")`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.decide(batchId, _branches(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self.undo(_branches(messages))


def _branches(messages: list[WriterCommitMessage | None]) -> set[str]:
    return {one.branch for one in messages if isinstance(one, PreparedBranch) and one.branch}


def _last_decision(channel: BlockingChannel, ledger: str) -> tuple[int | None, set[str]]:
    """Return the batch that was decided last, and its branches. The message is requeued."""
    last: tuple[int | None, set[str]] = (None, set())
    while True:
        method, _, body = channel.basic_get(ledger)
        if method is None or body is None:
            break
        row = json.loads(body)
        last = row["batch"], set(row["branches"])
    channel.close()
    return last


def _decide(channel: BlockingChannel, ledger: str, batch: int, branches: list[str]) -> None:
    """Store a decision. Durable on return."""
    channel.confirm_delivery()
    body = json.dumps({"batch": batch, "branches": branches}).encode()
    channel.basic_publish("", ledger, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    channel.close()
