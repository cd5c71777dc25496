"""The publishers and consumers of one store, as far as a drill needs them.

Requests are marked in the trace before the store is called, and answers when the store gives them,
through `Log.when_durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from amqpstore import (
    Envelope,
    Message,
    MessageDamagedError,
    Placement,
    Queue,
    ReadLaterError,
    Run,
    Store,
)
from amqpstore.log.batch import Batch
from amqpstore_tools.drill.observation import observe, paged_runs
from amqpstore_tools.drill.payloads import EXCHANGE, Payload, message_name
from amqpstore_tools.drill.trace import Asked, Deed, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.memory_files import MemoryFiles

OpenStore = Callable[[MemoryFiles], Store]

NOW_MS = 1_700_000_000_000


class Outside:
    """All users of the store that `open_store` opens on `files`, with one `trace`.

    Args: first_number, of the requests; it is part of the messages' names, so that histories that
    continue each other never use a name twice.
    """

    def __init__(
        self, trace: Trace, files: MemoryFiles, open_store: OpenStore, first_number: int = 1
    ) -> None:
        self.trace = trace
        self.files = files
        self.next_number = first_number
        self.damaged: list[str] = []
        """Messages that the store gave up because it could not read them."""
        self.put_off: list[str] = []
        """The reason why a checkpoint, requested or made while closing, has to wait until the disk
        works again.
        """
        # By id, and by queue and sequence, so that removed messages are known without reading them.
        self._names: dict[int, str] = {}
        self._names_in_queues: dict[tuple[str, int], str] = {}
        self._open_store = open_store
        self._store: Store | None = None
        self._queues: dict[str, Queue] = {}
        self._unacked: dict[str, list[tuple[Run, tuple[str, ...]]]] = {}
        self._batch: Batch | None = None
        files.record = trace.note

    @property
    def store(self) -> Store:
        """The open store. Raises: RuntimeError, when it is closed."""
        if self._store is None:
            raise RuntimeError("the store is not open")
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether the store was opened, and neither closed nor killed."""
        return self._store is not None

    @property
    def queue_names(self) -> list[str]:
        """Queues that were created, before or since the store was opened, and not deleted."""
        return list(self._queues)

    def ready_count(self, name: str) -> int:
        """Return how many messages may be taken from a queue."""
        return self._queues[name].ready_count

    def is_durable(self, name: str) -> bool:
        """Whether a queue survives the end of its process."""
        return self._queues[name].durable

    def unacked_count(self, name: str) -> int:
        """Runs that were taken from a queue, and are held."""
        return len(self._unacked[name])

    # The store's life.

    def open(self) -> None:
        """Open the store; everything it shows then is promised."""
        self._store = store = self._open_store(self.files)
        observation = observe(store)
        self.trace.note(StoreOpened(observation))
        by_id = {queue.id: name for name, queue in observation.queues.items()}
        self._queues = {by_id[queue.id]: queue for queue in store.queues.values()}
        self._unacked = {name: [] for name in self._queues}
        for name, queue in observation.queues.items():
            for seen in queue.ready:
                self._names_in_queues[name, seen.sequence] = seen.name
                self._names[seen.message_id] = seen.name

    def close(self) -> None:
        """Close the store cleanly."""
        try:
            self.store.close()
        except OSError as error:
            self.put_off.append(str(error))
        self._store = None

    def kill(self) -> None:
        """End the process: its writes remain, what it had in memory is lost."""
        self._batch = None
        if self._store is not None:
            self._store.abandon()
            self._store = None

    def keep_file(self, path: str, content: bytes) -> None:
        """Put a file, durably, that the store does not know."""
        number = self._ask(Deed.KEEP_FILE, names=(path,), content=content)
        file = self.files.create(path)
        file.append([content])
        file.datasync()
        file.close()
        self.files.sync_directory(path.rpartition("/")[0])
        self.trace.note(Promised(number))

    # Queues.

    def create_queue(self, name: str, *, durable: bool = True) -> None:
        number = self._ask(Deed.CREATE_QUEUE, (name,), is_kept=durable)
        queue = self.store.create_queue({"name": name}, durable=durable)
        self.trace.note(Promised(number))
        self._queues[name] = queue
        self._unacked[name] = []

    def delete_queue(self, name: str) -> None:
        number = self._ask(Deed.DELETE_QUEUE, (name,))
        self.store.delete_queue(self._queues.pop(name))
        self.trace.note(Promised(number))
        # Consumers still hold what they took, and may ack it later.

    # Messages.

    def publish(
        self,
        queues: Sequence[str],
        bodies: Sequence[bytes],
        *,
        persistent: bool = True,
        priority: int = 0,
    ) -> None:
        number = self.next_number
        payloads = tuple(
            Payload(EXCHANGE, f"{number}.{index}", b"\x10\x00\x02" if persistent else b"", body)
            for index, body in enumerate(bodies)
        )
        self._ask(Deed.PUBLISH, tuple(queues), payloads=payloads, is_kept=persistent)
        messages = [
            Message(Envelope(exchange, key, properties, persistent=persistent), body)
            for exchange, key, properties, body in payloads
        ]
        self.store.publish([self._queues[name] for name in queues], messages, priority=priority)
        keys = [payload.routing_key for payload in payloads]
        for name in queues:
            end = self._queues[name].next_sequence
            for sequence, key in enumerate(keys, end - len(keys)):
                self._names_in_queues[name, sequence] = key
            run = self._queues[name].ready.last
            if run.first_id:
                indexes = range(run.count - len(keys), run.count)
                self._names.update(zip(map(run.id_at, indexes), keys, strict=True))
        self._promise_later(number)

    def spread(self, routed: Sequence[tuple[Sequence[str], bytes]]) -> None:
        """Publish messages in one call, each to queues of its own; all queues are durable."""
        numbers: list[int] = []
        messages: list[Message] = []
        indexes: dict[str, list[int]] = {}
        for names, body in routed:
            payload = Payload(EXCHANGE, f"{self.next_number}.0", b"\x10\x00\x02", body)
            for name in names:
                indexes.setdefault(name, []).append(len(messages))
            envelope = Envelope(payload.exchange, payload.routing_key, payload.properties)
            messages.append(Message(envelope, body))
            numbers.append(self._ask(Deed.PUBLISH, tuple(names), payloads=(payload,)))
        placements = [Placement(self._queues[name], indexes=at) for name, at in indexes.items()]
        self.store.enqueue(placements, messages)
        for name in indexes:
            run = self._queues[name].ready.last
            for index in range(run.count - len(indexes[name]), run.count):
                assert run.messages is not None  # they were just published
                key = run.messages[index].envelope.routing_key
                self._names_in_queues[name, run.first_sequence + index] = key
                self._names[run.id_at(index)] = key
        for number in numbers:
            self._promise_later(number)

    def take(self, name: str, limit: int, *, acked: bool = False) -> None:
        """Take from a queue, if it has ready messages."""
        if not self.ready_count(name):
            return
        run = self.store.take(self._queues[name], limit, acked=acked)
        if isinstance(run, MessageDamagedError):
            # If the index cannot be read, the ids of its messages are unknown.
            self.damaged.append(self._names.get(run.message_id, f"messages of {name}"))
            return
        if isinstance(run, ReadLaterError):
            self.put_off.append(str(run))
            return
        if run is None:
            raise RuntimeError(f"{name} reported ready messages, but has none")
        # It is known only now which messages these are; nothing is written before the next sync.
        names = tuple(
            message_name(
                message.envelope.exchange,
                message.envelope.routing_key,
                run.id_at(index) if run.first_id else index,
            )
            for index, message in enumerate(run.messages or ())
        )
        self._promise_later(self._ask(Deed.ACK if acked else Deed.TAKE, (name,), names))
        if not acked:
            self._unacked[name].append((run, names))

    def ack(self, name: str, index: int = 0) -> None:
        """Ack the run at `index` among the unacked runs of a queue, if any."""
        if index >= len(self._unacked[name]):
            return
        run, names = self._unacked[name].pop(index)
        queue = self._queues.get(name)
        if queue is None:
            return
        number = self._ask(Deed.ACK, (name,), names)
        self.store.ack(queue, run)
        self._promise_later(number)

    def requeue(self, name: str, index: int = 0) -> None:
        """Requeue an unacked run, if any."""
        if index >= len(self._unacked[name]):
            return
        run, _ = self._unacked[name].pop(index)
        if queue := self._queues.get(name):
            self.store.requeue(queue, run)

    def purge(self, name: str) -> None:
        """Remove the ready messages of a queue."""
        queue = self._queues[name]
        runs = [*queue.ready, *paged_runs(self.store, self.files, queue)]
        names = tuple(chain.from_iterable(self._names_in(name, run) for run in runs))
        number = self._ask(Deed.PURGE, (name,), names)
        self.store.purge(queue)
        self._promise_later(number)

    # Durability: at once, or in the three steps of a committer.

    def sync(self) -> None:
        """Make everything done so far durable."""
        self.finish_sync()
        self.store.sync()

    def begin_sync(self) -> None:
        """Seal the batch; later changes belong to the next one."""
        self.finish_sync()
        self._batch = self.store.log.seal(NOW_MS)

    def finish_sync(self) -> None:
        """Write the sealed batch."""
        if self._batch is not None:
            self.store.log.write(self._batch)
            self.store.log.complete(self._batch)
            self._batch = None

    # The store's own work.

    def checkpoint(self) -> None:
        """Let the store make a checkpoint of everything durable."""
        self.finish_sync()
        try:
            self.store.upkeep.checkpoint()
        except OSError as error:
            self.put_off.append(str(error))

    def housekeep(self, times: int = 1) -> None:
        """Let the store start due work or take over finished work, `times` times."""
        for _ in range(times):
            self.store.upkeep.housekeep()

    def set_lazy(self, name: str, is_lazy: bool) -> None:
        """Set whether a queue keeps bodies in memory that are on disk."""
        self._queues[name].lazy = is_lazy

    def _names_in(self, name: str, run: Run) -> Iterator[str]:
        for sequence in range(run.first_sequence, run.end):
            yield self._names_in_queues[name, sequence]

    def _ask(
        self,
        deed: Deed,
        queues: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        *,
        payloads: tuple[Payload, ...] = (),
        is_kept: bool = True,
        content: bytes = b"",
    ) -> int:
        number = self.next_number
        self.next_number += 1
        self.trace.note(Asked(number, deed, queues, names, payloads, is_kept, content))
        return number

    def _promise_later(self, number: int) -> None:
        self.store.log.when_durable(lambda: self.trace.note(Promised(number)))
