"""The promises to the outside: the marks of a history, added up.

Between `Asked` and `Promised` an effect may be visible or not; after `Promised` it must be. When
the store is opened, everything it shows is decided, one way or the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from amqpstore_tools.drill.observation import Observation
from amqpstore_tools.drill.trace import Asked, Deed, Mark, Opened, Payload, Promised, Trace


@dataclass
class Entry:
    """A message in a queue. `is_kept`: it must survive a restart.

    `may_be_gone` and `must_be_gone`: its removal was requested, and promised. Deliveries are
    counted as `asked` and as durable (`promised`).
    """

    place: int
    payload: Payload
    publish: int
    is_kept: bool
    is_confirmed: bool = False
    may_be_gone: bool = False
    must_be_gone: bool = False
    deliveries_asked: int = 0
    deliveries_promised: int = 0


@dataclass
class Account:
    """A queue's entries, by the messages' names."""

    is_kept: bool
    must_be_there: bool = False
    may_be_gone: bool = False
    must_be_gone: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass
class Ledger:
    """Accounts by queue name; `files`: content of files unknown to the store, by path."""

    accounts: dict[str, Account] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    _requests: dict[int, Asked] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation) -> Ledger:
        """Return a ledger in which exactly what was observed is promised."""
        accounts: dict[str, Account] = {}
        for name, queue in observation.queues.items():
            accounts[name] = Account(is_kept=True, must_be_there=True)
            accounts[name].entries = {
                seen.name: Entry(
                    place,
                    seen.payload,
                    publish=0,
                    is_kept=True,
                    is_confirmed=True,
                    deliveries_asked=seen.delivery_count,
                    deliveries_promised=seen.delivery_count,
                )
                for place, seen in enumerate(queue.ready)
            }
        return cls(accounts)

    @classmethod
    def before(cls, trace: Trace) -> Ledger:
        """Return a ledger of what was in the store before a history began."""
        return cls() if trace.before is None else cls.of(trace.before)

    @property
    def promised_count(self) -> int:
        """Messages, counted in each of their queues, that must be there now."""
        return sum(
            entry.is_kept and entry.is_confirmed and not entry.may_be_gone
            for account in self.accounts.values()
            if not account.may_be_gone
            for entry in account.entries.values()
        )

    def note(self, mark: Mark) -> None:
        """Add the next mark."""
        match mark:
            case Asked():
                self._requests[mark.number] = mark
                self._asked(mark)
            case Promised(number):
                self._promised(self._requests[number])
            case Opened(observation):
                self._opened(observation)

    def _asked(self, asked: Asked) -> None:
        if asked.deed is Deed.KEEP_FILE:
            return
        if asked.deed is Deed.CREATE_QUEUE:
            self.accounts.update({name: Account(asked.is_kept) for name in asked.queues})
            return
        for name in asked.queues:
            account = self.accounts[name]
            if asked.deed is Deed.DELETE_QUEUE:
                account.may_be_gone = True
            elif asked.deed is Deed.PUBLISH:
                self._published(account, asked)
            for message in asked.names:
                entry = account.entries[message]
                if asked.deed is Deed.TAKE:
                    entry.deliveries_asked += 1
                else:
                    entry.may_be_gone = True

    def _published(self, account: Account, asked: Asked) -> None:
        is_kept = asked.is_kept and account.is_kept
        for payload in asked.payloads:
            place = len(account.entries)
            account.entries[payload.routing_key] = Entry(place, payload, asked.number, is_kept)

    def _promised(self, asked: Asked) -> None:
        if asked.deed is Deed.KEEP_FILE:
            self.files[asked.names[0]] = asked.content
        for name in asked.queues:
            account = self.accounts[name]
            if asked.deed is Deed.CREATE_QUEUE:
                account.must_be_there = True
            elif asked.deed is Deed.DELETE_QUEUE:
                account.must_be_gone = True
            for payload in asked.payloads:
                account.entries[payload.routing_key].is_confirmed = True
            for message in asked.names:
                entry = account.entries[message]
                if asked.deed is Deed.TAKE:
                    entry.deliveries_promised += 1
                else:
                    entry.must_be_gone = True

    def _opened(self, observation: Observation) -> None:
        for name, account in self.accounts.items():
            queue = observation.queues.get(name)
            if queue is None:
                account.may_be_gone = account.must_be_gone = True
                continue
            account.must_be_there = True
            seen = {message.name: message for message in queue.ready}
            for message, entry in account.entries.items():
                if message in seen:
                    count = seen[message].delivery_count
                    entry.is_confirmed, entry.may_be_gone = True, False
                    entry.deliveries_asked = entry.deliveries_promised = count
                else:
                    entry.may_be_gone = entry.must_be_gone = True
