"""A publisher that goes on whatever happens to a group, and remembers what was confirmed to it."""

import random
import threading
import time
from collections import Counter

import pika
from pika.exceptions import AMQPError

from tests.cluster_processes import GroupProcesses

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PAUSE_S = 0.05
KEPT, DRAINED = "kept", "drained"
"""What is published to one queue stays there; nearly all of the other one is acked at once."""


class Load(threading.Thread):
    """Publishes numbers to two queues of whichever member leads, each with a confirm."""

    def __init__(self, group: GroupProcesses, seed: int) -> None:
        super().__init__(daemon=True)
        self.confirmed: set[int] = set()
        self.tried: set[int] = set()
        self.acked: set[int] = set()
        self.longest_s = 0.0
        """The longest time between two confirms since it was set to 0."""
        self._group = group
        self._random = random.Random(seed)
        self._number = 0
        self._confirmed_at = time.monotonic()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                leader = self._group.leader()
                if leader is not None:
                    self._publish(leader.connect())
            except (AMQPError, OSError):
                pass  # it was closed, or killed: what was not confirmed is unknown
            self._stopped.wait(PAUSE_S)

    def _publish(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in (KEPT, DRAINED):
            channel.queue_declare(queue, durable=True)
        while not self._stopped.is_set():
            for queue in (KEPT, DRAINED):
                self._number += 1
                if queue == KEPT:
                    self.tried.add(self._number)
                filler = b"." * self._random.choice((0, 10, 2000, 20_000))
                channel.basic_publish("", queue, b"%d%s" % (self._number, filler), PERSISTENT)
                self._note(self._number if queue == KEPT else 0)
            method, _, _ = channel.basic_get(DRAINED)
            if method is not None and method.delivery_tag is not None:
                channel.basic_ack(method.delivery_tag)
        connection.close()

    def _note(self, number: int) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._confirmed_at)
        self._confirmed_at = now
        if number:
            self.confirmed.add(number)

    def wait_for_confirms(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        target = len(self.confirmed) + count
        self._group.wait(lambda: len(self.confirmed) >= target)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def verify(self) -> None:
        """Compare what the leader has with what was confirmed."""
        connection = self._group.wait_for_leader().connect()
        channel = connection.channel()
        found: Counter[int] = Counter()
        order = []
        while (body := channel.basic_get(KEPT)[2]) is not None:
            order.append(int(body.rstrip(b".")))
            found[order[-1]] += 1
        connection.close()
        assert not self.confirmed - found.keys(), "confirmed and lost"
        assert not found.keys() - self.tried, "never published"
        assert not [one for one, count in found.items() if count > 1], "twice"
        assert order == sorted(order)
