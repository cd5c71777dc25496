"""A store's background work, done and taken over at any time: as a thread would, but by a seed."""

import random
from collections.abc import Callable

from amqpstore.upkeep.worker import Outcome

_MAX_POLLS = 4


class LateWorker:
    """A worker that does the work in `start`, or some polls later, and says only some polls later
    that it is done: what is done to the store in between is what its owner's thread would do
    meanwhile.
    """

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._work: Callable[[], object] | None = None
        self._outcome: Outcome[object] | None = None
        self._polls_until_done = 0
        self._polls_until_told = 0

    def start(self, work: Callable[[], object]) -> None:
        self._work = work
        self._polls_until_done = self._rng.choice([0, self._rng.randint(0, _MAX_POLLS)])
        self._polls_until_told = self._rng.randint(0, _MAX_POLLS)
        if not self._polls_until_done:
            self._do()

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:
        if self._work is not None:
            self._polls_until_done -= 1
            if wait or not self._polls_until_done:
                self._do()
        elif self._outcome is not None:
            self._polls_until_told -= 1
        if self._outcome is None or not (wait or self._polls_until_told < 0):
            return None
        outcome, self._outcome = self._outcome, None
        return outcome

    def close(self) -> None:
        """Drop the work that is left: the process has ended."""
        self._work = None

    def _do(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self._outcome = Outcome.of(work)
