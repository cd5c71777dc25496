"""Imports a file of messages into a store that no broker has open: all of it, or nothing.

The messages are added to a copy of the store beside it, which shares files that never change, and
the copy replaces the store atomically (see `copying.restoring`). A crash before that leaves the
store as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import Change
from amqpstore.system import ownership
from amqpstore.system.filenames import (
    DEFINITIONS,
    LOCK,
    MARKER,
    MEMBER,
    NEW_MARKER,
    NEW_MEMBER,
    NEW_REPLACEMENT,
    REPLACEMENT,
    RESERVE,
    SEGMENTS,
    TRANSIENT,
    is_spare,
    is_unfinished,
)
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.restoring import beside, keep_mode, replace_store
from amqpstore_tools.copying.target import FOLDERS
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.offline.locks import exclusive_lock
from amqpstore_tools.offline.queues import name_of
from amqpstore_tools.offline.short_log import refuse_short_log
from amqpstore_tools.transfer.lines import Line, MessageLine, QueueKey, QueueLine, TransferError

_OPTIONS = Options(reserve_bytes=0)
_BATCH_MESSAGES = 1000
_BATCH_BYTES = 4 << 20
_OWN = {
    *(*FOLDERS, LOCK, MARKER, MEMBER, NEW_MARKER, NEW_MEMBER),
    *(REPLACEMENT, NEW_REPLACEMENT, RESERVE, TRANSIENT),
}

_OWN_ENDINGS = (".segment", ".index", ".mdb", ".trail", ".position")


@dataclass
class Imported:
    """The result: messages by queue, and queues that were created."""

    messages: dict[str, int] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)


def import_lines(directory: str, lines: Iterable[Line], *, create: bool) -> Imported:
    """Add messages at the end of their queues in the store in `directory`.

    Args: create, whether missing queues and virtual hosts are created.
    Raises: TransferError, ShortLogError, CopyError, NotAStoreError, StoreLockedError,
    FormatVersionError, DamageError, DiskFullError, OSError; the store is unchanged then.
    """
    directory = os.path.realpath(directory)
    require_store(directory)
    with exclusive_lock(directory, "import"), beside(directory, "importing") as new:
        # The new directory belongs to whom the old one belongs; so does what is created in it.
        copy_store(directory, new, CopyOptions(verify="none", manifest=False, is_locked=True))
        with Store.open(new, options=_OPTIONS, worker=InlineWorker()) as store:
            refuse_short_log(directory, store)
            imported = _Import(store, create=create).run(lines)
        keep_mode(new, directory)
        _link_unknown_files(directory, new)
        kept = replace_store(new, directory, "before-import")
        # Everything that was in it is in the new one too.
        shutil.rmtree(kept)
    return imported


class _Import:
    """An import into an open store."""

    def __init__(self, store: Store, *, create: bool) -> None:
        self._store = store
        self._create = create
        self._queues = {
            _key(queue.definition): queue
            for queue in store.queues.values()
            if not store.is_hidden(queue.id)
        }
        self._batch: list[MessageLine] = []
        self._batch_bytes = 0
        self._out = Imported()

    def run(self, lines: Iterable[Line]) -> Imported:
        for line in lines:
            if isinstance(line, QueueLine):
                self._flush()
                self._queue(line)
            elif isinstance(line, MessageLine):
                # One publish has one queue, one priority and one expiry.
                if self._batch and not self._joins(line):
                    self._flush()
                self._batch.append(line)
                self._batch_bytes += len(line.body)
        self._flush()
        return self._out

    def _queue(self, line: QueueLine) -> None:
        """Return a queue; it is created if necessary. Raises: TransferError."""
        key = line.key
        if key in self._queues:
            self._out.messages.setdefault(key.label, 0)
            return
        if key.vhost is not None and key.vhost not in self._store.definitions.rows("vhosts"):
            if not self._create:
                raise TransferError(
                    f"the store has no virtual host {key.vhost!r}. Create it with "
                    "`amqpstore vhosts add`, or use --create."
                )
            self._store.definitions.define([Change("vhosts", key.vhost, {})])
        is_level = QueueKey(key.vhost, key.name) in self._queues
        if not self._create and not is_level:
            raise TransferError(
                f"the store has no queue {key}. Declare it, or create it with --create."
            )
        if _key(line.definition) != key:
            raise TransferError(f"the line of queue {key} holds the definition of another queue")
        try:
            self._queues[key] = self._store.create_queue(line.definition)
        except (ValueError, TypeError, OverflowError) as error:
            raise TransferError(
                f"the definition of queue {key} cannot be stored: {error}"
            ) from None
        self._out.messages.setdefault(key.label, 0)
        if not is_level:
            self._out.created.append(key.label)

    def _joins(self, line: MessageLine) -> bool:
        """Tell whether a message can join the batch: one publish is of like messages, for one
        queue.
        """
        first = self._batch[0]
        return (
            len(self._batch) < _BATCH_MESSAGES
            and self._batch_bytes < _BATCH_BYTES
            and (first.key, first.priority, first.expires_ms, first.deliveries)
            == (line.key, line.priority, line.expires_ms, line.deliveries)
        )

    def _flush(self) -> None:
        """Put the batch into its queue, durably."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return
        first = batch[0]
        queue = self._queues.get(first.key)
        if queue is None:
            raise TransferError(f"messages of queue {first.key} come before its own line")
        messages = [
            Message(Envelope(line.exchange, line.routing_key, line.properties), line.body)
            for line in batch
        ]
        sequence = queue.next_sequence
        self._store.publish([queue], messages, priority=first.priority, expires_ms=first.expires_ms)
        if first.deliveries:
            self._deliver(queue, sequence, len(batch), first.deliveries)
        self._store.sync()
        self._out.messages[first.key.label] += len(batch)

    def _deliver(self, queue: Queue, sequence: int, count: int, deliveries: int) -> None:
        """Set how often messages were delivered before."""
        end = sequence + count
        while sequence < end:
            run = self._store.take(queue, end - sequence, first_sequence=sequence)
            if not isinstance(run, Run):
                raise TransferError(
                    f"the messages imported into queue {_key(queue.definition)} cannot be read back"
                )
            if deliveries > 1:
                # The last one says how many there were, whatever that number is.
                run.delivery_count = deliveries - 2
                self._store.redeliver(queue, run)
            self._store.requeue(queue, run)
            sequence = run.end


