"""Threads that carry out one thing after the other, in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Lane(Generic[Job]):
    """One thread, and what waits for it.

    Args: carry_out, called in the thread; may_skip, tells of the last job that waits, and of one
    behind it, whether this may be left out; goes_before, whether it goes before that.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[Job], None],
        may_skip: Callable[[Job, Job], bool],
        goes_before: Callable[[Job, Job], bool] = lambda _, __: False,
    ) -> None:
        self._carry_out = carry_out
        self._may_skip = may_skip
        self._goes_before = goes_before
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self.is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Have a job carried out, behind those that wait."""
        with self._wake:
            # Only the last one that waits is looked at: leaving out a read in front of a
            # transaction would change what it sees.
            if self._jobs and self._may_skip(self._jobs[-1], job):
                return
            if self._jobs and self._goes_before(self._jobs[-1], job):
                self._jobs.insert(-1, job)
            else:
                self._jobs.append(job)
            self._wake.notify()

    def close(self) -> None:
        """Leave out what waits, and return when the job under way is done."""
        with self._wake:
            # What waits is dropped: at a stop each job would take its full timeout if etcd does
            # not answer.
            self.is_closed = True
            self._wake.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self.is_closed:
                    self._wake.wait()
                if self.is_closed:
                    return
                job = self._jobs.popleft()
            # The job runs outside the lock, or `put` would wait for etcd, and with it the state
            # machine.
            self._carry_out(job)
