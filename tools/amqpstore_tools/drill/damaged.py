"""A store before it was damaged, a copy of it a round, and what must be true of that copy."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.format.records import Gap, Kind, scan
from amqpstore.identity import marker
from amqpstore.system.filenames import INDEX, SEGMENTS, index_key, segment_number
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.drill import run as runs
from amqpstore_tools.drill.copying import link_store
from amqpstore_tools.drill.examiner import Examined, Examiner, TakenMessages
from amqpstore_tools.drill.invariants import Fault
from amqpstore_tools.drill.manual import DOING, FOLLOWED, Manual
from amqpstore_tools.drill.unknown_files import changed_unknown_files, put_unknown_files
from amqpstore_tools.drill.verdict import NAMED, Step

_CHECKED_IF_REFUSED = ("I9", "I11")
_CHECKED_IF_SERVED = ("I1", "I2", "I6", "I9", "I10", "I11", "I12")
_CHECKED_OF_ACKS = ("I5",)
CHECKED = (*_CHECKED_IF_SERVED, *_CHECKED_OF_ACKS, *FOLLOWED)
"""The invariants that `DamagedStore.settle` checks."""

_OPTIONS = Options(
    segment_bytes=16 << 10,
    memory_bytes=16 << 10,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    least_free_bytes=0,
)


@dataclass(frozen=True)
class Hit:
    """The damage that was done, in words; the file, relative to the store's directory; and for a
    record its kind, and its number if it is a message. `may_refuse`: the store need not open.
    `gone`: ids of messages whose bytes are lost.
    """

    did: str
    path: str
    kind: Kind | None = None
    message_id: int = 0
    may_refuse: bool = False
    gone: frozenset[int] = frozenset()


class DamagedStore:
    """The store of a drill of damage: a round may do anything to `directory`.

    In the run's work directory, `store` is the intact one and `round` the copy.
    """

    def __init__(self, run: runs.DrillRun, examiner: Examiner) -> None:
        self._run = run
        self._examiner = examiner
        self._whole = os.path.join(run.settings.work, "store")
        self.directory = os.path.join(run.settings.work, "round")
        if run.settings.data is None:
            make_store(self._whole, random.Random(run.settings.seed))  # noqa: S311 (no secret)
        # This resolves everything a crash has left: from then on all of it is promised.
        Store.open(self._whole, options=_OPTIONS, worker=InlineWorker()).abandon()
        put_unknown_files(self._whole)
        link_store(self._whole, self.directory)
        self.before = examiner.examine(self.directory)
        self._manual: Manual | None = None
        if self.before.error:
            raise OSError(f"the store cannot be used before it is damaged: {self.before.error}")
        run.account.did["messages in the store"] = sum(
            len(queue.messages) for queue in self.before.queues.values()
        )
        run.account.did["queues in the store"] = len(self.before.queues)

    def fresh(self) -> None:
        """Replace `directory` by an intact copy."""
        link_store(self._whole, self.directory)

    def path(self, name: str) -> str:
        """Return the path of a file in `directory`."""
        return os.path.join(self.directory, name)

    def record_files(self) -> list[str]:
        """Return segments and index files, relative to the directory, in order."""
        return [
            f"{directory}/{name}"
            for directory, number_of in ((SEGMENTS, segment_number), (INDEX, index_key))
            for name in sorted(os.listdir(self.path(directory)))
            if number_of(name)
        ]

    def record_at(self, name: str, offset: int) -> tuple[Kind | None, int]:
        """Return kind and number of the record at this offset of a segment or an index file."""
        base = os.path.basename(name)
        key = index_key(base)
        number = key[1] if key else segment_number(base) or 0
        marked = marker.read(OsFiles(), self._whole)
        if marked is None:
            return None, 0
        with open(self.path(name), "rb") as file:
            content = file.read()
        for found in scan(content, number, marked.seed):
            if not isinstance(found, Gap) and found.offset <= offset < found.end:
                return Kind(found.kind), found.number
        return None, 0

    def messages_in(self, name: str) -> frozenset[int]:
        """Return the ids of the messages in a segment of the intact store; of none in a file of
        another kind.
        """
        number = segment_number(os.path.basename(name))
        marked = marker.read(OsFiles(), self._whole)
        if number is None or marked is None:
            return frozenset()
        with open(os.path.join(self._whole, name), "rb") as file:
            records = scan(file.read(), number, marked.seed)
        return frozenset(
            one.number for one in records if not isinstance(one, Gap) and one.kind == Kind.MESSAGE
        )

    def settle(self, hit: Hit) -> None:
        """Open the damaged store, and note the faults in it. Before that, do in some rounds what
        the manual says.
        """
        run = self._run
        if run.follows_manual:
            self._follow_manual(hit)
        after = self._examiner.examine(self.directory)
        faults = [*_faults(self.before, after, hit), *changed_unknown_files(self.directory)]
        run.saw(_CHECKED_IF_REFUSED if after.error else _CHECKED_IF_SERVED)
        if not after.error and _has_all_acks(after, hit):
            run.account.checked(_CHECKED_OF_ACKS)
        for invariant, text in faults:
            run.found(invariant, text, hit.did)
        promised = sum(len(queue.messages) for queue in self.before.queues.values())
        survived = sum(len(queue.messages) for queue in after.queues.values())
        if after.error:
            run.account.did["starts refused"] += 1
        named = promised if after.error else _named(after)
        if not (faults or after.error):
            run.account.did[NAMED] += named
        did = f"{hit.did}: {after.error}" if after.error else hit.did
        run.step(Step(run.round, 1, did, promised, survived, survived, named, bool(faults)))

    def _follow_manual(self, hit: Hit) -> None:
        run = self._run
        run.show(DOING)
        if self._manual is None:
            self._manual = Manual(self._whole, run.settings.work, self._examiner)
        gone = hit.gone | ({hit.message_id} if hit.kind is Kind.MESSAGE else set())
        # Once each: what says in which queues a message is may be damaged.
        intact = Counter(
            {
                digest: 1
                for queue in self.before.queues.values()
                for _, number, digest in queue.messages
                if number not in gone
            }
        )
        run.account.checked(FOLLOWED)
        for invariant, text in self._manual.follow(self.directory, intact):
            run.found(invariant, text, hit.did)


def _named(after: Examined) -> int:
    return len(after.lost) + sum(
        queue.damaged + queue.unreadable for queue in after.queues.values()
    )


def _faults(before: Examined, after: Examined, hit: Hit) -> Iterator[Fault]:
    if after.error:
        if not (hit.may_refuse and after.is_explained):
            yield "I9", after.error
        return
    for queue_id, whole in before.queues.items():
        queue = after.queues.get(queue_id)
        if queue is None:
            yield "I1", f"queue {queue_id} is gone"
        else:
            yield from _queue_faults(f"queue {queue_id}", whole, queue, after, hit)
    yield from (
        ("I2", f"queue {queue_id} never existed")
        for queue_id in after.queues.keys() - before.queues
    )


def _queue_faults(
    name: str, whole: TakenMessages, queue: TakenMessages, after: Examined, hit: Hit
) -> Iterator[Fault]:
    known = {sequence: (number, digest) for sequence, number, digest in whole.messages}
    served: set[int] = set()
    for sequence, number, digest in queue.messages:
        if sequence in served:
            yield "I1", f"{name}: message {number} came twice"
        served.add(sequence)
        if sequence not in known:
            if _has_all_acks(after, hit):
                yield "I5", f"{name}: message {number} was acked, and is back"
        elif known[sequence] != (number, digest):
            yield "I2", f"{name}: message {number} differs from what was published"
    order = [sequence for sequence, _, _ in queue.messages]
    if order != sorted(order):
        yield "I6", f"{name} is out of order"
    missing = {number for sequence, (number, _) in known.items() if sequence not in served}
    if missing and not (after.damage or after.lost or queue.damaged or queue.unreadable):
        yield "I10", f"{name}: {len(missing)} messages are missing without being reported"
    if hit.kind is Kind.MESSAGE and not missing <= {hit.message_id}:
        others = sorted(missing - {hit.message_id})[:5]
        yield "I10", f"{name}: message {hit.message_id} was damaged, and {others} are missing"
    if queue.said != len(queue.messages) + queue.damaged + queue.unreadable:
        gave = (
            f"delivered {len(queue.messages)}, and could not deliver "
            f"{queue.damaged + queue.unreadable}"
        )
        yield "I12", f"{name} reported {queue.said} ready messages, {gave}"


def _has_all_acks(after: Examined, hit: Hit) -> bool:
    """Tell whether acks are intact: one that was damaged is undone, and that is reported."""
    return hit.kind is Kind.MESSAGE or not after.damage


def make_store(directory: str, rng: random.Random) -> None:
    """Create a store of some segments: merged ones, checkpointed ones, and a log behind the
    checkpoint.
    """
    with contextlib.closing(_Maker(directory, rng)) as maker:
        for _ in range(12):
            maker.publish()
            maker.consume()
        maker.store.upkeep.checkpoint()
        for _ in range(4):
            maker.store.upkeep.housekeep()
        for _ in range(6):
            maker.publish()
            maker.consume()
        maker.store.sync()


class _Maker:
    def __init__(self, directory: str, rng: random.Random) -> None:
        self.store = Store.open(directory, options=_OPTIONS, worker=InlineWorker())
        self._rng = rng
        names = ("orders", "audit", "slow")
        self._queues = [self.store.create_queue({"name": name}) for name in names]

    def publish(self) -> None:
        for _ in range(4):
            count = self._rng.randint(1, len(self._queues))
            queues = self._rng.sample(self._queues, count)
            envelope = Envelope("drill", f"key-{self._rng.randrange(9)}", b"\x10\x00\x02")
            sizes = self._rng.choices([0, 20, 300, 2000, 5000], k=self._rng.randint(1, 6))
            self.store.publish(queues, [Message(envelope, self._rng.randbytes(n)) for n in sizes])
            self.store.sync()

    def consume(self) -> None:
        for queue in self._queues[:2]:
            while queue.ready_count > self._rng.randint(5, 30):
                self._take(queue)
        self.store.sync()

    def _take(self, queue: Queue) -> None:
        run = self.store.take(queue, self._rng.randint(1, 5))
        if not isinstance(run, Run):
            raise TypeError(f"a new store returned {run}")
        if self._rng.random() < 0.1:
            self.store.requeue(queue, run)
        else:
            self.store.ack(queue, run)

    def close(self) -> None:
        self.store.abandon()
