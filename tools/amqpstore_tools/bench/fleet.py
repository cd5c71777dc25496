"""The worker processes of a run: starts them together, watches them, and ends them in every
case.
"""

import contextlib
import multiprocessing
import resource
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Self

from amqpstore_tools.bench.board import Board
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.worker import BenchWorker, Schedule, Task, WorkerReport
from amqpstore_tools.client.errors import BenchError, ConnectError, PeerError

SETUP_LIMIT_S = 60.0  # for all workers to have connected
_READY = "ready"


class WorkerProcess:
    """One worker process as its parent sees it."""

    def __init__(self, role: str, process: BaseProcess, pipe: Pipe) -> None:
        self.role = role
        self.process = process
        self.pipe = pipe
        self.outcome: WorkerReport | None = None

    def receive(self) -> object:
        """Return the worker's next report.

        Raises:
            BenchError: the worker failed, with its own message, or died without one.
        """
        try:
            report: object = self.pipe.recv()
        except EOFError:
            self.process.join(1.0)
            code = self.process.exitcode
            raise BenchError(f"a {self.role} process died with exit code {code}") from None
        if isinstance(report, BaseException):
            raise report
        return report


class Fleet:
    """Runs one process for each task. Leaving the context ends every process that is left."""

    def __init__(self, settings: BenchSettings, tasks: Sequence[Task]) -> None:
        self.board = Board(len(tasks))
        self.workers: list[WorkerProcess] = []
        context = multiprocessing.get_context("fork")
        for index, task in enumerate(tasks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(settings, self.board, index, task, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.workers.append(WorkerProcess(task.role, process, ours))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for worker in self.workers:
            if worker.outcome is None:
                worker.process.terminate()
        for worker in self.workers:
            end_process(worker.process)
            worker.pipe.close()

    def wait_until_ready(self) -> None:
        """Returns when every worker has connected and waits for the start.

        Raises:
            BenchError: one failed, or they did not all connect within `SETUP_LIMIT_S`.
        """
        for worker in self.workers:
            if not worker.pipe.poll(SETUP_LIMIT_S):
                raise BenchError(
                    f"a {worker.role} was not ready within {SETUP_LIMIT_S:.0f} s: check whether "
                    f"the broker answers"
                )
            worker.receive()

    def start(self, schedule: Schedule) -> None:
        """Give every worker the common start signal."""
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):  # its own report says why it is gone
                worker.pipe.send(schedule)

    def collect(self, timeout_s: float) -> None:
        """Take the outcomes that come within the time, and returns at once after some did.

        Raises:
            BenchError: a worker failed.
        """
        waiting = {worker.pipe: worker for worker in self.workers if worker.outcome is None}
        for pipe in wait(list(waiting), timeout_s):
            worker = next(worker for known, worker in waiting.items() if known is pipe)
            report = worker.receive()
            if not isinstance(report, WorkerReport):
                raise BenchError(f"a {worker.role} process reported {report!r}")
            worker.outcome = report

    def finished(self, *, but: str = "") -> bool:
        """Tell whether all workers are done, not counting those with the role `but`."""
        return all(worker.outcome is not None for worker in self.workers if worker.role != but)


def end_process(process: BaseProcess) -> None:
    """Wait for a process that was told to end, and kill it if it does not."""
    process.join(2.0)
    if process.is_alive():
        process.kill()
        process.join()


def _work(settings: BenchSettings, board: Board, index: int, task: Task, pipe: Pipe) -> None:
    """Run a worker process from start to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # If the parent is killed, nothing else would end this process.
    signal.alarm(int(SETUP_LIMIT_S + settings.timeout) + 15)
    cpu_before_s = 0.0

    def wait_for_start() -> Schedule:
        nonlocal cpu_before_s
        pipe.send(_READY)
        schedule: Schedule = pipe.recv()
        cpu_before_s = cpu_s(resource.RUSAGE_SELF)
        return schedule

    try:
        outcome = task.run(BenchWorker(settings, board, board.row(index), wait_for_start))
        outcome.cpu_s = cpu_s(resource.RUSAGE_SELF) - cpu_before_s
        pipe.send(outcome)
    except (ConnectError, PeerError) as error:
        pipe.send(error)
    except OSError as error:
        pipe.send(PeerError(f"a {task.role} lost its connection to the broker: {error}"))
    except EOFError:
        pass  # the parent is gone, or gave up before the start


def cpu_s(who: int) -> float:
    """Return the user and system seconds used so far by `who`, one of `resource.RUSAGE_*`."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
