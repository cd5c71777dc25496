"""Operators' work with messages, compared with lists, between work of clients and crashes."""

import random
from typing import Any

import pytest

from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client

NAMES = ("left", "right")


class Modelled:
    """Two queues in random steps: positions and bodies that are ready, unacked, and purged."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_selected=3))
        self.operator = Operator(self.simulated)
        self.client = Client(self.simulated)
        for name in NAMES:
            self.simulated.queue(name, purge_undo_seconds=3600)
        self.ready: dict[str, dict[int, str]] = {name: {} for name in NAMES}
        self.unacked: dict[str, tuple[str, int]] = {}
        self.purged: dict[str, list[dict[int, str]]] = {name: [] for name in NAMES}
        self.next = dict.fromkeys(NAMES, 1)
        self.sent = 0

    def name(self) -> str:
        return self.draw.choice(NAMES)

    def arrives(self, name: str, body: str) -> None:
        self.ready[name][self.next[name]] = body
        self.next[name] += 1

    def publish(self) -> None:
        name = self.name()
        for _ in range(self.draw.randrange(1, 6)):
            body = f"{self.sent}"
            self.sent += 1
            self.client.publish("", name, body, message_id=body)
            self.arrives(name, body)

    def get(self) -> None:
        name = self.name()
        body = self.client.get(name)
        if self.ready[name]:
            position = min(self.ready[name])
            assert body == self.ready[name].pop(position)
            # A copy may be unacked already: only the last one is known to the client.
            if body in self.unacked:
                self.client.channel.recover(requeue=True)
                self.ready[name][position] = body
                self.all_come_back()
            else:
                self.unacked[body] = name, position
        else:
            assert body is None

    def all_come_back(self) -> None:
        for body, (name, position) in self.unacked.items():
            self.ready[name][position] = body
        self.unacked.clear()

    def settle(self) -> None:
        if self.unacked:
            body = self.draw.choice(list(self.unacked))
            name, position = self.unacked.pop(body)
            if self.draw.random() < 0.5:
                self.client.ack(body)
            else:
                self.client.requeue(body)
                self.ready[name][position] = body

    def selection(self, name: str) -> tuple[dict[str, Any], list[int]]:
        """A request, and the positions that it means."""
        ready = self.ready[name]
        asked: dict[str, Any] = {}
        found = sorted(ready)
        if self.draw.random() < 0.5:
            known = range(1, self.next[name] + 2)
            asked["positions"] = self.draw.choices(known, k=self.draw.randrange(1, 9))
            found = [one for one in found if one in asked["positions"]]
        if self.draw.random() < 0.5 or not asked:
            digit = str(self.draw.randrange(10))
            asked["filter"] = {"properties": {"message_id": {"contains": digit}}}
            found = [one for one in found if digit in ready[one]]
        if self.draw.random() < 0.3:
            asked["limit"] = self.draw.randrange(1, 5)
            found = found[: asked["limit"]]
        return asked, found

    def move(self) -> None:
        name = self.name()
        (target,) = {*NAMES} - {name}
        asked, found = self.selection(name)
        assert self.operator.moves(name, target, **asked)["moved"] == len(found)
        for position in found:
            self.arrives(target, self.ready[name].pop(position))

    def copy(self) -> None:
        name, target = self.name(), self.name()
        asked, found = self.selection(name)
        answer = self.operator.moves(name, target, copies=True, **asked)
        assert answer["copied"] == len(found)
        for position in found:
            self.arrives(target, self.ready[name][position])

    def delete(self) -> None:
        name = self.name()
        asked, found = self.selection(name)
        assert self.operator.deletes(name, **asked)["deleted"] == len(found)
        for position in found:
            del self.ready[name][position]

    def purge(self) -> None:
        name = self.name()
        count = self.simulated.vhost.queue(name).backlog.purge()
        assert count == len(self.ready[name])
        if count:
            self.purged[name].append(self.ready[name])
            self.ready[name] = {}

    def undo(self) -> None:
        name = self.name()
        if self.purged[name]:
            back = self.purged[name].pop()
            assert self.operator.undoes_purge(name)["restored"] == len(back)
            self.ready[name] |= back

    def crash(self) -> None:
        self.simulated.settle()
        self.simulated.crash()
        self.client = Client(self.simulated)
        self.all_come_back()

    def check(self) -> None:
        self.simulated.settle()
        for name in NAMES:
            unacked = {
                position: f"[{body}]"
                for body, (where, position) in self.unacked.items()
                if where == name
            }
            wanted = sorted((self.ready[name] | unacked).items())
            limit = self.draw.choice([1, 4, 100])
            assert self.operator.sees(name, limit=limit) == [body for _, body in wanted]
            assert [one["messages"] for one in self.operator.page(name)["purges"]] == [
                len(one) for one in reversed(self.purged[name])
            ]


@pytest.mark.rounds(4)
def test_queues_hold_what_lists_hold(seed: int) -> None:
    modelled = Modelled(seed)
    steps = [modelled.publish] * 4 + [modelled.get] * 3 + [modelled.settle] * 2
    steps += [modelled.move] * 2 + [modelled.copy, modelled.delete]
    steps += [modelled.purge, modelled.undo, modelled.crash]
    for _ in range(60):
        modelled.draw.choice(steps)()
        modelled.check()
    modelled.simulated.store.abandon()
