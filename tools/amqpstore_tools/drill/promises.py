"""The promises to the outside: the marks of a history, added up.

Between `Asked` and `Promised` an effect may be visible or not; after `Promised` it must be. When
the store is opened, everything it shows is decided, one way or the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amqpstore_tools.drill.observation import Observation
from amqpstore_tools.drill.payloads import Payload
from amqpstore_tools.drill.trace import Asked, Deed, Mark, Promised, StoreOpened, Trace


@dataclass
class PromisedMessage:
    """A message in a queue. `is_kept`: it must survive a restart.

    `may_be_gone` and `must_be_gone`: its removal was requested, and promised. Deliveries are
    counted as `asked` and as durable (`promised`).
    """

    number: int
    payload: Payload
    publish: int
    is_kept: bool
    is_confirmed: bool = False
    may_be_gone: bool = False
    must_be_gone: bool = False
    deliveries_asked: int = 0
    deliveries_promised: int = 0


@dataclass
class PromisedQueue:
    """A queue's entries, by the messages' names."""

    is_kept: bool
    must_be_there: bool = False
    may_be_gone: bool = False
    must_be_gone: bool = False
    entries: dict[str, PromisedMessage] = field(default_factory=dict)

    def of(self, names: Iterable[str]) -> Iterator[PromisedMessage]:
        """Yield the entries of messages, but for those that were never published: such a message is
        a fault of the store that has it, and may be taken and acked like any other.
        """
        return (self.entries[name] for name in names if name in self.entries)


@dataclass
class Promises:
    """Promised queues by name; `files`: content of files unknown to the store, by path."""

    queues: dict[str, PromisedQueue] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    _requests: dict[int, Asked] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation) -> Promises:
        """Return the promises of exactly what was observed."""
        queues: dict[str, PromisedQueue] = {}
        for name, queue in observation.queues.items():
            queues[name] = PromisedQueue(is_kept=True, must_be_there=True)
            queues[name].entries = {
                seen.name: PromisedMessage(
                    number,
                    seen.payload,
                    publish=0,
                    is_kept=True,
                    is_confirmed=True,
                    deliveries_asked=seen.delivery_count,
                    deliveries_promised=seen.delivery_count,
                )
                for number, seen in enumerate(queue.ready)
            }
        return cls(queues)

    @classmethod
    def before(cls, trace: Trace) -> Promises:
        """Return the promises of what was in the store before a history began."""
        return cls() if trace.before is None else cls.of(trace.before)

    @property
    def promised_count(self) -> int:
        """Messages, counted in each of their queues, that must be there now."""
        return sum(
            entry.is_kept and entry.is_confirmed and not entry.may_be_gone
            for promised in self.queues.values()
            if not promised.may_be_gone
            for entry in promised.entries.values()
        )

    def note(self, mark: Mark) -> None:
        """Add the next mark."""
        match mark:
            case Asked():
                self._requests[mark.number] = mark
                self._asked(mark)
            case Promised(number):
                self._promised(self._requests[number])
            case StoreOpened(observation):
                self._opened(observation)

    def _asked(self, asked: Asked) -> None:
        if asked.deed is Deed.KEEP_FILE:
            return
        if asked.deed is Deed.CREATE_QUEUE:
            self.queues.update({name: PromisedQueue(asked.is_kept) for name in asked.queues})
            return
        for name in asked.queues:
            promised = self.queues[name]
            if asked.deed is Deed.DELETE_QUEUE:
                promised.may_be_gone = True
            elif asked.deed is Deed.PUBLISH:
                self._published(promised, asked)
            for entry in promised.of(asked.names):
                if asked.deed is Deed.TAKE:
                    entry.deliveries_asked += 1
                else:
                    entry.may_be_gone = True

    def _published(self, promised: PromisedQueue, asked: Asked) -> None:
        is_kept = asked.is_kept and promised.is_kept
        for payload in asked.payloads:
            number = len(promised.entries)
            promised.entries[payload.routing_key] = PromisedMessage(
                number, payload, asked.number, is_kept
            )

    def _promised(self, asked: Asked) -> None:
        if asked.deed is Deed.KEEP_FILE:
            self.files[asked.names[0]] = asked.content
        for name in asked.queues:
            promised = self.queues[name]
            if asked.deed is Deed.CREATE_QUEUE:
                promised.must_be_there = True
            elif asked.deed is Deed.DELETE_QUEUE:
                promised.must_be_gone = True
            for payload in asked.payloads:
                promised.entries[payload.routing_key].is_confirmed = True
            for entry in promised.of(asked.names):
                if asked.deed is Deed.TAKE:
                    entry.deliveries_promised += 1
                else:
                    entry.must_be_gone = True

    def _opened(self, observation: Observation) -> None:
        for name, promised in self.queues.items():
            queue = observation.queues.get(name)
            if queue is None:
                promised.may_be_gone = promised.must_be_gone = True
                continue
            promised.must_be_there = True
            seen = {message.name: message for message in queue.ready}
            for message, entry in promised.entries.items():
                if message in seen:
                    count = seen[message].delivery_count
                    entry.is_confirmed, entry.may_be_gone = True, False
                    entry.deliveries_asked = entry.deliveries_promised = count
                else:
                    entry.may_be_gone = entry.must_be_gone = True
