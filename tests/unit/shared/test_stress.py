"""Producers, movers and consumers at once, who wait, give up and roll back: nothing is lost."""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter

from amqpstore import SharedStore
from tests.unit.shared.conftest import Threads
from tests.unit.shared.waiting import ready, send
from tests.waiting import wait_until

EACH = 150
"""Transactions of a producer."""

LAST = b""


class UndoneError(Exception):
    """A transaction is to be rolled back."""


def undo(rng: random.Random, share: float) -> None:
    if rng.random() < share:
        raise UndoneError


class Crowd:
    """Threads that move messages from queue `q` to queue `passed`, and from there to `received`."""

    def __init__(self, shared: SharedStore) -> None:
        self.shared = shared
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.is_all_sent = threading.Event()

    def produce(self, number: int) -> None:
        rng = random.Random(number)
        for _ in range(EACH):
            bodies = [b"%d" % rng.getrandbits(60) for _ in range(rng.randint(1, 5))]
            try:
                with self.shared.transaction() as transaction:
                    transaction.send("q", bodies)
                    undo(rng, 0.1)
                self.sent.extend(bodies)
            except UndoneError:
                pass

    def move(self, number: int) -> None:
        rng = random.Random(number)
        while True:
            limit, timeout_s = rng.randint(1, 4), rng.choice([0, 0.001, 0.01, 0.2])
            try:
                with self.shared.transaction() as transaction:
                    found = transaction.receive("q", limit=limit, timeout_s=timeout_s)
                    transaction.send("passed", [one.message for one in found])
                    undo(rng, 0.2)
            except UndoneError:
                pass
            except TimeoutError:
                if self.is_all_sent.is_set():
                    return

    def consume(self) -> None:
        while True:
            with self.shared.transaction() as transaction:
                bodies = [one.body for one in transaction.receive("passed", limit=3)]
            self.received.extend(body for body in bodies if body != LAST)
            if LAST in bodies:
                send(self.shared, "passed", LAST)  # for the next one
                return


def test_each_message_is_received_once_however_many_threads(
    shared: SharedStore, threads: Threads
) -> None:
    shared.declare("passed")
    crowd = Crowd(shared)
    producers = [threads.start(functools.partial(crowd.produce, one)) for one in range(4)]
    movers = [threads.start(functools.partial(crowd.move, one)) for one in range(10, 16)]
    for _ in range(4):
        threads.start(crowd.consume)
    for thread in producers:
        thread.join(60)
    wait_until(lambda: ready(shared, "q") == 0)
    crowd.is_all_sent.set()
    for thread in movers:
        thread.join(60)
    send(shared, "passed", LAST)
    threads.join()
    assert len(crowd.sent) > EACH
    assert Counter(crowd.received) == Counter(crowd.sent)
    assert max(Counter(crowd.received).values()) == 1
    assert (ready(shared, "q"), ready(shared, "passed")) == (0, 1)