def _key(definition: Any) -> QueueKey:
    if not isinstance(definition, dict):
        return QueueKey(None, None)
    vhost, level = definition.get("vhost"), definition.get("level")
    return QueueKey(
        vhost if isinstance(vhost, str) else None,
        name_of(definition),
        level if isinstance(level, int) else 0,
    )


def _link_unknown_files(directory: str, new: str) -> None:
    """Link files that the store does not know into the new directory."""
    for name in sorted(set(os.listdir(directory)) - _OWN):
        _link(os.path.join(directory, name), os.path.join(new, name))
    for folder in FOLDERS:
        if os.path.isdir(os.path.join(directory, folder)):
            ownership.make_directories(os.path.join(new, folder))
            for name in set(os.listdir(os.path.join(directory, folder))):
                is_own = name == DEFINITIONS or name.endswith(_OWN_ENDINGS)
                is_left_over = is_unfinished(name) or (folder == SEGMENTS and is_spare(name))
                target = os.path.join(new, folder, name)
                # What is in quarantine was copied, whatever its name.
                if not (is_own or is_left_over or os.path.lexists(target)):
                    _link(os.path.join(directory, folder, name), target)


def _link(path: str, target: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, target, symlinks=True, copy_function=os.link)
        for folder, _, _ in os.walk(path):
            copied = os.path.join(target, os.path.relpath(folder, path))
            ownership.give_directory(copied, ownership.owner_of(folder))
    else:
        os.link(path, target, follow_symlinks=False)
