"""An operator of the simulated broker, who looks at messages and handles them."""

from typing import Any

import msgspec

from amqpstore_server.administration.messages import (
    EVERYTHING,
    Browsing,
    Messages,
    Replaying,
    Selecting,
)
from amqpstore_server.administration.work import Work, done
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rights.permissions import Rights
from tests.simulated_broker import SimulatedBroker

BY = By("anna", "test")


class Operator:
    """An operator whose requests tests make by name; keyword arguments are fields of a request."""

    def __init__(self, simulated: SimulatedBroker, rights: Rights = EVERYTHING) -> None:
        self._simulated = simulated
        self._rights = rights

    @property
    def messages(self) -> Messages:
        return Messages(self._simulated.broker, self._rights, BY)

    def carry_out(self, work: Work[dict[str, Any]]) -> dict[str, Any]:
        """Carry out work, as the offline verbs do; then the broker does what follows."""
        answer = done(work)
        self._simulated.settle()
        return answer

    def page(self, name: str, **asked: Any) -> dict[str, Any]:
        queue = self.messages.queue("/", name)
        return self.carry_out(self.messages.browse(queue, msgspec.convert(asked, Browsing)))

    def sees(self, name: str, **asked: Any) -> list[str]:
        """The bodies of all pages; those that are unacked in brackets."""
        found: list[str] = []
        start: str | None = asked.pop("start", None)
        while True:
            page = self.page(name, start=start, **asked)
            found += [
                f"[{row['payload']}]" if row["state"] == "unacked" else row["payload"]
                for row in page["messages"]
            ]
            if (start := page["next"]) is None:
                return found
            asked.pop("offset", None)

    def moves(
        self, name: str, target: str, *, copies: bool = False, **asked: Any
    ) -> dict[str, Any]:
        messages = self.messages
        source, to = messages.queue("/", name), messages.queue("/", target)
        selecting = msgspec.convert(asked, Selecting)
        return self.carry_out(messages.move("/", source, to, selecting, copies=copies))

    def deletes(self, name: str, **asked: Any) -> dict[str, Any]:
        messages = self.messages
        selecting = msgspec.convert(asked, Selecting)
        return self.carry_out(messages.delete("/", messages.queue("/", name), selecting))

    def replays(self, name: str, **asked: Any) -> dict[str, Any]:
        messages = self.messages
        replaying = msgspec.convert(asked, Replaying)
        return self.carry_out(messages.replay("/", messages.queue("/", name), replaying))

    def undoes_purge(self, name: str) -> dict[str, Any]:
        messages = self.messages
        return self.carry_out(messages.undo_purge("/", messages.queue("/", name)))
